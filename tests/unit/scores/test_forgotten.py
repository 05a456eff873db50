"""Objects whose record or scorer was removed."""

from __future__ import annotations

from dsf import keys
from tests.integration.results.bed import ResultsHarness


def test_edited_object_of_an_expired_score_is_deleted(bed: ResultsHarness) -> None:
    writer = bed.writer()
    bed.cycle()
    bed.write(writer)
    assert bed.backend.scores("c1", "score-of-s1") == {"a": 1, "b": 2}
    # The object is edited, and its score expires before the writer checks it.
    writer.handle_object_change("c1", "score-of-s1")
    bed.now += 1000
    bed.write(writer)
    assert bed.backend.objects == {}
    assert bed.client.exists(keys.UNWRITTEN, keys.WRITES) == 0


def test_failing_value_of_a_suspended_scorer_is_not_renewed_for_ever(bed: ResultsHarness) -> None:
    failing = {"failure_threshold": 1, "behavior": "Value", "value": -9}
    bed.add(when_failing=failing)
    writer = bed.writer()
    bed.cycle()
    bed.cycle(outcome="error")
    bed.write(writer)
    assert bed.backend.scores("c1", "score-of-s1") == {"a": -9, "b": -9}
    bed.add(when_failing=failing, suspended=True)
    writer.check([("c1", "s1")])
    for _ in range(6):
        bed.now += 100
        bed.write(writer)
    assert bed.backend.objects == {}


def test_failing_value_is_renewed_while_cycles_fail(bed: ResultsHarness) -> None:
    bed.add(when_failing={"failure_threshold": 1, "behavior": "Value", "value": -9})
    writer = bed.writer()
    bed.cycle()
    bed.cycle(outcome="error")
    for _ in range(10):
        bed.write(writer)
        assert bed.backend.scores("c1", "score-of-s1") == {"a": -9, "b": -9}
        bed.now += 150


def test_removed_scorer_leaves_the_object_of_its_successor(bed: ResultsHarness) -> None:
    writer = bed.writer()
    bed.add("c1", "old", score_name="cpu")
    bed.cycle("c1", "old")
    bed.write(writer)
    # The new scorer starts before the old one is removed.
    bed.registry.remove_scorer("old")
    bed.add("c1", "new", score_name="cpu")
    bed.cycle("c1", "new", results=[({"node": "a"}, 7.0)])
    bed.write(writer)
    bed.client.hdel(keys.ENTRIES, keys.pair("c1", "old"))
    writer.check([("c1", "old")])
    bed.write(writer)
    assert bed.backend.scores("c1", "cpu") == {"a": 7}
    bed.client.hdel(keys.ENTRIES, keys.pair("c1", "new"))
    bed.registry.remove_scorer("new")
    writer.check([("c1", "new")])
    bed.write(writer)
    assert bed.backend.objects == {}
