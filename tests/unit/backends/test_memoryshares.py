"""Shares of the hub's memory for users' objects."""

from __future__ import annotations

import pytest

from dsf.backends.kube_kinds import reduce_user_object
from dsf.backends.memoryshares import MemoryShares
from dsf.backends.protocol import PROBLEM_FIELD


@pytest.fixture
def shares() -> MemoryShares:
    return MemoryShares()


def test_objects_are_admitted_up_to_the_limit(shares: MemoryShares) -> None:
    assert shares.admit("a", "tenant", 50_000, 100_000)
    assert not shares.admit("b", "tenant", 50_000, 100_000)
    assert shares.admit("b", "neighbour", 50_000, 100_000)


def test_changed_object_replaces_its_earlier_state(shares: MemoryShares) -> None:
    assert shares.admit("a", "tenant", 90_000, 100_000)
    assert shares.admit("a", "tenant", 10_000, 100_000)
    assert shares.admit("b", "tenant", 80_000, 100_000)
    assert not shares.admit("a", "tenant", 90_000, 100_000)
    # The refused state takes no memory.
    assert shares.admit("c", "tenant", 10_000, 100_000)


def test_deleted_object_takes_nothing(shares: MemoryShares) -> None:
    assert shares.admit("a", "tenant", 90_000, 100_000)
    shares.release("a")
    shares.release("unknown")
    assert shares.admit("b", "tenant", 90_000, 100_000)


def test_object_without_memory_loses_its_spec() -> None:
    manifest = {"metadata": {"name": "a", "finalizers": ["example.com/a"]}, "spec": {"configURL": "http://a"}}
    reduced = reduce_user_object(manifest, 100_000, lambda size: f"{size > 0}")
    assert reduced == {"metadata": {"name": "a"}, "spec": {}, PROBLEM_FIELD: "True"}


def test_object_that_is_too_large_alone_takes_nothing() -> None:
    sizes: list[int] = []

    def admit(size: int) -> str:
        sizes.append(size)
        return ""

    reduced = reduce_user_object({"metadata": {"name": "a"}, "spec": {"query": "q" * 1000}}, 500, admit)
    assert sizes == [0]
    assert reduced["spec"] == {}
