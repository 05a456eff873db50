"""Ingestion of a single result: every outcome, and the fate of its content."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from dsf import keys
from dsf.fleet.verdict import compute_verdict
from dsf.messages import Result
from dsf.results import ingest as ingest_module
from dsf.store.schedule import ScheduleStore
from tests.integration.results.bed import START, ResultsHarness
from tests.integration.results.books import books


def test_ok_result_is_stored_and_counted(bed: ResultsHarness) -> None:
    run = bed.open()
    bed.now += 2
    assert bed.send(run, timings={"fetch": 0.5, "score": 0.25}, counts={"series": 2}) == "ok"
    state = bed.state()
    assert books(bed) == {"ok": 1}
    assert state.score is not None
    assert state.score.items == [("a", 1), ("b", 2)]
    assert state.score.results == [({"node": "a"}, 1.0), ({"node": "b"}, 2.0)]
    assert (state.score.at, state.score.valid_until) == (START + 2, START + 302)
    assert (state.last_run, state.last_success, state.failing, state.failure) == (run, START + 2, 0, None)
    assert state.read_timings() == {"fetch": (0.5, 1), "score": (0.25, 1)}
    (entry,) = bed.history()
    assert (entry.run, entry.at, entry.outcome) == (run, START, "ok")
    assert entry.counts == {"series": 2, "items": 2, "results": 2}
    assert bed.news() == {"s1"}


def test_first_result_of_a_new_pair_is_ingested_despite_a_cached_registry(bed: ResultsHarness) -> None:
    ingest = bed.ingest
    assert bed.cycle() == "ok"
    bed.add(cluster="c2", scorer="s2")
    bed.ingest = ingest
    assert bed.cycle("c2", "s2") == "ok"
    assert bed.rejected() == {}


def test_empty_result_clears_the_score(bed: ResultsHarness) -> None:
    assert bed.cycle(outcome="empty") == "empty"
    assert books(bed) == {"empty": 1}
    score = bed.state().score
    assert score is not None
    assert score.items == []
    # A result without items is no score, for any reason; each change of the reason is reported.
    assert compute_verdict(bed.state(), bed.now) == "empty"
    bed.news()
    assert bed.cycle() == "ok"
    assert compute_verdict(bed.state(), bed.now) == "ok"
    assert bed.news() == {"s1"}
    assert bed.cycle(results=[({"pod": "no node"}, 3.0)]) == "partial"
    assert compute_verdict(bed.state(), bed.now) == "empty"
    assert bed.news() == {"s1"}


def test_partial_result_is_decided_by_agent_or_hub(bed: ResultsHarness) -> None:
    assert bed.cycle(outcome="partial", refused={"nan": 2}) == "partial"
    assert bed.cycle(results=[({"node": "a"}, 1.0), ({"pod": "no node"}, 3.0)]) == "partial"
    assert books(bed) == {"partial": 2}
    assert bed.state().read_refusal_counts() == {"nan": 2, "empty_dimension": 1}


def test_duplicate_dimension_is_counted_without_an_error(bed: ResultsHarness) -> None:
    results = [({"node": "a", "pod": "x"}, 1.0), ({"node": "a", "pod": "y"}, 7.9), ({"node": "b"}, 1e6)]
    assert bed.cycle(results=results) == "ok"
    state = bed.state()
    assert state.score is not None
    assert state.score.items == [("a", 7), ("b", 100)]
    assert len(state.score.results) == 3
    assert (state.read_refusal_counts(), state.clamped) == ({"duplicate_dimension": 1}, 1)


def test_metrics_only_result_has_no_score_items(bed: ResultsHarness) -> None:
    bed.add(destination="None")
    assert bed.cycle(results=[({"pod": "p"}, 1.5)]) == "ok"
    state = bed.state()
    assert state.score is not None
    assert (state.score.items, state.score.results) == ([], [({"pod": "p"}, 1.5)])
    assert compute_verdict(state, bed.now) == "ok"
    assert bed.client.hlen(keys.WRITES) == 0


def test_error_keeps_the_score_and_the_next_good_cycle_clears_it(bed: ResultsHarness) -> None:
    bed.cycle()
    bed.news()
    assert bed.cycle(outcome="error", stage="score", reason="bad_answer", message="no JSON") == "error"
    state = bed.state()
    assert books(bed) == {"ok": 1, "error": 1}
    assert state.read_error_counts() == {("score", "bad_answer"): 1}
    assert state.failing == 1
    assert state.failure is not None
    assert (state.failure.stage, state.failure.reason, state.failure.message) == ("score", "bad_answer", "no JSON")
    assert state.score is not None
    assert state.last_success == START + 1
    assert bed.news() == {"s1"}
    bed.cycle(outcome="error", stage="score", reason="bad_answer")
    assert (bed.state().failing, bed.news()) == (2, set())
    bed.cycle(outcome="error", stage="fetch", reason="timeout")
    assert (bed.state().failing, bed.news()) == (3, {"s1"})
    bed.cycle()
    assert (bed.state().failing, bed.state().failure, bed.news()) == (0, None, {"s1"})
    bed.cycle()
    assert bed.news() == set()


def test_skipped_result_keeps_the_state(bed: ResultsHarness) -> None:
    bed.cycle(outcome="error")
    assert bed.cycle(outcome="skipped", reason="overlap") == "skipped"
    state = bed.state()
    assert (state.failing, state.read_skip_counts()) == (1, {"overlap": 1})
    assert state.failure is not None
    assert books(bed) == {"error": 1, "skipped": 1}


def test_history_is_bounded(bed: ResultsHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsf.store.runs.HISTORY_LENGTH", 5)
    for _ in range(8):
        bed.cycle()
    assert len(bed.history()) == 5


def test_texts_from_agents_are_truncated(bed: ResultsHarness) -> None:
    for n in range(300):
        bed.cycle(outcome="error", reason=f"made_up_{n}")
        bed.cycle(outcome="partial", refused={f"made_up_{n}": 1, "NOT A WORD": 1})
    assert bed.client.hlen(keys.pair_key("c1", "s1")) <= 210
    assert books(bed) == {"error": 300, "partial": 300}
    assert sum(bed.state().read_error_counts().values()) == 300
    assert bed.state().read_refusal_counts()["other"] > 300


def test_absurd_numbers_do_not_corrupt_the_state(bed: ResultsHarness) -> None:
    assert bed.cycle(timings={"fetch": 1e308, "made up": 1.0}, counts={"n": 10**300, "x" * 99: 1}) == "ok"
    assert bed.cycle(timings={"fetch": 1e308}) == "ok"
    assert bed.state().read_timings() == {"fetch": (2 * 86400.0, 2)}
    assert bed.history()[-1].counts == {"items": 2, "results": 2}


def test_history_rows_are_compact(bed: ResultsHarness) -> None:
    bed.cycle()
    (row,) = bed.client.lrange(keys.history_key("c1", "s1"), 0, -1)
    assert row.split(" ")[1:] == ["", ",,,2", "1.5"]


def test_redis_error_for_one_result_does_not_affect_the_others(bed: ResultsHarness) -> None:
    """More than one call takes. The result of a pair with a broken history is skipped without any effect."""
    bed.add()
    bed.add("c2", "s2")
    bed.client.set(keys.history_key("c2", "s2"), "no list")
    frames = bed.backlog(150)
    failing_run = bed.open("c2", "s2")
    frames.insert(70, bed.frame(failing_run, "c2", "s2"))
    responses = bed.ingest.ingest_frames(frames)
    error = responses.pop(70)
    assert isinstance(error, redis.ResponseError)
    assert str(error).startswith("WRONGTYPE")
    assert responses == ["ok"] * 150
    assert bed.state().count("ok") == 150
    assert bed.state("c2", "s2").count("ok") == 0
    assert bed.client.zrange(keys.OPEN_RUNS, 0, -1) == [keys.run_member("c2", "s2", failing_run)]


@pytest.mark.parametrize("key", [keys.REJECTED, keys.CHANGED, keys.SEQUENCE, keys.HUB_CHANGED, keys.HUB_WAKE])
def test_failed_notification_does_not_ingest_results_again(bed: ResultsHarness, key: str) -> None:
    """Otherwise the whole batch would be ingested again and again."""
    bed.client.delete(key)
    bed.client.set(key, "spoilt")
    frames = [bed.frame(bed.open(), outcome="error"), bed.frame(bed.open())]
    assert bed.ingest.ingest_frames(frames) == ["error", "ok"]
    assert books(bed) == {"error": 1, "ok": 1}
    assert bed.client.zcard(keys.OPEN_RUNS) == 0


def test_newest_result_of_a_pair_counts_in_any_order_of_arrival(bed: ResultsHarness) -> None:
    """Several of a pair in one batch, another pair's between them."""
    bed.add(scorer="s2")
    runs = []
    for _ in range(5):
        bed.now += 1
        runs.append(bed.open())
    oldest, older, newer, failed_run, newest = runs
    frames = {run: bed.frame(run, results=[({"node": "a"}, n)]) for n, run in enumerate(runs)}
    frames[failed_run] = bed.frame(failed_run, outcome="error")
    other = bed.frame(bed.open(scorer="s2"), scorer="s2")
    batch = [frames[newer], other, *(frames[run] for run in (newest, oldest, failed_run, older, newer))]
    assert bed.ingest.ingest_frames(batch) == ["ok", "ok", "ok", "ok", "error", "ok", "replayed"]
    state = bed.state()
    assert state.score is not None
    assert (state.score.run, state.score.items, state.failing, state.last_run) == (newest, [("a", 4)], 0, newest)
    assert books(bed) == {"ok": 4, "error": 1}
    assert state.open == 0
    assert [entry.run for entry in bed.history()] == [older, failed_run, oldest, newest, newer]


def test_redis_error_for_all_results_is_raised_and_results_wait(bed: ResultsHarness) -> None:
    # The first cycle records the agent's version, so that later cycles write nothing else.
    assert bed.cycle() == "ok"
    frames = [bed.frame(bed.open()) for _ in range(3)]
    bed.client.config_set("min-replicas-to-write", 1)
    try:
        with pytest.raises(redis.ResponseError, match="NOREPLICAS"):
            bed.ingest.ingest_frames(frames)
    finally:
        bed.client.config_set("min-replicas-to-write", 0)
    assert bed.ingest.ingest_frames(frames) == ["ok"] * 3


def test_default_validity_follows_a_longer_interval(bed: ResultsHarness) -> None:
    """By default a score is valid for 300 s with an interval of 30 s: with a run every ten minutes scores would be
    absent half of the time.
    """
    schedule = ScheduleStore(bed.client)
    for target, interval, seconds in (("*/s1", 600, 1800), ("c1/s1", 1200, 3600), ("c1/s1", 5, 300)):
        schedule.set_override(target, interval=interval, now=bed.now)
        assert bed.send(bed.open()) == "ok"
        score = bed.state().score
        assert score is not None
        assert score.valid_until - score.at == seconds
        bed.now += 10


def test_result_that_cannot_be_evaluated_does_not_block_other_results(
    bed: ResultsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed.add("c2", "s1")
    original_ending_of = ingest_module.make_ending

    def stumbling(result: Result, *arguments: Any, **options: Any) -> Any:
        if result.cluster == "c1":
            raise KeyError("a mistake")
        return original_ending_of(result, *arguments, **options)

    monkeypatch.setattr(ingest_module, "make_ending", stumbling)
    batch = [bed.frame(bed.open(cluster), cluster) for cluster in ("c1", "c2")]
    assert bed.ingest.ingest_frames(batch) == ["malformed", "ok"]
    assert bed.rejected() == {"malformed": 1}
