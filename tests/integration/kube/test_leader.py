"""Leader election between processes, on a Lease of a real API server."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dsf.errors import BackendError
from dsf.kube.leader import LEASE_NAME, LeaderElector, Times
from dsf.kube.resources import LEASES
from dsf.kube.session import Session
from tests.support.apirelay import ApiServerRelay
from tests.support.child import Child, stopped
from tests.support.controlplane import ControlPlane
from tests.support.wait import wait_for

FAST = Times(lease=3.0, renew_deadline=2.0, retry=0.3)
#: Times for candidates that must not lose a lease because this process pauses for a moment.
CALM = Times(lease=60.0, renew_deadline=40.0, retry=0.3)
#: Messages that a candidate logs; "still-leading" must never occur.
_SAID = {"campaigning", "leading", "lost", "handing", "still-leading", "ended"}
_ROOT = Path(__file__).parents[3]


class Candidate:
    """A process of `candidate.py`, and its output."""

    def __init__(
        self, plane: ControlPlane, namespace: str, identity: str, offset: float, kubeconfig: Path | None
    ) -> None:
        command = [sys.executable, str(Path(__file__).with_name("candidate.py"))]
        arguments = [str(kubeconfig or plane.kubeconfig), namespace, identity, str(offset)]
        log = plane.dir / f"candidate-{namespace}-{identity}.log"
        self.process = Child([*command, *arguments], log, {"PYTHONPATH": str(_ROOT)})

    def when(self, state: str, timeout: float = 20.0) -> float:
        """Return the time of the first event of this kind."""
        return wait_for(lambda: self._times().get(state), timeout, f"{state!r} in {self.process.log}")

    def has_logged(self, state: str) -> bool:
        return state in self._times()

    def _times(self) -> dict[str, float]:
        lines = [line.split() for line in self.process.log.read_text().splitlines()]
        times: dict[str, float] = {}
        for fields in lines:
            if len(fields) == 2 and fields[0] in _SAID:
                times.setdefault(fields[0], float(fields[1]))
        return times


@pytest.fixture
def candidates(request: pytest.FixtureRequest) -> Iterator[Callable[..., Candidate]]:
    started: list[Candidate] = []

    def start(
        plane: ControlPlane, namespace: str, identity: str, offset: float = 0.0, kubeconfig: Path | None = None
    ) -> Candidate:
        started.append(Candidate(plane, namespace, identity, offset, kubeconfig))
        return started[-1]

    yield start
    for candidate in started:
        candidate.process.kill()


def _lease(session: Session, namespace: str) -> dict[str, Any]:
    spec: dict[str, Any] = session.get(LEASES.path(namespace, LEASE_NAME))["spec"]
    return spec


def _renewed(session: Session, namespace: str) -> float:
    """When the lease was renewed, by the clock of time.monotonic()."""
    return datetime.fromisoformat(_lease(session, namespace)["renewTime"]).timestamp() - time.time() + time.monotonic()


def test_leader_election_takes_over_despite_clock_differences(
    control_plane: ControlPlane, session: Session, candidates: Callable[..., Candidate]
) -> None:
    namespace = control_plane.namespace()
    first = candidates(control_plane, namespace, "first")
    first.when("leading")
    # To a clock 20 s ahead the lease seems expired, to one 20 s behind it seems never to expire.
    ahead = candidates(control_plane, namespace, "ahead", 20.0)
    ahead.when("campaigning")
    first.process.kill()
    lapses = _renewed(session, namespace) + _lease(session, namespace)["leaseDurationSeconds"]
    took_over_after = ahead.when("leading", 25.0)
    assert lapses - 0.5 < took_over_after, "not before the lease lapsed"
    assert _lease(session, namespace)["leaseTransitions"] == 1

    behind = candidates(control_plane, namespace, "behind", -20.0)
    behind.when("campaigning")
    with stopped(behind.process):
        ahead.process.signal(signal.SIGTERM)
        assert ahead.process.wait() == 0
        assert _lease(session, namespace)["holderIdentity"] == "", "it hands the lease back"
    behind.when("leading")
    # The candidate stopped leading before it handed the lease over, so the two never led together.
    assert ahead.when("handing") < behind.when("leading")
    assert not ahead.has_logged("still-leading")
    assert ahead.has_logged("ended")
    assert not ahead.has_logged("lost")
    assert _lease(session, namespace)["holderIdentity"] == "behind"


def test_leader_without_an_api_server_resigns_before_its_lease_lapses(
    control_plane: ControlPlane, session: Session, candidates: Callable[..., Candidate]
) -> None:
    def seconds() -> float:
        """From the newest renewal to the loss."""
        namespace = control_plane.namespace()
        with ApiServerRelay(control_plane) as relay:
            first = candidates(control_plane, namespace, "first", kubeconfig=relay.kubeconfig)
            first.when("leading")
            relay.cut()
            renewed = _renewed(session, namespace)
            lost = first.when("lost")
            assert first.process.wait() == 0, "its release does not wait for the API server"
        return lost - renewed

    duration = seconds()
    assert duration > Times().renew_deadline - 0.5
    if duration >= Times().lease:
        # Repeated if the machine was busy.
        duration = seconds()
    assert duration < Times().lease


def test_leader_times_leave_room_between_resignation_and_takeover() -> None:
    times = Times()
    assert times.renew_deadline + 2 < times.lease
    assert times.lease + times.retry * 1.1 < 14, "a standby takes over within 15 s"
    assert times.retry * 1.1 * 2 < times.renew_deadline, "one renewal may fail"


@contextlib.contextmanager
def _campaigning(session: Session, namespace: str, identity: str, times: Times = CALM) -> Iterator[_Elector]:
    elector = _Elector(session, namespace, identity, times)
    elector.start()
    try:
        yield elector
    finally:
        elector.release()


class _Elector(LeaderElector):
    def __init__(self, session: Session, namespace: str, identity: str, times: Times) -> None:
        self.started, self.lost = 0, threading.Event()
        calls = {"on_started": self._count, "on_lease_lost": self.lost.set}
        super().__init__(session, namespace, **calls, identity=identity, times=times)

    def _count(self) -> None:
        self.started += 1


@pytest.mark.parametrize("program", ["kube-apiserver", "etcd"])
def test_stalled_server_ends_leadership_in_time_despite_a_late_response(
    control_plane: ControlPlane, program: str
) -> None:
    # Up to three times, because on a busy machine it is late, or lost before the stall.
    latest = FAST.renew_deadline + 0.5
    assert any(1 < _seconds_to_loss(control_plane, program) < latest for _ in range(3))


def _seconds_to_loss(plane: ControlPlane, program: str) -> float:
    """Measure the time from the stall of a server until its leader resigns, and check the state after that."""
    namespace = plane.namespace()
    stalls, waited = threading.Event(), []
    with contextlib.closing(plane.session()) as session:
        request: Callable[..., Any] = session.request

        def slowly(*arguments: Any, **options: Any) -> Any:
            try:
                return request(*arguments, **options)
            finally:
                if stalls.is_set():
                    waited.append(first.lost.wait(60))

        session.request = slowly  # type: ignore[method-assign]
        with _campaigning(session, namespace, "first", FAST) as first:
            wait_for(lambda: first.is_leading or first.lost.is_set())
            began = time.monotonic()
            stalls.set()
            with plane.paused(program):
                # No request ends before the loss: the watchdog does not wait for one in flight.
                assert first.lost.wait(30)
                duration = time.monotonic() - began
                assert not first.is_leading
            assert all(waited)
            with _campaigning(session, namespace, "second", FAST) as second:
                wait_for(lambda: second.is_leading, 10)
                assert not first.is_leading
                assert first.started == 1
    return duration


def test_lease_renewal_is_one_request(
    control_plane: ControlPlane, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    namespace, request_methods = control_plane.namespace(), []
    request: Callable[..., Any] = session.request

    def counting(method: str, path: str, **options: Any) -> Any:
        request_methods.append(method)
        return request(method, path, **options)

    monkeypatch.setattr(session, "request", counting)
    with _campaigning(session, namespace, "first") as first:
        wait_for(lambda: first.is_leading)
        request_methods.clear()
        wait_for(lambda: len(request_methods) >= 3, 5)
        assert set(request_methods) == {"PUT"}, "two that take seconds each would not fit into the deadline"
        # A lease that somebody else changed is read first.
        control_plane.kubectl("annotate", "lease", LEASE_NAME, "-n", namespace, "note=mine")
        wait_for(lambda: "GET" in request_methods, 5)
        assert first.is_leading
    assert session.get(LEASES.path(namespace, LEASE_NAME))["metadata"]["annotations"] == {"note": "mine"}


def test_leader_is_unique_among_many_candidates(control_plane: ControlPlane) -> None:
    namespace, lost = control_plane.namespace(), threading.Event()
    started: list[str] = []
    with contextlib.ExitStack() as stack:
        electors = [
            LeaderElector(control_plane.session(), namespace, on_started=on_started, on_lease_lost=lost.set, times=CALM)
            for on_started in [partial(started.append, str(number)) for number in range(4)]
        ]
        for elector in electors:
            elector.start()
            stack.callback(elector.stop)
        for number in range(1, 4):
            # A leader leads before anybody is notified.
            wait_for(lambda number=number: len(started) == number, 10)
            (leader,) = [elector for elector in electors if elector.is_leading]
            leader.stop()
            assert not leader.is_leading
            electors.remove(leader)
        # The last one may lead already.
        led = list(started)
        assert len(set(led)) == len(led) >= 3
        assert not lost.is_set()


def test_lease_taken_by_a_thief_is_lost_and_not_released(control_plane: ControlPlane, session: Session) -> None:
    namespace = control_plane.namespace()
    with _campaigning(session, namespace, "first") as first:
        wait_for(lambda: first.is_leading)
        session.merge(LEASES.path(namespace, LEASE_NAME), {"spec": {"holderIdentity": "thief"}})
        assert first.lost.wait(30)
    assert _lease(session, namespace)["holderIdentity"] == "thief", "what is not ours is not released"


def test_deleted_or_emptied_lease_is_acquired_again(control_plane: ControlPlane, session: Session) -> None:
    namespace = control_plane.namespace()
    with _campaigning(session, namespace, "first") as first:
        wait_for(lambda: first.is_leading)
        session.delete(LEASES.path(namespace, LEASE_NAME))
        wait_for(lambda: _holder(session, namespace) == "first", 3)
        session.merge(LEASES.path(namespace, LEASE_NAME), {"spec": None})
        wait_for(lambda: _holder(session, namespace) == "first", 3)
        assert first.started == 1
    assert _holder(session, namespace) == "", "it is released"


def test_missing_lease_permission_is_logged_and_campaigning_continues(control_plane: ControlPlane) -> None:
    namespace = control_plane.namespace()
    limited = control_plane.service_account(namespace, "limited", [])
    rule = {"apiGroups": [LEASES.group], "resources": [LEASES.plural], "verbs": ["get", "create", "update"]}
    with (
        contextlib.closing(control_plane.session(limited)) as session,
        _campaigning(session, namespace, "first") as first,
    ):
        wait_for(lambda: 'cannot get resource "leases"' in first._logged_error)
        control_plane.set_rules(namespace, "limited", [rule])
        wait_for(lambda: first.is_leading, 10)


def _holder(session: Session, namespace: str) -> str | None:
    with contextlib.suppress(BackendError):
        holder: str | None = _lease(session, namespace).get("holderIdentity")
        return holder
    return None
