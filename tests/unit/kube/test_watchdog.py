"""The deadline of a leader that cannot renew its lease."""

from __future__ import annotations

import threading
import time
from unittest.mock import Mock

import pytest

from dsf.kube import leader
from dsf.kube.leader import LeaderElector
from dsf.kube.session import Session
from tests.support.wait import wait_for


@pytest.fixture
def lost() -> list[bool]:
    return []


@pytest.fixture
def elector(lost: list[bool], monkeypatch: pytest.MonkeyPatch) -> LeaderElector:
    """Return a leader that is not started and has not renewed its lease for a long time."""
    monkeypatch.setattr(leader, "_WATCHDOG_SECONDS", 0.01)
    elector = LeaderElector(Mock(spec=Session), "hub", on_started=lambda: None, on_lease_lost=lambda: lost.append(True))
    elector._is_leading, elector._renewed_at = True, time.monotonic() - 100
    return elector


def test_lease_is_lost_at_the_deadline(elector: LeaderElector, lost: list[bool]) -> None:
    elector._watch_deadline()
    assert (elector.is_leading, lost) == (False, [True])


def test_last_moment_renewal_counts(elector: LeaderElector, lost: list[bool]) -> None:
    entered: list[bool] = []

    class Renewed:
        """A lock that a renewal has just released."""

        def __enter__(self) -> None:
            elector._renewed_at = time.monotonic()
            entered.append(True)

        def __exit__(self, *_: object) -> None:
            elector._stop.set()

    elector._lock = Renewed()  # type: ignore[assignment]
    watchdog = threading.Thread(target=elector._watch_deadline, daemon=True)
    watchdog.start()
    wait_for(lambda: entered)
    watchdog.join(30)
    assert (elector.is_leading, lost) == (True, [])
