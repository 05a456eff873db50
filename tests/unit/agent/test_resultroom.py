"""Shares of the memory for last results."""

from __future__ import annotations

from dsf.agent.resultroom import ResultRoom
from dsf.api.scoringresponse import ScoringResult

RESULTS = [ScoringResult({"node": "x" * 100}, 1.0)] * 100
#: Estimated bytes of RESULTS.
SIZE = 100_000


def test_namespace_with_many_results_leaves_room_for_others() -> None:
    namespaces = {f"a{number}": "team-a" for number in range(20)} | {"own": "", "b": "team-b"}
    room = ResultRoom(lambda: namespaces, 10 * SIZE)
    assert [room.take(f"a{number}", RESULTS) for number in range(20)] == [True] * 5 + [False] * 15
    assert room.take("b", RESULTS)
    assert [room.take("own", RESULTS * count) for count in (5, 4)] == [False, True]


def test_new_results_replace_the_last_ones() -> None:
    room = ResultRoom(lambda: {"a": ""}, SIZE)
    assert room.take("a", RESULTS)
    assert room.take("a", RESULTS)
    # The scorer has no results after those without room.
    assert not room.take("a", RESULTS * 2)
    assert room.take("a", RESULTS)


def test_namespace_alone_on_a_cluster_has_all_the_room() -> None:
    room = ResultRoom(lambda: {"a": "team-a", "b": "team-a"}, 10 * SIZE)
    assert room.take("a", RESULTS * 9)
    assert not room.take("b", RESULTS * 2)
    assert room.take("b", RESULTS)


def test_room_of_a_removed_scorer_is_free() -> None:
    namespaces = {"a": "", "b": ""}
    room = ResultRoom(lambda: namespaces, SIZE)
    assert room.take("a", RESULTS)
    assert not room.take("b", RESULTS)
    del namespaces["a"]
    assert room.take("b", RESULTS)
