"""Acquisition of the lease."""

from __future__ import annotations

import copy
import time
from typing import Any, cast

from dsf.kube.leader import LeaderElector
from dsf.kube.session import Session

OTHERS = {
    "metadata": {"resourceVersion": "1"},
    "spec": {"holderIdentity": "other", "leaseDurationSeconds": 15, "leaseTransitions": 2},
}


class Server:
    """A session whose server has one lease."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] = copy.deepcopy(OTHERS)

    def request(self, method: str, path: str, *, body: dict[str, Any] | None = None, **_: object) -> dict[str, Any]:
        if body is not None:
            version = int(self.lease["metadata"]["resourceVersion"]) + 1
            self.lease = copy.deepcopy(body) | {"metadata": {"resourceVersion": str(version)}}
        return copy.deepcopy(self.lease)


def test_lease_is_acquired_after_its_holder_was_silent_for_its_duration() -> None:
    server = Server()
    elector = LeaderElector(
        cast("Session", server), "hub", on_started=lambda: None, on_lease_lost=lambda: None, identity="me"
    )
    assert [elector._try_to_lead(), elector._try_to_lead()] == [False, False]
    version, seen_at = elector._seen_version
    elector._seen_version = version, seen_at - 14
    assert elector._try_to_lead() is False
    assert server.lease == OTHERS
    elector._seen_version = version, time.monotonic() - 16
    assert elector._try_to_lead() is True
    assert (server.lease["spec"]["holderIdentity"], server.lease["spec"]["leaseTransitions"]) == ("me", 3)


def test_released_lease_is_acquired_immediately() -> None:
    server = Server()
    server.lease["spec"]["holderIdentity"] = ""
    elector = LeaderElector(
        cast("Session", server), "hub", on_started=lambda: None, on_lease_lost=lambda: None, identity="me"
    )
    assert elector._try_to_lead() is True
