"""Shares of the memory for last results."""

from __future__ import annotations

from dsf.agent.resultmemory import ResultMemory
from dsf.api.scoringresponse import ScoringResult

RESULTS = [ScoringResult({"node": "x" * 100}, 1.0)] * 100
#: Estimated bytes of RESULTS.
SIZE = 100_000


def test_namespace_with_many_results_leaves_room_for_others() -> None:
    namespaces = {f"a{number}": "team-a" for number in range(20)} | {"own": "", "b": "team-b"}
    memory = ResultMemory(lambda: namespaces, 10 * SIZE)
    assert [memory.reserve(f"a{number}", RESULTS) for number in range(20)] == [True] * 5 + [False] * 15
    assert memory.reserve("b", RESULTS)
    assert [memory.reserve("own", RESULTS * count) for count in (5, 4)] == [False, True]


def test_new_results_replace_the_last_ones() -> None:
    memory = ResultMemory(lambda: {"a": ""}, SIZE)
    assert memory.reserve("a", RESULTS)
    assert memory.reserve("a", RESULTS)
    # The scorer has none after results without room.
    assert not memory.reserve("a", RESULTS * 2)
    assert memory.reserve("a", RESULTS)


def test_namespace_alone_on_a_cluster_has_all_the_room() -> None:
    memory = ResultMemory(lambda: {"a": "team-a", "b": "team-a"}, 10 * SIZE)
    assert memory.reserve("a", RESULTS * 9)
    assert not memory.reserve("b", RESULTS * 2)
    assert memory.reserve("b", RESULTS)


def test_room_of_a_removed_scorer_is_free() -> None:
    namespaces = {"a": "", "b": ""}
    memory = ResultMemory(lambda: namespaces, SIZE)
    assert memory.reserve("a", RESULTS)
    assert not memory.reserve("b", RESULTS)
    del namespaces["a"]
    assert memory.reserve("b", RESULTS)
