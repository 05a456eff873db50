"""The loop: poll the policies, read the claim, write it if needed, wait."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from threading import Event
from typing import Protocol

from policywatcher.claim import Compliance, Look, State
from policywatcher.cluster import ClusterError

log = logging.getLogger("policywatcher")


class Cluster(Protocol):
    """The cluster as the loop needs it; all methods raise ClusterError."""

    def compliance(self) -> Look:
        """Return the common compliance of all policies."""
        ...

    def claim(self) -> str | None:
        """Return the claim's value."""
        ...

    def set_claim(self, value: Compliance) -> None:
        """Write the claim."""
        ...


class Watcher:
    """Keeps the claim of one cluster. `clock` gives seconds and never goes back."""

    def __init__(self, cluster: Cluster, stable: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.state = State(stable)
        self._cluster = cluster
        self._clock = clock
        self._problem = ""

    def look(self) -> None:
        """Poll once. If the API server fails, the claim stays as it is."""
        try:
            self._round()
        except ClusterError as error:
            # Logged once per problem, so that a long outage does not fill the log.
            if str(error) != self._problem:
                log.error("%s; trying again", error)
            self._problem = str(error)
        else:
            if self._problem:
                log.info("the API server answers again")
            self._problem = ""

    def _round(self) -> None:
        before, requested_at = self.state, self._clock()
        try:
            look = self._cluster.compliance()
        except ClusterError:
            self.state = before.missed()
            raise
        # Stored before the claim is read: a policy that is not compliant counts even if that read fails.
        self.state = before.observe(look, requested_at, self._clock())
        if look.compliance != before.compliance:
            log.info("policies are %s", look.compliance)
        claim = self._cluster.claim()
        value = self.state.next_claim(claim)
        if value is not None:
            self._cluster.set_claim(value)
            log.info("claim set from=%s to=%s", claim, value)

    def run(self, interval: float, stop: Event) -> None:
        """Poll every `interval` seconds until `stop` is set."""
        while not stop.is_set():
            self.look()
            stop.wait(interval)
