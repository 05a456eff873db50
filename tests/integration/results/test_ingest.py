"""One result: every outcome, every order in which results can come, everything that is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dsf import keys, messages
from dsf.results.ingest import Ingest
from dsf.store.registry import ClusterRecord
from tests.integration.results.bed import START, Bed


def books(bed: Bed) -> dict[str, int]:
    """Non-zero counts of c1/s1; they always balance."""
    state = bed.state()
    counts = {name: state.count(name) for name in ("ok", "empty", "partial", "error", "skipped", "lost")}
    assert state.scheduled == sum(counts.values()) + state.open
    assert state.open == sum(1 for m in bed.client.zrange(keys.OPEN_RUNS, 0, -1) if str(m).startswith("c1/s1/"))
    return {name: number for name, number in counts.items() if number}


def test_ok(bed: Bed) -> None:
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
    assert state.timings() == {"fetch": (0.5, 1), "score": (0.25, 1)}
    (entry,) = bed.history()
    assert (entry.run, entry.at, entry.outcome) == (run, START, "ok")
    assert entry.counts == {"series": 2, "items": 2, "results": 2}
    assert bed.news() == {"s1"}


def test_the_first_result_of_a_new_pair_is_taken_in_although_the_registry_was_just_read(bed: Bed) -> None:
    ingest = bed.ingest
    assert bed.cycle() == "ok"
    bed.add(cluster="c2", scorer="s2")
    bed.ingest = ingest
    assert bed.cycle("c2", "s2") == "ok"
    assert bed.rejected() == {}


def test_empty(bed: Bed) -> None:
    assert bed.cycle(outcome="empty") == "empty"
    assert books(bed) == {"empty": 1}
    score = bed.state().score
    assert score is not None
    assert score.items == []


def test_partial_by_the_agent_and_by_the_hub(bed: Bed) -> None:
    assert bed.cycle(outcome="partial", refused={"nan": 2}) == "partial"
    assert bed.cycle(results=[({"node": "a"}, 1.0), ({"pod": "no node"}, 3.0)]) == "partial"
    assert books(bed) == {"partial": 2}
    assert bed.state().refused() == {"nan": 2, "empty_dimension": 1}


def test_a_duplicate_dimension_is_counted_and_no_fault(bed: Bed) -> None:
    results = [({"node": "a", "pod": "x"}, 1.0), ({"node": "a", "pod": "y"}, 7.9), ({"node": "b"}, 1e6)]
    assert bed.cycle(results=results) == "ok"
    state = bed.state()
    assert state.score is not None
    assert state.score.items == [("a", 7), ("b", 100)]
    assert len(state.score.results) == 3
    assert (state.refused(), state.clamped) == ({"duplicate_dimension": 1}, 1)


def test_metrics_only(bed: Bed) -> None:
    bed.add(destination="None")
    assert bed.cycle(results=[({"pod": "p"}, 1.5)]) == "ok"
    state = bed.state()
    assert state.score is not None
    assert (state.score.items, state.score.results) == ([], [({"pod": "p"}, 1.5)])
    assert bed.client.zcard(keys.WRITES) == 0


def test_error_keeps_the_score_and_the_next_good_cycle_clears_it(bed: Bed) -> None:
    bed.cycle()
    bed.news()
    assert bed.cycle(outcome="error", stage="score", reason="bad_answer", message="no JSON") == "error"
    state = bed.state()
    assert books(bed) == {"ok": 1, "error": 1}
    assert state.errors() == {("score", "bad_answer"): 1}
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


def test_skipped_leaves_the_state_alone(bed: Bed) -> None:
    bed.cycle(outcome="error")
    assert bed.cycle(outcome="skipped", reason="overlap") == "skipped"
    state = bed.state()
    assert (state.failing, state.skipped()) == (1, {"overlap": 1})
    assert state.failure is not None
    assert books(bed) == {"error": 1, "skipped": 1}


def test_a_run_that_outlives_the_skip_of_the_next_still_counts(bed: Bed) -> None:
    slow = bed.open()
    bed.now += 30
    skipped = bed.open()
    assert bed.send(skipped, outcome="skipped", reason="overlap") == "skipped"
    assert bed.send(slow) == "ok"
    score = bed.state().score
    assert score is not None
    assert score.run == slow


def test_the_same_result_twice_changes_nothing(bed: Bed) -> None:
    for outcome in ("ok", "error", "skipped", "empty"):
        run = bed.open()
        bed.now += 1
        envelope = bed.envelope(run, outcome=outcome, reason="overlap" if outcome == "skipped" else "")
        assert bed.ingest.handle(envelope) == outcome
        before = bed.client.hgetall(keys.pair_key("c1", "s1")), bed.history()
        assert bed.ingest.handle(envelope) == "replayed"
        assert (bed.client.hgetall(keys.pair_key("c1", "s1")), bed.history()) == before
    assert bed.rejected() == {"replayed": 4}


def test_an_older_run_closes_its_books_and_nothing_else(bed: Bed) -> None:
    old, bed.now = bed.open(), bed.now + 5
    new = bed.open()
    bed.now += 1
    assert bed.send(new, results=[({"node": "new"}, 1.0)]) == "ok"
    assert bed.send(old, results=[({"node": "old"}, 1.0)]) == "ok"
    assert books(bed) == {"ok": 2}
    state = bed.state()
    assert state.score is not None
    assert (state.score.run, state.last_run) == (new, new)


def test_the_older_of_two_brings_the_score_when_the_newer_failed(bed: Bed) -> None:
    old, bed.now = bed.open(), bed.now + 5
    new = bed.open()
    bed.now += 1
    bed.send(new, outcome="error")
    bed.send(old)
    state = bed.state()
    assert state.score is not None
    assert (state.score.run, state.failing) == (old, 1)


def test_a_run_nobody_scheduled_counts_as_asked_for(bed: Bed) -> None:
    run = messages.new_run_id(bed.now)
    bed.now += 1
    assert bed.send(run) == "ok"
    assert (books(bed), bed.state().scheduled) == ({"ok": 1}, 1)
    assert bed.send(run) == "replayed"
    assert (books(bed), bed.state().scheduled) == ({"ok": 1}, 1)


def test_late_after_lost(bed: Bed) -> None:
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


def test_late_after_lost_does_not_overwrite_a_newer_one(bed: Bed) -> None:
    lost = bed.open(deadline=10)
    bed.now += 100
    bed.sweep()
    bed.cycle(results=[({"node": "new"}, 5.0)])
    assert bed.send(lost) == "late"
    score = bed.state().score
    assert score is not None
    assert score.items == [("new", 5)]


def test_a_late_failure_says_more_than_lost(bed: Bed) -> None:
    run = bed.open(deadline=10)
    bed.now += 100
    bed.sweep()
    assert bed.send(run, outcome="error", reason="connection_failed") == "late"
    state = bed.state()
    assert state.failure is not None
    assert (state.failure.reason, state.failing, books(bed)) == ("connection_failed", 1, {"lost": 1})


def test_history_is_bounded(bed: Bed) -> None:
    for _ in range(8):
        bed.cycle()
    assert len(bed.history()) == bed.settings.history_length


@pytest.mark.parametrize(
    ("outcome", "at", "off"),
    [("ok", 90.0, "60 s ahead of"), ("skipped", 700.0, "670 s ahead of"), ("ok", -31.0, "31 s behind")],
)
def test_a_clock_that_is_off_fails_the_run_and_says_by_how_much(bed: Bed, outcome: str, at: float, off: str) -> None:
    run = bed.open()
    bed.now += 30
    assert bed.send(run, at=START + at, outcome=outcome) == "error"
    state = bed.state()
    assert books(bed) == {"error": 1}
    assert state.errors() == {("publish", "clock_skew"): 1}
    assert state.failure is not None
    assert off in state.failure.message
    assert state.score is None
    assert bed.rejected() == {"stale": 1}
    assert bed.send(run, at=START + at, outcome=outcome) == "stale"
    assert books(bed) == {"error": 1}


def test_a_clock_within_tolerance_is_taken_by_the_hubs(bed: Bed) -> None:
    run = bed.open()
    assert bed.send(run, at=START + 29) == "ok"
    assert bed.state().last_success == START


def test_a_result_older_than_its_validity(bed: Bed) -> None:
    run = bed.open()
    envelope = bed.envelope(run)
    unasked = bed.envelope(messages.new_run_id(bed.now))
    bed.now += 301
    assert bed.ingest.handle(envelope) == "error"
    failure = bed.state().failure
    assert failure is not None
    assert (failure.stage, failure.reason) == ("publish", "stale")
    assert bed.ingest.handle(unasked) == "stale"
    assert books(bed) == {"error": 1}
    assert bed.rejected() == {"stale": 2}


def test_too_many_items_for_one_object(bed: Bed) -> None:
    results = [({"node": f"{n:05}" + "x" * 100}, 1.0) for n in range(6000)]
    assert bed.cycle(results=results) == "error"
    failure = bed.state().failure
    assert failure is not None
    assert (failure.stage, failure.reason) == ("publish", "too_large")
    assert "scoreDimensionFormat" in failure.message


def test_too_many_results(bed: Bed) -> None:
    results = [({"node": "a"}, float(n)) for n in range(bed.settings.max_results + 1)]
    assert bed.cycle(results=results) == "error"
    assert bed.state().errors() == {("publish", "too_many_results"): 1}


def test_words_from_agents_are_bounded(bed: Bed) -> None:
    for n in range(300):
        bed.cycle(outcome="error", reason=f"made_up_{n}")
        bed.cycle(outcome="partial", refused={f"made_up_{n}": 1, "NOT A WORD": 1})
    assert bed.client.hlen(keys.pair_key("c1", "s1")) <= 210
    assert books(bed) == {"error": 300, "partial": 300}
    assert sum(bed.state().errors().values()) == 300
    assert bed.state().refused()["other"] > 300


def test_absurd_numbers_spoil_nothing(bed: Bed) -> None:
    assert bed.cycle(timings={"fetch": 1e308, "made up": 1.0}, counts={"n": 10**300, "x" * 99: 1}) == "ok"
    assert bed.cycle(timings={"fetch": 1e308}) == "ok"
    assert bed.state().timings() == {"fetch": (2 * 86400.0, 2)}
    assert bed.history()[-1].counts == {"items": 2, "results": 2}


def _changed(envelope: dict[str, Any], **values: Any) -> dict[str, Any]:
    return {**envelope, **values}


def test_forged(bed: Bed) -> None:
    good = bed.envelope(bed.open())
    bed.add("c2")
    forged = [
        _changed(good, sig="0" * 64),
        _changed(good, sig=good["sig"].upper()),
        _changed(good, sig="\u00e9\ud800"),
        _changed(good, body=good["body"].replace("ok", "error")),
        _changed(good, cluster="c2"),
        _changed(good, kid=2),
        bed.envelope(messages.new_run_id(bed.now), key_id=2),
        _changed(good, cluster="nowhere"),
    ]
    # c1's own key used to sign for c2.
    body = good["body"].replace('"c1"', '"c2"')
    key = messages.derive_key(bytes.fromhex("5e" * 32), "c1", 1)
    forged.append(_changed(good, body=body, sig=messages._signature(key, body)))
    for envelope in forged:
        assert bed.ingest.handle(envelope) == "bad_signature"
    assert bed.rejected() == {"bad_signature": len(forged)}
    assert books(bed) == {}
    assert bed.ingest.handle(good) == "ok"


def test_a_rotated_key_is_taken_until_it_is_withdrawn(bed: Bed) -> None:
    bed.registry.put_cluster(ClusterRecord(name="c1", key_ids=(2, 1)))
    bed.ingest = Ingest(bed.client, bed.settings, clock=lambda: bed.now)
    assert bed.cycle(key_id=1) == "ok"
    assert bed.cycle(key_id=2) == "ok"
    assert bed.cycle(key_id=3) == "bad_signature"


@pytest.mark.parametrize(
    "envelope",
    [
        None,
        [],
        "text",
        {},
        {"v": 9, "kid": 1, "cluster": "c1", "body": "{}", "sig": ""},
        {"v": "1", "kid": 1, "cluster": "c1", "body": "{}", "sig": ""},
        {"v": 1, "kid": 0, "cluster": "c1", "body": "{}", "sig": ""},
        {"v": 1, "kid": 1, "cluster": "../etc", "body": "{}", "sig": ""},
        {"v": 1, "kid": 1, "cluster": "c1", "body": 3, "sig": ""},
        {"v": 1, "kid": 1, "cluster": "c1", "body": "x" * (2 * 1024 * 1024 + 1), "sig": ""},
    ],
)
def test_malformed(bed: Bed, envelope: object) -> None:
    assert bed.ingest.handle(envelope) == "malformed"
    assert bed.rejected() == {"malformed": 1}


@pytest.mark.parametrize(
    "body",
    [
        "",
        "{",
        "[]",
        "[" * 100_000,
        '{"v":1,"cluster":"c1","scorer":"s1"',
        '{"cluster":"c1","scorer":"s1","run":"1","at":1,"outcome":"ok"}',
        '{"cluster":"c1","scorer":"s1","run":"1800000000000-00000000","at":NaN,"outcome":"ok"}',
        '{"cluster":"c1","scorer":"s1","run":"1800000000000-00000000","at":1,"outcome":"lost"}',
        '{"cluster":"c1","scorer":"s1","run":"1800000000000-00000000","at":1,"outcome":"ok","results":[[{},NaN]]}',
        '{"cluster":"c1","scorer":"s1","run":"1800000000000-00000000","at":1,"outcome":"ok","results":[[{"node":"\\ud800"},1]]}',
        '{"cluster":"c1","scorer":"s1","run":"1800000000000-00000000","at":1,"outcome":"ok","message":"\ud800"}',
    ],
)
def test_signed_nonsense(bed: Bed, body: str) -> None:
    key = messages.derive_key(bytes.fromhex("5e" * 32), "c1", 1)
    envelope = {"v": 1, "kid": 1, "cluster": "c1", "body": body, "sig": messages._signature(key, body)}
    assert bed.ingest.handle(envelope) == "malformed"


def test_unknown_cluster_and_scorer(bed: Bed) -> None:
    assert bed.send(messages.new_run_id(bed.now), cluster="c9") == "unknown_cluster"
    assert bed.send(messages.new_run_id(bed.now), scorer="s9") == "stale"
    assert bed.rejected() == {"unknown_cluster": 1, "stale": 1}


def test_a_pair_that_was_masked_meanwhile(bed: Bed) -> None:
    run = bed.open()
    bed.schedule.remove(["c1/s1"])
    assert bed.client.zcard(keys.OPEN_RUNS) == 0
    assert bed.send(run) == "removed"
    assert bed.rejected() == {"stale": 1}
    assert not bed.state()
    bed.add()
    assert bed.send(run) == "ok"
    assert books(bed) == {"ok": 1}


def test_what_is_stored_is_compact(bed: Bed) -> None:
    bed.cycle()
    (row,) = bed.client.lrange(keys.history_key("c1", "s1"), 0, -1)
    assert set(json.loads(row)) == {"run", "at", "outcome", "counts"}
