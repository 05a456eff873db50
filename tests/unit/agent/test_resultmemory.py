"""Shares of the memory for last results."""

from __future__ import annotations

from dsf.agent.resultmemory import ResultMemory
from dsf.api.scoringresponse import ScoringResult

RESULTS = [ScoringResult({"node": "x" * 100}, 1.0)] * 100
#: Estimated bytes of RESULTS.
SIZE = 100_000


def test_namespace_with_many_results_leaves_room_for_others() -> None:
    namespaces = {f"a{number}": "team-a" for number in range(20)} | {"own": "", "b": "team-b"}
    room = ResultMemory(lambda: namespaces, 10 * SIZE)
    assert [room.reserve(f"a{number}", RESULTS) for number in range(20)] == [True] * 5 + [False] * 15
    assert room.reserve("b", RESULTS)
    assert [room.reserve("own", RESULTS * count) for count in (5, 4)] == [False, True]


def test_new_results_replace_the_last_ones() -> None:
    room = ResultMemory(lambda: {"a": ""}, SIZE)
    assert room.reserve("a", RESULTS)
    assert room.reserve("a", RESULTS)
    # The scorer has none after results without room.
    assert not room.reserve("a", RESULTS * 2)
    assert room.reserve("a", RESULTS)


def test_namespace_alone_on_a_cluster_has_all_the_room() -> None:
    room = ResultMemory(lambda: {"a": "team-a", "b": "team-a"}, 10 * SIZE)
    assert room.reserve("a", RESULTS * 9)
    assert not room.reserve("b", RESULTS * 2)
    assert room.reserve("b", RESULTS)


def test_room_of_a_removed_scorer_is_free() -> None:
    namespaces = {"a": "", "b": ""}
    room = ResultMemory(lambda: namespaces, SIZE)
    assert room.reserve("a", RESULTS)
    assert not room.reserve("b", RESULTS)
    del namespaces["a"]
    assert room.reserve("b", RESULTS)
