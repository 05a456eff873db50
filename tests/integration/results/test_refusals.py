"""Refused results: wrong clocks, limits, forged and malformed ones, removed pairs."""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis

from dsf import keys, messages
from dsf.api.scoringresponse import MAX_RESULTS
from dsf.results.ingest import Ingest
from dsf.store.clocks import read_reports
from dsf.store.registry import ClusterRecord
from tests.integration.results.bed import SECRET, START, ResultsHarness, handle
from tests.integration.results.books import books


@pytest.mark.parametrize(
    ("outcome", "at", "off"),
    [("ok", 90.0, "60 s ahead of"), ("skipped", 700.0, "670 s ahead of"), ("ok", -31.0, "31 s behind")],
)
def test_clock_skew_fails_the_run_with_the_difference(bed: ResultsHarness, outcome: str, at: float, off: str) -> None:
    run = bed.open()
    bed.now += 30
    assert bed.send(run, at=START + at, outcome=outcome) == "error"
    state = bed.state()
    assert books(bed) == {"error": 1}
    assert state.read_error_counts() == {("publish", "clock_skew"): 1}
    assert state.failure is not None
    assert off in state.failure.message
    assert state.failure.message.startswith("the clock of cluster c1 is ")
    assert state.failure.message.endswith("; synchronise it (NTP)")
    assert state.score is None
    assert bed.rejected() == {"stale": 1}
    assert bed.send(run, at=START + at, outcome=outcome) == "stale"
    assert books(bed) == {"error": 1}


@pytest.mark.parametrize("off", [29, -29])
def test_clock_within_tolerance_is_replaced_by_the_time_of_the_hub(bed: ResultsHarness, off: int) -> None:
    run = bed.open()
    assert bed.send(run, at=START + off) == "ok"
    assert bed.state().last_success == START + min(off, 0)


@pytest.mark.parametrize("offset", [60.0, -600.0])
def test_results_are_accepted_if_agents_and_worker_agree_against_redis(bed: ResultsHarness, offset: float) -> None:
    """The clock of Redis is `offset` seconds ahead of all others."""
    ingest = Ingest(bed.client, bed.settings, clock=lambda: bed.now, own_offset=lambda: offset)
    run = bed.open()
    bed.now += 10
    assert handle(ingest, bed.frame(run, at=bed.now - 5 - offset)) == "ok"
    assert bed.state().last_success == bed.now - 5
    [report] = read_reports(bed.client, bed.now)
    assert (report.name, report.offset) == ("the agent of c1", offset)


def test_results_are_accepted_if_agents_and_redis_agree_against_the_worker(bed: ResultsHarness) -> None:
    ingest = Ingest(bed.client, bed.settings, clock=lambda: bed.now, own_offset=lambda: 60.0)
    assert handle(ingest, bed.frame(bed.open())) == "ok"
    [report] = read_reports(bed.client, bed.now)
    assert (report.name, report.offset) == ("the agent of c1", 0.0)


def test_results_of_agents_that_agree_with_no_clock_are_refused(bed: ResultsHarness) -> None:
    ingest = Ingest(bed.client, bed.settings, clock=lambda: bed.now, own_offset=lambda: 60.0)
    assert handle(ingest, bed.frame(bed.open(), at=START + 7200)) == "error"
    assert bed.state().read_error_counts() == {("publish", "clock_skew"): 1}
    assert read_reports(bed.client, bed.now) == []


def test_result_older_than_its_validity_is_stale(bed: ResultsHarness) -> None:
    run = bed.open()
    frame = bed.frame(run)
    unasked = bed.frame(messages.make_run_id(bed.now))
    bed.now += 301
    assert handle(bed.ingest, frame) == "error"
    failure = bed.state().failure
    assert failure is not None
    assert (failure.stage, failure.reason) == ("publish", "stale")
    assert handle(bed.ingest, unasked) == "stale"
    assert books(bed) == {"error": 1}
    assert bed.rejected() == {"stale": 2}


def test_items_beyond_the_limit_of_an_object_are_refused(bed: ResultsHarness) -> None:
    results = [({"node": f"{n:05}" + "x" * 100}, 1.0) for n in range(6000)]
    assert bed.cycle(results=results) == "error"
    failure = bed.state().failure
    assert failure is not None
    assert (failure.stage, failure.reason) == ("publish", "too_large")
    assert "scoreDimensionFormat" in failure.message


def test_results_beyond_the_limit_are_refused(bed: ResultsHarness) -> None:
    results = [({"node": "a"}, float(n)) for n in range(MAX_RESULTS + 1)]
    frame = bed.signed(json.dumps({"results": results}).encode())
    assert handle(bed.ingest, frame) == "malformed"


def _changed(frame: bytes, old: str, new: str) -> bytes:
    assert old.encode() in frame
    return frame.replace(old.encode(), new.encode())


def test_forged_results_are_rejected(bed: ResultsHarness) -> None:
    valid_frame = bed.frame(bed.open())
    signature = valid_frame.split()[1].decode()
    bed.add("c2")
    forged = [
        _changed(valid_frame, signature, "0" * 64),
        _changed(valid_frame, signature, signature[::-1]),
        _changed(valid_frame, '"ok"', '"error"'),
        _changed(valid_frame, " c1\n", " c2\n"),
        _changed(valid_frame, " 1 c1", " 2 c1"),
        _changed(valid_frame, "DSF1", "DSF2"),
        valid_frame[:-1],
        valid_frame + b" ",
        bed.frame(messages.make_run_id(bed.now), key_id=2),
        _changed(valid_frame, " c1\n", " nowhere\n"),
    ]
    for frame in forged:
        assert handle(bed.ingest, frame) == "bad_signature"
    assert bed.rejected() == {"bad_signature": len(forged)}
    assert books(bed) == {}
    assert handle(bed.ingest, valid_frame) == "ok"


def test_rotated_key_is_accepted_until_it_is_withdrawn(bed: ResultsHarness) -> None:
    bed.registry.put_cluster(ClusterRecord(name="c1", key_ids=(2, 1)))
    bed.ingest = Ingest(bed.client, bed.settings, clock=lambda: bed.now)
    assert bed.cycle(key_id=1) == "ok"
    assert bed.cycle(key_id=2) == "ok"
    assert bed.cycle(key_id=3) == "bad_signature"


_SIGNATURE = "0" * 64


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"text",
        b'{"kid":1,"body":"{}","sig":""}',
        b"\xff" * 1000,
        f"DSF9 {_SIGNATURE} 1 c1\n{{}}",
        f"DSFx {_SIGNATURE} 1 c1\n{{}}",
        f"DSF1 {_SIGNATURE} 0 c1\n{{}}",
        f"DSF1 {_SIGNATURE} {'9' * 5000} c1\n{{}}",
        f"DSF1 {_SIGNATURE} 1 ../etc\n{{}}",
        f"DSF1 {_SIGNATURE} 1 c1-\n{{}}",
        f"DSF1 {_SIGNATURE} 1 {'c' * 600}\n{{}}",
        f"DSF1 {_SIGNATURE.replace('0', 'A')} 1 c1\n{{}}",
        f"DSF1 {_SIGNATURE} 1 c1{{}}",
        f"DSF1 {_SIGNATURE} 1 c1\n{'x' * (2 * 1024 * 1024 + 1)}",
    ],
)
def test_malformed_results_are_rejected(bed: ResultsHarness, frame: bytes | str) -> None:
    assert handle(bed.ingest, frame) == "malformed"
    assert bed.rejected() == {"malformed": 1}


@pytest.mark.parametrize(
    "body",
    [
        "",
        "{",
        "[]",
        "[" * 100_000,
        '{"scorer":"s1"',
        '{"scorer":"s1","run":"1","at":1,"outcome":"ok"}',
        '{"scorer":"s1","run":"1800000000000-00000000","at":NaN,"outcome":"ok"}',
        '{"scorer":"s1","run":"1800000000000-00000000","at":1,"outcome":"lost"}',
        '{"scorer":"s1","run":"1800000000000-00000000","at":1,"outcome":"ok","results":[[{},NaN]]}',
        '{"scorer":"s1","run":"1800000000000-00000000","at":1,"outcome":"ok","results":[[{"node":"\\ud800"},1]]}',
        '{"scorer":"s1","run":"1800000000000-00000000","at":1,"outcome":"ok","message":"\ud800"}',
    ],
)
def test_signed_but_malformed_results_are_rejected(bed: ResultsHarness, body: str) -> None:
    frame = bed.signed(body.encode("utf-8", "surrogatepass"))
    assert handle(bed.ingest, frame) == "malformed"


def test_results_of_unknown_clusters_and_scorers_are_rejected(bed: ResultsHarness) -> None:
    assert bed.send(messages.make_run_id(bed.now), cluster="c9") == "unknown_cluster"
    assert bed.send(messages.make_run_id(bed.now), scorer="s9") == "stale"
    assert bed.rejected() == {"unknown_cluster": 1, "stale": 1}


def test_result_of_a_pair_masked_meanwhile_is_removed(bed: ResultsHarness) -> None:
    run = bed.open()
    bed.schedule.remove(["c1/s1"])
    assert bed.client.zcard(keys.OPEN_RUNS) == 0
    assert bed.send(run) == "removed"
    assert bed.rejected() == {"stale": 1}
    assert not bed.state().hash_fields
    bed.add()
    assert bed.send(run) == "ok"
    assert books(bed) == {"ok": 1}


def test_unknown_reasons_are_counted_as_other(bed: ResultsHarness) -> None:
    refusal_counts = {"nan": 2, "bad_labels": 3, **{f"made_up_{n}": 1 for n in range(60)}}
    assert bed.cycle(outcome="partial", refused=refusal_counts) == "partial"
    assert bed.state().read_refusal_counts() == {"nan": 2, "bad_labels": 3, "other": 60}
    # Each name would be a call in a script during which Redis serves nobody else.
    flood = _unchecked(bed, bed.open(), refused={f"m{n}": 1 for n in range(100_000)})
    assert handle(bed.ingest, flood) == "malformed"
    assert bed.state().read_refusal_counts()["other"] == 60


def test_overflowing_counts_are_malformed(bed: ResultsHarness) -> None:
    run = bed.open()
    for number in (2**53 + 1, 2**63 - 1, 2**64, -1):
        assert handle(bed.ingest, _unchecked(bed, run, refused={"nan": number})) == "malformed"
    assert handle(bed.ingest, bed.frame(run, outcome="partial", refused={"nan": 1})) == "partial"
    assert books(bed) == {"partial": 1}


def test_saturated_counters_stay_saturated(bed: ResultsHarness) -> None:
    for _ in range(3):
        assert bed.cycle(outcome="partial", refused={"nan": 2**53, "made_up": 2**53}) == "partial"
    assert bed.state().read_refusal_counts() == {"nan": 2**53, "other": 2**53}
    # Values that cannot be increased must not cause later genuine results to be refused.
    key = keys.pair_key("c1", "s1")
    bed.client.hset(key, mapping={"n:refused:nan": 2**63 - 1, "n:partial": "spoilt", "t:fetch:sum": "x"})
    assert bed.cycle(outcome="partial", refused={"nan": 1}, timings={"fetch": 0.5}) == "partial"
    assert bed.state().read_refusal_counts()["nan"] == 2**53
    assert bed.client.hmget(key, "n:partial", "t:fetch:sum") == ["1", "0.500000"]


@pytest.mark.parametrize("broken", ["pair", "history", "open"])
def test_result_that_cannot_be_ingested_changes_nothing(bed: ResultsHarness, broken: str) -> None:
    run = bed.open()
    key = {
        "pair": keys.pair_key("c1", "s1"),
        "history": keys.history_key("c1", "s1"),
        "open": keys.OPEN_RUNS,
    }[broken]
    bed.client.set(key, "of another type")
    before = _everything(bed)
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        handle(bed.ingest, bed.frame(run, outcome="partial", refused={"nan": 1}, timings={"fetch": 0.5}))
    assert _everything(bed) == before


def test_full_redis_ingests_results_as_a_whole(bed: ResultsHarness) -> None:
    runs = [bed.open() for _ in range(3)]
    bed.now += 1
    unasked = messages.make_run_id(bed.now)
    bed.client.config_set("maxmemory", "1")
    try:
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            bed.client.set("x", "y")
        assert [handle(bed.ingest, bed.frame(run)) for run in [*runs, unasked]] == ["ok"] * 4
        assert handle(bed.ingest, bed.frame(unasked)) == "replayed"
    finally:
        bed.client.config_set("maxmemory", "0")
    assert books(bed) == {"ok": 4}
    assert len(bed.history()) == 4
    assert bed.state().score is not None
    assert bed.rejected() == {"replayed": 1}


def _unchecked(bed: ResultsHarness, run: str, **fields: Any) -> bytes:
    """Return a result with these fields, well signed, as no agent of ours makes one."""
    valid_result = messages.verify(bed.frame(run, outcome="partial"), bytes.fromhex(SECRET)).result
    return messages.sign(valid_result.model_copy(update=fields), messages.derive_key(bytes.fromhex(SECRET), "c1", 1))


def _everything(bed: ResultsHarness) -> dict[str, str]:
    return {str(key): str(bed.client.dump(key)) for key in bed.client.keys("*") if "clusters" not in str(key)}
