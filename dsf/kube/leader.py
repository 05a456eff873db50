"""Leader election among hub controllers, on a Lease: one works, the others wait.

Lease of 12 s, renewed every 1.5 s, given up after 9 s without a renewal. Times are measured on
the monotonic clock of this process; clocks of two hubs are never compared, a standby measures how long it saw no
change. A watchdog thread enforces the deadline, because a request to a stalled API server may outlast it.
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

#: Seconds of one request: connect, read. Well below the renew deadline, to survive one stalled request.
_TIMEOUT: Final = (2.0, 4.0)
#: Seconds between two watchdog checks.
_WATCHDOG: Final = 0.25


@dataclass(frozen=True)
class Times:
    """Seconds. The holder stops working `renew_deadline` after its last renewal, before others may take the lease."""

    #: With the polls of a standby and a new start, the controller is back within 15 s of a kill.
    lease: float = 12.0
    renew_deadline: float = 9.0
    #: Shorter than the 2 s of other controllers: with these, plus one second in which the old leader ends its work, a
    #: takeover would take more than 3 s.
    retry: float = 1.5


LEASE_NAME: Final = "dynamic-scoring-hub"
_TIMES: Final = Times()


class LeaderElector:
    """A hub's candidacy for the Lease in the hub's namespace, in a separate thread.

    `on_started` is called in that thread when this process leads and must return soon; `on_lost` when it lost the lease
    involuntarily, after which it must not write any more: the caller ends the process. There are then
    `lease - renew_deadline` seconds left until another process may start.
    """

    def __init__(
        self,
        session: Session,
        namespace: str,
        *,
        on_started: Callable[[], None],
        on_lost: Callable[[], None],
        identity: str = "",
        times: Times = _TIMES,
    ) -> None:
        """The `session` is closed by `stop`."""
        self._session = session
        # A restarted container keeps its host name; this id is unique to the process.
        self._identity = identity or f"{socket.gethostname()}_{uuid.uuid4()}"
        self._namespace = namespace
        self._path = LEASES.path(namespace, LEASE_NAME)
        self._on_started, self._on_lost = on_started, on_lost
        self._times = times
        self._stop = threading.Event()
        # Guards the leading state, which watchdog and campaign both change.
        self._lock = threading.Lock()
        self._is_leading = self._is_lost = False
        #: Monotonic time of the newest renewal that succeeded, and of the newest attempt.
        self._renewed = self._wrote = 0.0
        #: Last version of the lease held by another process, and when (monotonic) it was first seen.
        self._seen: tuple[str, float] = ("", 0.0)
        #: The lease as last read or written.
        self._lease: dict[str, Any] = {}
        self._logged = ""
        self._thread = SupervisedThread(self._campaign, "leader")
        self._watchdog = SupervisedThread(self._watch_deadline, "leader-watchdog")

    @property
    def leading(self) -> bool:
        """True if this process holds the lease."""
        return self._is_leading

    @property
    def campaigning(self) -> bool:
        """True if threads run."""
        return self._thread.is_alive() and self._watchdog.is_alive()

    def start(self) -> None:
        """Start to campaign."""
        self._thread.start()
        self._watchdog.start()

    def stop(self) -> None:
        """Release the lease. Call it after all work has stopped."""
        self.release()
        self._session.close()

    def release(self) -> None:
        """Stop campaigning and release the lease, so that another process starts at once.

        Call it after all work has stopped. An unresponsive API server delays it by a few seconds.
        """
        self._stop.set()
        self._thread.join(timeout=sum(_TIMEOUT))
        with self._lock:
            self._is_leading = False
        # The check is not `if leading`: the lease may have been acquired during the stop. A lost lease is not
        # released: work may go on.
        if self._is_lost or (self._lease.get("spec") or {}).get("holderIdentity") != self._identity:
            return
        spec = dict(self._lease["spec"], holderIdentity="", leaseDurationSeconds=1, renewTime=_now())
        try:
            self._session.request("PUT", self._path, body=dict(self._lease, spec=spec), timeout=_TIMEOUT)
            log.info("released the lease", lease=LEASE_NAME, identity=self._identity)
        except BackendError as error:
            # The lease then expires.
            log.warning("cannot release the lease", lease=LEASE_NAME, error=str(error))
        self._lease = {}

    def _campaign(self) -> None:
        while not self._stop.is_set():
            pause = self._times.retry * random.uniform(0.9, 1.1)  # noqa: S311
            try:
                holds = self._try()
                self._logged = ""
            except Exception as error:  # noqa: BLE001
                # A Lease with unexpected content must not end campaigning either.
                holds = None
                self._log_error(str(error) if isinstance(error, BackendError) else f"{type(error).__name__}: {error}")
            if holds:
                self._hold(self._wrote)
            elif holds is False:
                self._lose("another one holds it")
                pause = min(pause, self._until_lapse())
            self._stop.wait(pause)

    def _log_error(self, error: str) -> None:
        if error != self._logged:
            self._logged = error
            log.warning("cannot read or write the lease", lease=LEASE_NAME, error=error)

    def _hold(self, since: float) -> None:
        with self._lock:
            # A renewal may succeed after the watchdog gave up; this process then does not lead again.
            if self._stop.is_set():
                return
            self._renewed = since
            was_leading, self._is_leading = self._is_leading, True
        if not was_leading:
            log.info("leading", lease=LEASE_NAME, identity=self._identity)
            self._on_started()

    def _lose(self, why: str, *, if_late: bool = False) -> None:
        with self._lock:
            # Checked again: a renewal may have succeeded since.
            if not self._is_leading or (if_late and not self._is_late()):
                return
            self._is_leading, self._is_lost = False, True
            self._stop.set()
        log.error("lost the lease", lease=LEASE_NAME, identity=self._identity, why=why)
        self._on_lost()

    def _watch_deadline(self) -> None:
        while not self._stop.wait(_WATCHDOG):
            if self._is_late():
                self._lose(f"not renewed for {self._times.renew_deadline:g} s", if_late=True)

    def _is_late(self) -> bool:
        return time.monotonic() - self._renewed > self._times.renew_deadline - _WATCHDOG

    def _try(self) -> bool | None:
        """True: held and renewed. False: held by another process. None: write conflict, read again."""
        now = _now()
        if self._is_leading and self._renew(now):
            return True
        try:
            lease = self._session.request("GET", self._path, timeout=_TIMEOUT)
        except ObjectNotFoundError:
            body = {
                "apiVersion": LEASES.api_version,
                "kind": LEASES.kind,
                "metadata": {"name": LEASE_NAME, "namespace": self._namespace},
                "spec": self._spec(now, now, 0),
            }
            return self._write("POST", LEASES.path(self._namespace), body)
        spec = lease.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        if holder == self._identity:
            spec = self._spec(spec.get("acquireTime") or now, now, spec.get("leaseTransitions") or 0)
            return self._write("PUT", self._path, dict(lease, spec=spec))
        if holder and not self._has_lapsed(lease):
            return False
        transitions = (spec.get("leaseTransitions") or 0) + 1
        return self._write("PUT", self._path, dict(lease, spec=self._spec(now, now, transitions)))

    def _renew(self, now: str) -> bool:
        """Renew a held lease in one request; False when it has changed since and has to be read.

        With an API server that takes seconds per request, two requests would exceed the renew deadline.
        """
        spec = self._lease["spec"]
        body = dict(self._lease, spec=self._spec(spec["acquireTime"], now, spec["leaseTransitions"]))
        try:
            return self._write("PUT", self._path, body) is True
        except ObjectNotFoundError:
            return False

    def _has_lapsed(self, lease: dict[str, Any]) -> bool:
        """True if the holder has not renewed for a whole lease, as seen from here."""
        version = lease["metadata"]["resourceVersion"]
        if version != self._seen[0]:
            self._lease = lease
            self._seen = (version, time.monotonic())
            return False
        return self._until_lapse() <= 0

    def _until_lapse(self) -> float:
        """Seconds until the other process's lease lapses without a renewal."""
        duration = float(self._lease["spec"].get("leaseDurationSeconds") or self._times.lease)
        return max(0.0, self._seen[1] + duration - time.monotonic())

    def _write(self, method: str, path: str, body: dict[str, Any]) -> bool | None:
        # Taken before the request: the earliest moment at which other processes start to count.
        self._wrote = time.monotonic()
        try:
            self._lease = self._session.request(method, path, body=body, timeout=_TIMEOUT)
        except ObjectConflictError:
            return None
        return True

    def _spec(self, acquired: str, renewed: str, transitions: int) -> dict[str, Any]:
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": int(self._times.lease),
            "acquireTime": acquired,
            "renewTime": renewed,
            "leaseTransitions": transitions,
        }


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
