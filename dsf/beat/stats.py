"""Exposes beat's counters as metrics. The counters are in Redis, so that any process can expose them.

A tick is the Celery message that makes an agent run one cycle of a scorer. The lag of a tick is the time from its
scheduled time until it is sent.

Fields of the hash `dsf.keys.BEAT_STATS`, all counted by `lua/dispatch.lua`:

    ticks               number of sent ticks
    skipped:<reason>    number of due ticks that were skipped
    lag:<bound>         number of ticks whose lag in seconds is above the previous bound and at most <bound>
    lag:+Inf            number of ticks whose lag is above the last bound
    lag:sum             sum of the lags of all ticks in seconds
    lag:count           number of ticks in the histogram
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import redis
from prometheus_client.core import HistogramMetricFamily, Metric

from dsf import keys, metrics
from dsf.process import hubclock
from dsf.store.agents import count_waiting_results
from dsf.store.client import parse_number
from dsf.store.server import read_problems
from dsf.store.ticks import REASONS, find_ticks_problem, find_writes_problem


def collect_schedule_metrics(client: redis.Redis) -> Iterable[Metric]:
    """Return the metrics of the schedule. Raises redis.RedisError if Redis cannot be read.

    The metrics are lag, ticks, skipped ticks, whether beat has stopped, problems of the hub, number of schedule
    entries, waiting ticks of each queue, and waiting results.
    """
    with client.pipeline(transaction=False) as pipe:
        pipe.hgetall(keys.BEAT_STATS)
        pipe.hlen(keys.ENTRIES)
        pipe.hkeys(keys.CLUSTERS)
        stats, entry_count, clusters = pipe.execute()
    queues = list(map(keys.spoke_queue, sorted(clusters)))
    with client.pipeline(transaction=False) as pipe:
        for queue in queues:
            pipe.llen(queue)
        queue_lengths = pipe.execute()
    stopped_family = metrics.TICKS_STOPPED.make_gauge()
    stopped_family.add_metric(
        (), float(bool(find_writes_problem(client) or find_ticks_problem(client, hubclock.now())))
    )
    problems_family = metrics.HUB_PROBLEM.make_gauge()
    for kind in read_problems(client):
        problems_family.add_metric((kind,), 1.0)
    entries_family = metrics.ENTRIES.make_gauge()
    entries_family.add_metric((), entry_count)
    queues_family = metrics.QUEUE_LENGTH.make_gauge()
    queues_family.add_metric((keys.RESULTS_QUEUE,), count_waiting_results(client, clusters))
    for queue, length in zip(queues, queue_lengths, strict=True):
        queues_family.add_metric((queue,), length)
    return [*_make_tick_families(stats), stopped_family, problems_family, entries_family, queues_family]


def _make_tick_families(stats: Mapping[str, str]) -> list[Metric]:
    ticks_family = metrics.TICKS.make_counter()
    ticks_family.add_metric((), parse_number("counter", "ticks", stats.get("ticks")))
    skips_family = metrics.TICKS_SKIPPED.make_counter()
    skip_counts = {
        name.removeprefix("skipped:"): parse_number("counter", name, text)
        for name, text in stats.items()
        if name.startswith("skipped:")
    }
    # Expose all reasons from the start, because rate() misses an increase from absent to 1.
    for reason, count in sorted({**dict.fromkeys(REASONS, 0.0), **skip_counts}.items()):
        skips_family.add_metric((reason,), count)
    cumulative_count = 0.0
    buckets: list[tuple[str, float]] = []
    for bound in (*keys.LAG_BOUNDS, "+Inf"):
        cumulative_count += parse_number("counter", f"lag:{bound}", stats.get(f"lag:{bound}"))
        buckets.append((bound, cumulative_count))
    lag_family = HistogramMetricFamily(metrics.LAG.name, metrics.LAG.help)
    lag_family.add_metric((), buckets, parse_number("counter", "lag:sum", stats.get("lag:sum")))
    return [lag_family, ticks_family, skips_family]
