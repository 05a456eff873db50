"""Measures the lag of beat's ticks, and beat's costs.

    python -m bench.scheduler [--entries 1000,10000,35000] [--seconds 40] [--quick] [--strict] [--json FILE]

Starts a Redis (AOF every second, as in production) and the real `celery -A dsf.celery beat` for each number of entries,
empties the clusters' queues as agents would, and reads beat's own statistics. Lag is send time minus due time; its
quantiles are interpolated within the buckets of the histogram. CPU is a share of one core.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import redis

from bench.common import MEGABYTE, Figure, Measurement, make_parser, process, read_cpu_seconds, report
from dsf import keys
from dsf.settings import make_child_environment
from dsf.store.entries import Entry
from dsf.store.schedule import ScheduleStore
from tests.support.redisserver import RedisServer
from tests.support.wait import wait_for

#: Scorers per cluster; the number of clusters results from the number of entries.
SCORERS = 35
#: Seconds between two times at which the queues are emptied.
DRAIN_INTERVAL = 0.25
#: Seconds after beat's first tick that do not count: imports, connections, and entries that were due before its start.
WARM_UP = 3.0
#: Maximum seconds for beat to send the latter.
CATCH_UP = 30.0
#: Maximum milliseconds of the lag's 99th percentile, by number of entries.
LIMITS = {10_000: 250.0, 35_000: 1000.0}


def fill(client: redis.Redis, number: int, interval: int) -> list[str]:
    """Write the entries, each due at its slot as in normal operation, and return the queues."""
    entries = [
        Entry(
            cluster=f"cluster-{n // SCORERS:04d}", scorer=f"scorer-{n % SCORERS:02d}", score_name="s", interval=interval
        )
        for n in range(number)
    ]
    # With such a rate only the first entry gets a first run before its slot.
    ScheduleStore(client, spread_rate=1e-6).upsert(entries)
    return sorted({keys.spoke_queue(entry.cluster) for entry in entries})


def drain(client: redis.Redis, queues: list[str]) -> None:
    """Remove everything from the queues, and close the runs."""
    with client.pipeline(transaction=False) as pipe:
        pipe.unlink(*queues)
        pipe.unlink(keys.OPEN_RUNS)
        pipe.execute()


def compute_quantile(stats: dict[str, str], share: float) -> float:
    """Return a quantile of the lag in seconds, interpolated within its bucket as Prometheus does."""
    counts = [int(stats.get("lag:" + bound, 0)) for bound in keys.LAG_BOUNDS]
    uppers = [float(bound) for bound in keys.LAG_BOUNDS]
    rank = share * (sum(counts) + int(stats.get("lag:+Inf", 0)))
    below = 0.0
    for count, upper, lower in zip(counts, uppers, (0.0, *uppers), strict=False):
        if count and below + count >= rank:
            return lower + (upper - lower) * (rank - below) / count
        below += count
    return float("inf")


def drain_queues(client: redis.Redis, queues: list[str], seconds: float) -> None:
    """Empty the queues as agents do, for this many seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        drain(client, queues)
        time.sleep(DRAIN_INTERVAL)


def settle(client: redis.Redis, queues: list[str]) -> None:
    """Let beat send what became due while the entries were written and beat was starting; that is no lag of beat's.

    Gives up after a while: a beat that cannot keep up is then measured as it is.
    """
    drain_queues(client, queues, WARM_UP)
    deadline = time.monotonic() + CATCH_UP
    while client.zcount(keys.DUE, "-inf", time.time() - 1) and time.monotonic() < deadline:
        drain_queues(client, queues, DRAIN_INTERVAL)


def measure_one(number: int, seconds: float, interval: int) -> dict[str, Any]:
    """Measure a number of entries."""
    environment = make_child_environment(role="hub", target="beat", probe_port=0, log_level="WARNING")
    command = [sys.executable, "-m", "dsf.hub"]
    with (
        RedisServer(options=("--appendonly", "yes", "--appendfsync", "everysec")) as server,
        tempfile.TemporaryDirectory() as folder,
    ):
        client = server.client()
        queues = fill(client, number, interval)
        with process(command, environment | {"DSF_REDIS_URL": server.url}, Path(folder) / "log") as running:
            wait_for(lambda: client.hget(keys.BEAT_STATS, "ticks"), 30, "beat's first tick")
            settle(client, queues)
            beat, redis_server = psutil.Process(running.pid), psutil.Process(server.pid)
            client.delete(keys.BEAT_STATS)
            start, cpu_before = time.monotonic(), [read_cpu_seconds(beat), read_cpu_seconds(redis_server)]
            drain_queues(client, queues, seconds)
            stats: dict[str, str] = client.hgetall(keys.BEAT_STATS)  # type: ignore[assignment]
            duration = time.monotonic() - start
            shares = [
                (read_cpu_seconds(process) - seconds_before) / duration
                for process, seconds_before in zip((beat, redis_server), cpu_before, strict=True)
            ]
            memory = beat.memory_info().rss
    ticks = int(stats.get("ticks", 0))
    return {
        "entries": number,
        "seconds": duration,
        "interval_s": interval,
        "ticks_per_s": ticks / duration,
        "due_per_s": number / interval,
        "lag_p50_ms": 1000 * compute_quantile(stats, 0.5),
        "lag_p99_ms": 1000 * compute_quantile(stats, 0.99),
        "lag_mean_ms": 1000 * float(stats.get("lag:sum", 0)) / max(1, ticks),
        "beat_cpu": shares[0],
        "redis_cpu": shares[1],
        "beat_mb": memory / MEGABYTE,
        "skipped": sum(int(n) for name, n in stats.items() if name.startswith("skipped:")),
    }


def make_figures(row: dict[str, Any]) -> list[Figure]:
    """Return the rows of one number of entries."""
    name = f"scheduler, {row['entries']:,} entries of {row['interval_s']} s"
    cost = f"{row['beat_cpu']:.0%} of a core, Redis {row['redis_cpu']:.0%}"
    lag = f"p50 {row['lag_p50_ms']:.0f} ms, p99 {row['lag_p99_ms']:.0f} ms; {cost}"
    late = Figure(f"{name}: lag", lag, row["lag_p99_ms"], "ms", upper_limit=LIMITS.get(row["entries"]))
    # Slots are whole seconds, and a measurement begins and ends within one.
    minimum_share = 0.99 - 1 / row["seconds"]
    ticks_figure = Figure(
        f"{name}: ticks sent",
        f"{row['ticks_per_s']:.0f}/s, {row['skipped']} skipped",
        (row["ticks_per_s"] - row["skipped"]) / row["due_per_s"],
        "x",
        f"ticks that are due, {row['due_per_s']:.0f}/s",
        lower_limit=round(minimum_share, 2),
    )
    return [late, ticks_figure]


def measure(entries: list[int], seconds: float, interval: int) -> Measurement:
    """Measure all numbers of entries."""
    rows = [measure_one(number, seconds, interval) for number in entries]
    return [figure for row in rows for figure in make_figures(row)], rows


def main() -> int:
    """Measure and print."""
    parser = make_parser(__doc__)
    parser.add_argument("--entries", default="1000,10000,35000", help="numbers of entries, separated by commas")
    parser.add_argument("--seconds", type=float, help="length of each measurement")
    parser.add_argument("--interval", type=int, default=30, help="interval of every entry in seconds")
    arguments = parser.parse_args()
    seconds = arguments.seconds or (10.0 if arguments.quick else 40.0)
    return report(arguments, measure([int(n) for n in arguments.entries.split(",")], seconds, arguments.interval))


if __name__ == "__main__":
    sys.exit(main())
