"""A pair that cannot be scheduled does not stop the others."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from dsf import keys
from dsf.beat import dispatch
from tests.integration.beat.support import START, Bench, entry, pushed, register

#: Intervals for which no slot can be computed.
_STRANGE = 77


def test_pair_with_an_unexpected_error_is_postponed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    true = dispatch.compute_next_tick_time

    def compute_or_fail(pair: str, interval: int, now: float) -> float:
        if interval == _STRANGE:
            raise OverflowError("int too large to convert to float")
        return true(pair, interval, now)

    monkeypatch.setattr(dispatch, "compute_next_tick_time", compute_or_fail)
    strange = (entry("c1", name, interval=_STRANGE) for name in ("s1", "s2"))
    bench.store.upsert([entry("c1", "good", interval=1), *strange], START)
    # As soon as that: they are due before their first slot.
    for name in ("s1", "s2"):
        bench.client.zadd(keys.DUE, {f"c1/{name}": START})
    with capture_logs() as logged:
        bench.run(10)
    assert {scorer for scorer, _ in pushed(bench.client, "c1")} == {"good"}
    assert len(pushed(bench.client, "c1")) >= 10
    due = bench.store.read_due_times(["c1/s1", "c1/s2"])
    assert all(START + 59 < at < START + 71 for at in due.values())
    # Both were met in the same second.
    lines = [line for line in logged if line["event"] == "pair cannot be scheduled"]
    assert [line["retry_seconds"] for line in lines] == [60]
    # After the hub has written it again, it runs.
    bench.store.upsert([entry("c1", "s1", interval=2)], bench.now)
    bench.run(10)
    assert "s1" in {scorer for scorer, _ in pushed(bench.client, "c1")}


def test_oversized_interval_override_is_limited_to_the_maximum(bench: Bench) -> None:
    register(bench.client, ["c1"])
    bench.client.hset(keys.OVERRIDES, "*/s", '{"interval": 999999999999}')
    bench.store.upsert([entry("c1")], START)
    bench.run(60)
    assert len(pushed(bench.client, "c1")) == 1
    assert bench.store.read_overrides()["*/s"].interval == 2**31 - 1
    assert bench.store.reset("*/s", START + 60)
    bench.run(60)
    assert len(pushed(bench.client, "c1")) >= 2
