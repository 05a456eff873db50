"""What becomes of pairs that are due."""

from __future__ import annotations

from typing import Any

from dsf import keys
from tests.integration.schedule.support import Bench, books, entry, pushed
from tests.support.memorystore import memory_client


def test_what_another_beat_has_sent_meanwhile_is_left_alone() -> None:
    bench = Bench(memory_client())
    other = Bench(bench.client)
    bench.store.upsert([entry("c1")], bench.now)
    commit = bench.dispatcher._commit

    def late(**arguments: Any) -> Any:
        other.dispatcher.run()
        return commit(**arguments)

    bench.dispatcher._commit = late  # type: ignore[assignment]
    bench.dispatcher.run()
    assert len(pushed(bench.client, "c1")) == 1
    assert books(bench.client, "c1").scheduled == 1


def test_a_full_queue_takes_no_more() -> None:
    bench = Bench(memory_client(), queue_limit=2)
    bench.store.upsert([entry("c1", scorer) for scorer in ("a", "b", "c")], bench.now)
    # First runs are spread.
    bench.now += 1
    bench.dispatcher.run()
    assert bench.client.llen(keys.spoke_queue("c1")) == 2
    found = [books(bench.client, "c1", scorer).skipped() for scorer in ("a", "b", "c")]
    assert sorted(found, key=len) == [{}, {}, {"queue_full": 1}]
