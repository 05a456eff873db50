"""Leader election on a Lease: one hub controller works, the others wait.

Times as in client-go: lease 15 s, renewed every 2 s, given up after 10 s without a renewal. All waiting is measured
on the monotonic clock of this process; the clocks of two hubs are never compared, a standby times how long it saw no
change. A watchdog thread keeps the deadline, because a request to a stalled API server may outlast it.
"""

from __future__ import annotations

import datetime
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import dsf.log
from dsf.errors import BackendError, ObjectConflictError, ObjectNotFoundError
from dsf.kube.resources import LEASES
from dsf.kube.session import Session

log = dsf.log.get(__name__)


@dataclass(frozen=True)
class Times:
    """Seconds. The holder stops working `renew_deadline` after its last renewal, before others may take the lease."""

    lease: float = 15.0
    renew_deadline: float = 10.0
    retry: float = 2.0


class LeaderElector:
    """Campaigns for one Lease in a thread of its own.

    `on_started` is called in that thread when this process leads and must return soon; `on_lost` when it lost the lease
    against its will, after which nothing may be written any more: the caller ends the process.
    """

    def __init__(
        self,
        session: Session,
        namespace: str,
        name: str,
        identity: str,
        *,
        on_started: Callable[[], None],
        on_lost: Callable[[], None],
        times: Times | None = None,
    ) -> None:
        self._session = session
        self._namespace, self._name, self._identity = namespace, name, identity
        self._path = LEASES.path(namespace, name)
        self._on_started, self._on_lost = on_started, on_lost
        self._times = times or Times()
        self._stop = threading.Event()
        self._leading = threading.Event()
        #: The last lease seen of another holder, and when (monotonic) it was first seen so.
        self._seen: tuple[str, float] = ("", 0.0)
        self._lease: dict[str, Any] | None = None
        self._renewed = 0.0
        self._thread = threading.Thread(target=self._run, name="leader", daemon=True)
        self._watchdog = threading.Thread(target=self._watch_deadline, name="leader-watchdog", daemon=True)

    @property
    def leading(self) -> bool:
        """Whether this process holds the lease."""
        return self._leading.is_set()

    def start(self) -> None:
        """Begin to campaign."""
        self._thread.start()
        self._watchdog.start()

    def release(self) -> None:
        """Stop campaigning and hand the lease back. Call it after all work has stopped."""
        self._stop.set()
        self._thread.join(timeout=self._times.renew_deadline)
        if self._leading.is_set() and self._lease is not None:
            self._leading.clear()
            spec = dict(self._lease["spec"], holderIdentity="", leaseDurationSeconds=1, renewTime=_now())
            try:
                self._session.replace(self._path, dict(self._lease, spec=spec))
            except BackendError as error:
                # The lease then simply runs out.
                log.warning("cannot release the lease", lease=self._name, error=str(error))

    def _run(self) -> None:
        said = ""
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                held = self._try()
                said = ""
            except BackendError as error:
                held = None
                if str(error) != said:
                    said = str(error)
                    log.warning("cannot reach the lease", lease=self._name, error=said)
            if held:
                # Counted from before the request: that is the latest moment at which others started to count.
                self._renewed = began
                if not self._leading.is_set():
                    log.info("leading", lease=self._name, identity=self._identity)
                    self._leading.set()
                    self._on_started()
            elif held is False and self._leading.is_set():
                self._lose("another one holds it")
            self._stop.wait(self._times.retry * random.uniform(0.9, 1.1))  # noqa: S311

    def _watch_deadline(self) -> None:
        while not self._stop.wait(0.25):
            if self._leading.is_set() and time.monotonic() - self._renewed > self._times.renew_deadline:
                self._lose(f"not renewed for {self._times.renew_deadline:g} s")

    def _lose(self, why: str) -> None:
        self._leading.clear()
        self._stop.set()
        log.error("lost the lease", lease=self._name, identity=self._identity, why=why)
        self._on_lost()

    def _try(self) -> bool | None:
        """True: held and renewed. False: another one holds it. None: somebody was faster, look again."""
        now = _now()
        try:
            lease = self._session.request("GET", self._path, timeout=(2.0, 4.0))
        except ObjectNotFoundError:
            body = {
                "apiVersion": LEASES.api_version,
                "kind": LEASES.kind,
                "metadata": {"name": self._name, "namespace": self._namespace},
                "spec": self._spec(now, now, 0),
            }
            return self._write("POST", LEASES.path(self._namespace), body)
        spec = lease.get("spec", {})
        holder = spec.get("holderIdentity") or ""
        if holder == self._identity:
            spec = self._spec(spec.get("acquireTime") or now, now, spec.get("leaseTransitions") or 0)
            return self._write("PUT", self._path, dict(lease, spec=spec))
        if holder and not self._lapsed(lease):
            return False
        transitions = (spec.get("leaseTransitions") or 0) + 1
        return self._write("PUT", self._path, dict(lease, spec=self._spec(now, now, transitions)))

    def _lapsed(self, lease: dict[str, Any]) -> bool:
        """Whether the holder has not renewed for a whole lease, as seen from here."""
        version = lease["metadata"]["resourceVersion"]
        if version != self._seen[0]:
            self._seen = (version, time.monotonic())
            return False
        duration = lease["spec"].get("leaseDurationSeconds") or self._times.lease
        return time.monotonic() - self._seen[1] > float(duration)

    def _write(self, method: str, path: str, body: dict[str, Any]) -> bool | None:
        try:
            self._lease = self._session.request(method, path, body=body, timeout=(2.0, 4.0))
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
