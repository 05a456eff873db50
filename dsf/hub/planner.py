"""When plans are made: soon after a change, and never one right after the other."""

from __future__ import annotations

import math
import time
from typing import Final

from dsf.backends.protocol import ObjectKey
from dsf.hub.controller import Controller
from dsf.hub.desiredstate import DesiredState
from dsf.hub.outage import Outage
from dsf.hub.summaries import FleetPlan

#: A plan is made from all objects, whatever changed. After one that took a second none is made for this many seconds:
#: so while a thousand scorers become Active one after the other, planning takes a quarter of the time, not all of it.
REST: Final = 3.0


class Planner:
    """Makes new plans in a thread of its own."""

    def __init__(self, desired: DesiredState, outage: Outage) -> None:
        self._desired = desired
        self._rests_until = -math.inf
        #: Its queue has one key, which stands for the whole plan.
        self.controller = Controller("plan", self._plan, workers=1, outage=outage)

    def changed(self, *objects: ObjectKey) -> None:
        """These objects changed: they are reconciled with a plan that knows it."""
        self._desired.note(*objects)
        self.controller.queue.add_after(self._desired.config_key, self._rests_until - time.monotonic())

    def update(self) -> FleetPlan:
        """A plan made in the caller's thread, for one that cannot wait. Raises BackendError."""
        try:
            return self._desired.update()
        except Exception:
            # The caller tries its own work again, and not what has changed meanwhile.
            self.controller.queue.retry(self._desired.config_key)
            raise

    def _plan(self, _: ObjectKey) -> float | None:
        """Returns the seconds until the next plan is due without a change; None if never. Raises BackendError."""
        began = time.monotonic()
        if began < self._rests_until:
            return self._rests_until - began
        try:
            self._desired.update()
        finally:
            ended = time.monotonic()
            self._rests_until = ended + REST * (ended - began)
        return max(0.0, self._desired.ends - time.time()) if self._desired.ends < math.inf else None
