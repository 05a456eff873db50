"""Results that are refused: clocks, limits, forged and malformed ones, pairs that are gone."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from dsf import keys, messages
from dsf.api.scoring import MAX_RESULTS
from dsf.results.ingest import Ingest
from dsf.store.registry import ClusterRecord
from tests.integration.results.bed import SECRET, START, Bed, handle
from tests.integration.results.books import books


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
    assert state.failure.message.startswith("the clock of cluster c1 is ")
    assert state.failure.message.endswith("; synchronise it (NTP)")
    assert state.score is None
    assert bed.rejected() == {"stale": 1}
    assert bed.send(run, at=START + at, outcome=outcome) == "stale"
    assert books(bed) == {"error": 1}


@pytest.mark.parametrize("off", [29, -29])
def test_a_clock_within_tolerance_is_taken_by_the_hubs(bed: Bed, off: int) -> None:
    run = bed.open()
    assert bed.send(run, at=START + off) == "ok"
    assert bed.state().last_success == START + min(off, 0)


def test_a_result_older_than_its_validity(bed: Bed) -> None:
    run = bed.open()
    envelope = bed.envelope(run)
    unasked = bed.envelope(messages.new_run_id(bed.now))
    bed.now += 301
    assert handle(bed.ingest, envelope) == "error"
    failure = bed.state().failure
    assert failure is not None
    assert (failure.stage, failure.reason) == ("publish", "stale")
    assert handle(bed.ingest, unasked) == "stale"
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
    results = [({"node": "a"}, float(n)) for n in range(MAX_RESULTS + 1)]
    assert bed.cycle(results=results) == "error"
    assert bed.state().errors() == {("publish", "too_many_results"): 1}


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
        assert handle(bed.ingest, envelope) == "bad_signature"
    assert bed.rejected() == {"bad_signature": len(forged)}
    assert books(bed) == {}
    assert handle(bed.ingest, good) == "ok"


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
    assert handle(bed.ingest, envelope) == "malformed"
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
    assert handle(bed.ingest, envelope) == "malformed"


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
    assert not bed.state().books
    bed.add()
    assert bed.send(run) == "ok"
    assert books(bed) == {"ok": 1}


def test_reasons_that_no_agent_gives_are_counted_as_other(bed: Bed) -> None:
    refused = {"nan": 2, "bad_labels": 3, **{f"made_up_{n}": 1 for n in range(60)}}
    assert bed.cycle(outcome="partial", refused=refused) == "partial"
    assert bed.state().refused() == {"nan": 2, "bad_labels": 3, "other": 60}
    # Each name was a call in a script that nobody else can be served beside.
    flood = _unchecked(bed, bed.open(), refused={f"m{n}": 1 for n in range(100_000)})
    assert handle(bed.ingest, flood) == "malformed"
    assert bed.state().refused()["other"] == 60


def test_numbers_that_no_book_can_hold(bed: Bed) -> None:
    run = bed.open()
    for number in (2**53 + 1, 2**63 - 1, 2**64, -1):
        assert handle(bed.ingest, _unchecked(bed, run, refused={"nan": number})) == "malformed"
    assert handle(bed.ingest, bed.envelope(run, outcome="partial", refused={"nan": 1})) == "partial"
    assert books(bed) == {"partial": 1}


def test_books_that_are_full_stay_full(bed: Bed) -> None:
    for _ in range(3):
        assert bed.cycle(outcome="partial", refused={"nan": 2**53, "made_up": 2**53}) == "partial"
    assert bed.state().refused() == {"nan": 2**53, "other": 2**53}
    # As earlier versions left them, after which every honest result was refused for ever.
    key = keys.pair_key("c1", "s1")
    bed.client.hset(key, mapping={"n:refused:nan": 2**63 - 1, "n:partial": "spoilt", "t:fetch:sum": "x"})
    assert bed.cycle(outcome="partial", refused={"nan": 1}, timings={"fetch": 0.5}) == "partial"
    assert bed.state().refused()["nan"] == 2**53
    assert bed.client.hmget(key, "n:partial", "t:fetch:sum") == ["1", "0.500000"]


@pytest.mark.parametrize("broken", ["pair", "history", "open", "writes"])
def test_a_result_that_cannot_be_taken_in_changes_nothing(bed: Bed, broken: str) -> None:
    run = bed.open()
    key = {
        "pair": keys.pair_key("c1", "s1"),
        "history": keys.history_key("c1", "s1"),
        "open": keys.OPEN_RUNS,
        "writes": keys.WRITES,
    }[broken]
    bed.client.set(key, "of another type")
    before = _everything(bed)
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        handle(bed.ingest, bed.envelope(run, outcome="partial", refused={"nan": 1}, timings={"fetch": 0.5}))
    assert _everything(bed) == before


def test_a_full_redis_takes_in_whole_results(bed: Bed) -> None:
    runs = [bed.open() for _ in range(3)]
    bed.now += 1
    unasked = messages.new_run_id(bed.now)
    bed.client.config_set("maxmemory", "1")
    try:
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            bed.client.set("x", "y")
        assert [handle(bed.ingest, bed.envelope(run)) for run in [*runs, unasked]] == ["ok"] * 4
        assert handle(bed.ingest, bed.envelope(unasked)) == "replayed"
    finally:
        bed.client.config_set("maxmemory", "0")
    assert books(bed) == {"ok": 4}
    assert len(bed.history()) == 4
    assert bed.state().score is not None
    assert bed.rejected() == {"replayed": 1}


def _unchecked(bed: Bed, run: str, **fields: Any) -> dict[str, Any]:
    """A result with these fields, well signed, as no agent of ours makes one."""
    good = messages.Result.model_validate_json(bed.envelope(run, outcome="partial")["body"])
    wrong = good.model_copy(update=fields)
    return messages.sign(wrong, messages.derive_key(bytes.fromhex(SECRET), "c1", 1))


def _everything(bed: Bed) -> dict[str, str]:
    return {str(key): str(bed.client.dump(key)) for key in bed.client.keys("*") if "clusters" not in str(key)}
