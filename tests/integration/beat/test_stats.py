"""Beat's counters as metrics."""

from __future__ import annotations

import redis

from dsf import keys
from dsf.beat.stats import collect_schedule_metrics
from tests.integration.beat.support import Bench, entry, register


def samples(client: redis.Redis) -> dict[tuple[str, ...], float]:
    return {
        (s.name, *s.labels.values()): s.value for family in collect_schedule_metrics(client) for s in family.samples
    }


def test_metrics_exist_before_the_first_tick(redis_client: redis.Redis) -> None:
    metrics = samples(redis_client)
    assert metrics["dynamic_scoring_ticks_total",] == 0
    assert metrics["dynamic_scoring_ticks_skipped_total", "queue_full"] == 0
    assert metrics["dynamic_scoring_schedule_lag_seconds_count",] == 0
    assert metrics["dynamic_scoring_queue_length", keys.RESULTS_QUEUE] == 0
    assert metrics["dynamic_scoring_entries",] == 0


def test_counters_follow_the_ticks_of_beat(redis_client: redis.Redis) -> None:
    bench = Bench(redis_client, queue_limit=1)
    register(redis_client, ["c1", "c2"])
    bench.store.upsert([entry("c1", "a"), entry("c1", "b"), entry("c2", "a")], bench.now)
    bench.now += 0.3
    bench.dispatcher.run()
    metrics = samples(redis_client)
    assert metrics["dynamic_scoring_ticks_total",] == 2
    assert metrics["dynamic_scoring_ticks_skipped_total", "queue_full"] == 1
    assert metrics["dynamic_scoring_schedule_lag_seconds_bucket", "0.25"] == 0
    assert metrics["dynamic_scoring_schedule_lag_seconds_bucket", "0.5"] == 2
    assert metrics["dynamic_scoring_schedule_lag_seconds_bucket", "+Inf"] == 2
    assert metrics["dynamic_scoring_schedule_lag_seconds_count",] == 2
    assert 0.5 < metrics["dynamic_scoring_schedule_lag_seconds_sum",] < 0.6
    assert metrics["dynamic_scoring_entries",] == 3
    assert metrics["dynamic_scoring_queue_length", "spoke.c1"] == 1
    # The entries were written as due at once by a clock far behind: no beat has sent them.
    assert metrics["dynamic_scoring_ticks_stopped",] == 1
    assert len(list(collect_schedule_metrics(redis_client))) == 7
