"""Leader election among hub controllers by a Lease: the leader works, and the standbys wait.

The lease lasts 12 s and is renewed every 1.5 s; a leader stops after 9 s without a renewal. All times are measured by
the monotonic clock of this process: a standby measures how long the lease stays unchanged, so that clocks of two hubs
need not agree. A watchdog thread enforces the deadline, because a request to a stalled API server may outlast it.
"""

from __future__ import annotations

import datetime
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import dsf.log
from dsf.errors import BackendError, ObjectConflictError, ObjectNotFoundError
from dsf.kube.resources import LEASES
from dsf.kube.session import Session
from dsf.process.threads import SupervisedThread

log = dsf.log.get(__name__)

#: Connect and read timeouts of a request in seconds. They are below the renew deadline, so that a leader survives a
#: stalled request.
_TIMEOUT: Final = (2.0, 4.0)
#: Seconds between two watchdog checks.
_WATCHDOG_SECONDS: Final = 0.25


@dataclass(frozen=True)
class Times:
    """Durations of the election in seconds."""

    #: Duration of the lease. Including the poll interval and the startup of a standby, a controller leads within 15 s
    #: after the leader was killed.
    lease: float = 12.0
    #: Time after the last renewal at which a leader stops working, before the lease lapses.
    renew_deadline: float = 9.0
    #: Poll interval. Other controllers poll every 2 s. With that interval and the second in which the old leader ends
    #: its work, a takeover would take more than 3 s.
    retry: float = 1.5


LEASE_NAME: Final = "dynamic-scoring-hub"
_TIMES: Final = Times()


class LeaderElector:
    """Competes for the Lease in the hub's namespace, in a separate thread.

    `on_started` is called in that thread when this process becomes the leader, and must return soon. `on_lease_lost` is
    called when this process loses the lease involuntarily: it must then end the process, which must not write any more.
    Another process may lead `lease - renew_deadline` seconds later.
    """

    def __init__(
        self,
        session: Session,
        namespace: str,
        *,
        on_started: Callable[[], None],
        on_lease_lost: Callable[[], None],
        identity: str = "",
        times: Times = _TIMES,
    ) -> None:
        """Prepare the election; `stop` closes `session`."""
        self._session = session
        # Add a UUID, because a restarted container keeps its host name.
        self._identity = identity or f"{socket.gethostname()}_{uuid.uuid4()}"
        self._namespace = namespace
        self._path = LEASES.path(namespace, LEASE_NAME)
        self._on_started, self._on_lease_lost = on_started, on_lease_lost
        self._times = times
        self._stop = threading.Event()
        # Guards the leading state, which both threads change.
        self._lock = threading.Lock()
        self._is_leading = self._is_lost = False
        #: Monotonic times of the newest successful renewal and of the newest attempt.
        self._renewed_at = self._attempted_at = 0.0
        #: Last version of another process's lease, and the monotonic time at which it was first read.
        self._seen_version: tuple[str, float] = ("", 0.0)
        #: The lease as last read or written.
        self._lease: dict[str, Any] = {}
        self._logged_error = ""
        self._thread = SupervisedThread(self._run_election, "leader")
        self._watchdog = SupervisedThread(self._watch_deadline, "leader-watchdog")

    @property
    def is_leading(self) -> bool:
        """True if this process holds the lease."""
        return self._is_leading

    @property
    def is_campaigning(self) -> bool:
        """True if both threads are running."""
        return self._thread.is_alive() and self._watchdog.is_alive()

    def start(self) -> None:
        """Start campaigning in separate threads."""
        self._thread.start()
        self._watchdog.start()

    def stop(self) -> None:
        """Release the lease, and close the session. Call it after all work has stopped."""
        self.release()
        self._session.close()

    def release(self) -> None:
        """Stop campaigning, and release the lease, so that another process leads immediately.

        Call it after all work has stopped. An unresponsive API server delays the return by a few seconds.
        """
        self._stop.set()
        self._thread.join(timeout=sum(_TIMEOUT))
        with self._lock:
            self._is_leading = False
        # Check the holder instead of `_is_leading`, because the thread may have acquired the lease while it stopped.
        # Keep a lost lease, because the work of this process may still be running.
        if self._is_lost or (self._lease.get("spec") or {}).get("holderIdentity") != self._identity:
            return
        spec = dict(self._lease["spec"], holderIdentity="", leaseDurationSeconds=1, renewTime=_format_now())
        try:
            self._session.request("PUT", self._path, body=dict(self._lease, spec=spec), timeout=_TIMEOUT)
            log.info("released the lease", lease=LEASE_NAME, identity=self._identity)
        except BackendError as error:
            # Other processes wait until the lease lapses.
            log.warning("cannot release the lease", lease=LEASE_NAME, error=str(error))
        self._lease = {}

    def _run_election(self) -> None:
        while not self._stop.is_set():
            pause_seconds = self._times.retry * random.uniform(0.9, 1.1)  # noqa: S311
            try:
                has_lease = self._try_to_lead()
                self._logged_error = ""
            except Exception as error:  # noqa: BLE001
                # Continue after any exception, such as for a Lease with unexpected content.
                has_lease = None
                self._log_error(str(error) if isinstance(error, BackendError) else f"{type(error).__name__}: {error}")
            if has_lease:
                self._lead(self._attempted_at)
            elif has_lease is False:
                self._handle_lost_lease("another one holds it")
                pause_seconds = min(pause_seconds, self._compute_seconds_to_lapse())
            self._stop.wait(pause_seconds)

    def _log_error(self, error: str) -> None:
        if error != self._logged_error:
            self._logged_error = error
            log.warning("cannot read or write the lease", lease=LEASE_NAME, error=error)

    def _lead(self, renewed_at: float) -> None:
        """Record a renewal, and report the start of the leadership."""
        with self._lock:
            # Do not lead again if a renewal succeeds after the watchdog has given up the lease.
            if self._stop.is_set():
                return
            self._renewed_at = renewed_at
            was_leading, self._is_leading = self._is_leading, True
        if not was_leading:
            log.info("leading", lease=LEASE_NAME, identity=self._identity)
            self._on_started()

    def _handle_lost_lease(self, reason: str, *, if_late: bool = False) -> None:
        """End the leadership, if this process leads; with `if_late`, only if the renewal is late."""
        with self._lock:
            # Check again under the lock, because a renewal may have succeeded in the meantime.
            if not self._is_leading or (if_late and not self._is_late()):
                return
            self._is_leading, self._is_lost = False, True
            self._stop.set()
        log.error("lost the lease", lease=LEASE_NAME, identity=self._identity, why=reason)
        self._on_lease_lost()

    def _watch_deadline(self) -> None:
        while not self._stop.wait(_WATCHDOG_SECONDS):
            if self._is_late():
                self._handle_lost_lease(f"not renewed for {self._times.renew_deadline:g} s", if_late=True)

    def _is_late(self) -> bool:
        return time.monotonic() - self._renewed_at > self._times.renew_deadline - _WATCHDOG_SECONDS

    def _try_to_lead(self) -> bool | None:
        """Acquire or renew the lease. Return False if another process holds it, and None after a write conflict.

        Raises BackendError.
        """
        now = _format_now()
        if self._is_leading and self._renew(now):
            return True
        try:
            lease = self._session.request("GET", self._path, timeout=_TIMEOUT)
        except ObjectNotFoundError:
            body = {
                "apiVersion": LEASES.api_version,
                "kind": LEASES.kind,
                "metadata": {"name": LEASE_NAME, "namespace": self._namespace},
                "spec": self._make_spec(now, now, 0),
            }
            return self._write("POST", LEASES.path(self._namespace), body)
        spec = lease.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        if holder == self._identity:
            spec = self._make_spec(spec.get("acquireTime") or now, now, spec.get("leaseTransitions") or 0)
            return self._write("PUT", self._path, dict(lease, spec=spec))
        if holder and not self._has_lapsed(lease):
            return False
        transitions = (spec.get("leaseTransitions") or 0) + 1
        return self._write("PUT", self._path, dict(lease, spec=self._make_spec(now, now, transitions)))

    def _renew(self, now: str) -> bool:
        """Renew the lease in a single request. Return False if the lease has changed and must be read first.

        If the API server takes seconds per request, two requests would exceed the renew deadline.
        """
        spec = self._lease["spec"]
        body = dict(self._lease, spec=self._make_spec(spec["acquireTime"], now, spec["leaseTransitions"]))
        try:
            return self._write("PUT", self._path, body) is True
        except ObjectNotFoundError:
            return False

    def _has_lapsed(self, lease: dict[str, Any]) -> bool:
        """True if this process has seen no renewal for the whole duration of the lease."""
        version = lease["metadata"]["resourceVersion"]
        if version != self._seen_version[0]:
            self._lease = lease
            self._seen_version = (version, time.monotonic())
            return False
        return self._compute_seconds_to_lapse() <= 0

    def _compute_seconds_to_lapse(self) -> float:
        """Return the seconds until the other process's lease lapses, if it is not renewed."""
        duration = float(self._lease["spec"].get("leaseDurationSeconds") or self._times.lease)
        return max(0.0, self._seen_version[1] + duration - time.monotonic())

    def _write(self, method: str, path: str, body: dict[str, Any]) -> bool | None:
        """Write the lease. Return True, or None after a conflict. Raises BackendError."""
        # Read the clock before the request, because other processes may see the renewal before the response arrives.
        self._attempted_at = time.monotonic()
        try:
            self._lease = self._session.request(method, path, body=body, timeout=_TIMEOUT)
        except ObjectConflictError:
            return None
        return True

    def _make_spec(self, acquired_at: str, renewed_at: str, transitions: int) -> dict[str, Any]:
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": int(self._times.lease),
            "acquireTime": acquired_at,
            "renewTime": renewed_at,
            "leaseTransitions": transitions,
        }


def _format_now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
