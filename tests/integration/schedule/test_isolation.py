"""One pair that cannot be scheduled does not stop the others."""

from __future__ import annotations

import json

from structlog.testing import capture_logs

from dsf import keys
from tests.integration.schedule.support import START, Bench, entry, pushed, register

#: No float is large enough for its slots.
_ENDLESS = int("9" * 400)


def test_a_pair_nobody_thought_of_is_put_off(bench: Bench) -> None:
    bench.store.upsert([entry("c1", "good", interval=1), entry("c1", "s1"), entry("c1", "s2")], START)
    for name in ("s1", "s2"):
        broken = entry("c1", name).model_dump(mode="json") | {"interval": _ENDLESS}
        bench.client.hset(keys.ENTRIES, f"c1/{name}", json.dumps(broken))
    with capture_logs() as logged:
        bench.run(10)
    assert {scorer for scorer, _ in pushed(bench.client, "c1")} == {"good"}
    assert len(pushed(bench.client, "c1")) >= 10
    due = bench.store.due_times(["c1/s1", "c1/s2"])
    assert all(START + 59 < at < START + 71 for at in due.values())
    # Both were met in the same second.
    lines = [line for line in logged if line["event"] == "pair cannot be scheduled"]
    assert [line["retry_seconds"] for line in lines] == [60]
    # Written anew by the hub, it runs again.
    bench.store.upsert([entry("c1", "s1", interval=2)], bench.now)
    bench.run(10)
    assert "s1" in {scorer for scorer, _ in pushed(bench.client, "c1")}


def test_an_override_that_is_too_long_counts_as_the_longest(bench: Bench) -> None:
    register(bench.client, ["c1"])
    bench.client.hset(keys.OVERRIDES, "*/s", '{"interval": 999999999999}')
    bench.store.upsert([entry("c1")], START)
    bench.run(60)
    assert len(pushed(bench.client, "c1")) == 1
    assert bench.store.overrides()["*/s"].interval == 2**31 - 1
    assert bench.store.reset("*/s", START + 60)
    bench.run(60)
    assert len(pushed(bench.client, "c1")) >= 2
