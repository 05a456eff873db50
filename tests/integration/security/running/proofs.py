"""Proofs that a fleet works, and that a thief's messages are refused."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator

import redis

from dsf.reasons import FailureReason
from dsf.store.pairs import Pairs
from tests.integration.security.fleet import CLUSTERS, SCORER, Fleet


def works(fleet: Fleet, *clusters: str) -> None:
    """A whole cycle succeeds."""
    for cluster in clusters:
        fleet.until(lambda c=cluster: _cycle(fleet, c) == "ok", f"a good cycle of {cluster}", 20)


def failures(fleet: Fleet, cluster: str) -> dict[tuple[str, str], int]:
    """Count failures by stage and reason, except for requests without time: a second may be too short."""
    late = {
        (stage, reason) for stage in ("fetch", "score") for reason in (FailureReason.DEADLINE, FailureReason.TIMEOUT)
    }
    return {kind: number for kind, number in fleet.state(cluster).read_error_counts().items() if kind not in late}


def _cycle(fleet: Fleet, cluster: str) -> str:
    """Run another cycle and return its outcome; `skipped` if one was running. A tick may be lost with a connection."""
    run = fleet.tick(cluster)

    def run_outcome() -> str:
        past = Pairs(fleet.admin).read_history(cluster, SCORER)
        return next((cycle.outcome for cycle in past if cycle.run == run), "")

    # No longer, whatever the machine does: the next one may end at once.
    deadline = time.monotonic() + 3
    while not (outcome := run_outcome()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return outcome


@contextlib.contextmanager
def undisturbed(fleet: Fleet) -> Iterator[None]:
    """Suspend the agent of c1 while the context is open; its connections stay.

    A thief shares its mailbox: results that the hub has not taken yet are replaced by newer results of the agent.
    """
    agent = fleet.process("agent-c1")
    agent.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        agent.signal(signal.SIGCONT)


@contextlib.contextmanager
def counted(fleet: Fleet, reason: str, number: int = 1) -> Iterator[redis.Redis]:
    """A thief with the credential of c1, whose actions must be refused and counted, and must not result in a score."""
    before = fleet.rejected(reason)
    with undisturbed(fleet):
        yield fleet.spoke("c1")
        fleet.until(lambda: fleet.rejected(reason) == before + number, f"{number} refused as {reason}")
    for cluster in CLUSTERS:
        score = fleet.state(cluster).score
        assert score is not None
        assert [name for name, _ in score.items] == ["n1"]
