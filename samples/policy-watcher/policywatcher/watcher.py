"""The loop: poll the policies, read the claim, write it if needed, wait."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from threading import Event
from typing import Protocol

from policywatcher.claim import Compliance, PollResult, State
from policywatcher.cluster import ClusterError

log = logging.getLogger("policywatcher")


class Cluster(Protocol):
    """The cluster as the loop needs it; all methods raise ClusterError."""

    def compliance(self) -> PollResult:
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

    def poll(self) -> None:
        """Poll once. If the API server fails, the claim stays as it is."""
        try:
            self._poll_once()
        except ClusterError as error:
            # Logged once per problem, so that a long outage does not fill the log.
            if str(error) != self._problem:
                log.error("%s; trying again", error)
            self._problem = str(error)
        else:
            if self._problem:
                log.info("the API server answers again")
            self._problem = ""

    def _poll_once(self) -> None:
        previous_state, requested_at = self.state, self._clock()
        try:
            poll_result = self._cluster.compliance()
        except ClusterError:
            self.state = previous_state.missed()
            raise
        # Stored before the claim is read: a policy that is not compliant counts even if that read fails.
        self.state = previous_state.observe(poll_result, requested_at, self._clock())
        if poll_result.compliance != previous_state.compliance:
            log.info("policies are %s", poll_result.compliance)
        claim = self._cluster.claim()
        value = self.state.next_claim(claim)
        if value is not None:
            self._cluster.set_claim(value)
            log.info("claim set from=%s to=%s", claim, value)

    def run(self, interval: float, stop: Event) -> None:
        """Poll every `interval` seconds until `stop` is set."""
        while not stop.is_set():
            self.poll()
            stop.wait(interval)
