"""Results that arrive twice, late, out of order or unrequested."""

from __future__ import annotations

from dsf import keys, messages
from tests.integration.results.bed import ResultsHarness, handle
from tests.integration.results.books import books


def test_run_that_outlives_the_skip_of_the_next_still_counts(bed: ResultsHarness) -> None:
    slow = bed.open()
    bed.now += 30
    skipped = bed.open()
    assert bed.send(skipped, outcome="skipped", reason="overlap") == "skipped"
    assert bed.send(slow) == "ok"
    score = bed.state().score
    assert score is not None
    assert score.run == slow


def test_repeated_result_changes_no_record(bed: ResultsHarness) -> None:
    for outcome in ("ok", "error", "skipped", "empty"):
        run = bed.open()
        bed.now += 1
        frame = bed.frame(run, outcome=outcome, reason="overlap" if outcome == "skipped" else "")
        assert handle(bed.ingest, frame) == outcome
        before = bed.client.hgetall(keys.pair_key("c1", "s1")), bed.history()
        assert handle(bed.ingest, frame) == "replayed"
        assert (bed.client.hgetall(keys.pair_key("c1", "s1")), bed.history()) == before
    assert bed.rejected() == {"replayed": 4}


def test_late_result_of_an_older_run_only_counts(bed: ResultsHarness) -> None:
    old, bed.now = bed.open(), bed.now + 5
    new = bed.open()
    bed.now += 1
    assert bed.send(new, results=[({"node": "new"}, 1.0)]) == "ok"
    assert bed.send(old, results=[({"node": "old"}, 1.0)]) == "ok"
    assert books(bed) == {"ok": 2}
    state = bed.state()
    assert state.score is not None
    assert (state.score.run, state.last_run) == (new, new)


def test_older_run_sets_the_score_if_the_newer_failed(bed: ResultsHarness) -> None:
    old, bed.now = bed.open(), bed.now + 5
    new = bed.open()
    bed.now += 1
    bed.send(new, outcome="error")
    bed.send(old)
    state = bed.state()
    assert state.score is not None
    assert (state.score.run, state.failing) == (old, 1)


def test_unscheduled_run_counts_as_requested(bed: ResultsHarness) -> None:
    run = messages.make_run_id(bed.now)
    bed.now += 1
    assert bed.send(run) == "ok"
    assert (books(bed), bed.state().scheduled) == ({"ok": 1}, 1)
    assert bed.send(run) == "replayed"
    assert (books(bed), bed.state().scheduled) == ({"ok": 1}, 1)


def test_late_after_lost(bed: ResultsHarness) -> None:
    run = bed.open(deadline=10)
    bed.now += 100
    assert bed.sweep() == [f"c1/s1/{run}"]
    assert (books(bed), bed.state().failing) == ({"lost": 1}, 1)
    bed.news()
    assert bed.send(run) == "late"
    state = bed.state()
    assert books(bed) == {"lost": 1}
    assert state.score is not None
    assert (state.score.run, state.failing, state.failure) == (run, 0, None)
    assert bed.news() == {"s1"}
    assert bed.send(run) == "replayed"
    assert [entry.outcome for entry in bed.history()] == ["lost"]


def test_late_after_lost_does_not_overwrite_a_newer_one(bed: ResultsHarness) -> None:
    lost = bed.open(deadline=10)
    bed.now += 100
    bed.sweep()
    bed.cycle(results=[({"node": "new"}, 5.0)])
    assert bed.send(lost) == "late"
    score = bed.state().score
    assert score is not None
    assert score.items == [("new", 5)]


def test_late_failure_overrides_lost(bed: ResultsHarness) -> None:
    run = bed.open(deadline=10)
    bed.now += 100
    bed.sweep()
    assert bed.send(run, outcome="error", reason="connection_failed") == "late"
    state = bed.state()
    assert state.failure is not None
    assert (state.failure.reason, state.failing, books(bed)) == ("connection_failed", 1, {"lost": 1})
