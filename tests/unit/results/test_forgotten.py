"""What stands in the backend when nobody remembers what was written."""

from __future__ import annotations

from dsf import keys
from tests.integration.results.bed import Bed


def test_an_edited_score_that_has_expired_goes(bed: Bed) -> None:
    bed.add()
    bed.cycle()
    bed.write()
    assert bed.backend.scores("c1", "score-of-s1") == {"a": 1, "b": 2}
    # Somebody edits it, and before the writer comes to it the score expires.
    bed.writes.touch("c1", "s1", forget_written=True)
    bed.now += 1000
    bed.write()
    assert bed.backend.objects == {}
    assert bed.client.exists(keys.WRITTEN, keys.WRITES) == 0


def test_a_suspended_scorer_is_not_renewed_for_ever(bed: Bed) -> None:
    failing = {"failure_threshold": 1, "behavior": "Value", "value": -9}
    bed.add(when_failing=failing)
    bed.cycle()
    bed.cycle(outcome="error")
    bed.write()
    assert bed.backend.scores("c1", "score-of-s1") == {"a": -9, "b": -9}
    bed.add(when_failing=failing, suspended=True)
    for _ in range(6):
        bed.now += 100
        bed.write()
    assert bed.backend.objects == {}


def test_a_scorer_that_goes_leaves_the_object_of_the_one_that_took_its_place(bed: Bed) -> None:
    bed.add("c1", "old", score_name="cpu")
    bed.cycle("c1", "old")
    bed.write()
    # The new one is quicker than the end of the old one.
    bed.add("c1", "new", score_name="cpu")
    bed.cycle("c1", "new", results=[({"node": "a"}, 7.0)])
    bed.write()
    bed.registry.remove_scorer("old")
    bed.client.hdel(keys.ENTRIES, keys.pair("c1", "old"))
    bed.writes.touch("c1", "old")
    bed.write()
    assert bed.backend.scores("c1", "cpu") == {"a": 7}
    assert bed.client.hkeys(keys.WRITTEN) == ["c1/new"]
    bed.client.hdel(keys.ENTRIES, keys.pair("c1", "new"))
    bed.registry.remove_scorer("new")
    bed.writes.touch("c1", "new")
    bed.write()
    assert bed.backend.objects == {}
