"""How late does beat send ticks, and what does it cost?

    python bench/scheduler.py --entries 1000,10000,35000 --seconds 40

Starts a Redis (AOF every second, as in production) and the real `celery -A dsf.celery beat` for each number of entries,
empties the clusters' queues as agents would, and reads beat's own statistics. Lag is send time minus due time; its
quantiles are interpolated within the buckets of the histogram. CPU is a share of one core.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import redis

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dsf import keys
from dsf.metrics import LAG_BUCKETS
from dsf.settings import child_environment
from dsf.store.schedule import Entry, ScheduleStore
from tests.support.redisserver import RedisServer
from tests.support.wait import wait_for

#: Scorers per cluster; the number of clusters follows from the number of entries.
SCORERS = 35
#: Seconds between two times at which the queues are emptied.
DRAIN_INTERVAL = 0.25
#: Seconds after beat's first tick that are not counted: imports and connections.
WARM_UP = 3.0
#: p99 in seconds that is to be kept, by number of entries.
LIMITS = {10_000: 0.25, 35_000: 1.0}


def fill(client: redis.Redis, number: int, interval: int) -> list[str]:
    """Write the entries, each due at its slot as in the steady state; returns the queues."""
    entries = [
        Entry(
            cluster=f"cluster-{n // SCORERS:04d}", scorer=f"scorer-{n % SCORERS:02d}", score_name="s", interval=interval
        )
        for n in range(number)
    ]
    # At such a rate nobody but the first gets a first run before its slot.
    ScheduleStore(client, spread_rate=1e-6).upsert(entries)
    return sorted({keys.spoke_queue(entry.cluster) for entry in entries})


def drain(client: redis.Redis, queues: list[str]) -> None:
    """Take everything from the queues and close the runs."""
    with client.pipeline(transaction=False) as pipe:
        pipe.unlink(*queues)
        pipe.unlink(keys.OPEN_RUNS)
        pipe.execute()


def quantile(stats: dict[str, str], share: float) -> float:
    """A quantile of the lag in seconds, interpolated within its bucket as Prometheus does."""
    counts = [int(stats.get(f"lag:{bound:g}", 0)) for bound in LAG_BUCKETS]
    wanted = share * (sum(counts) + int(stats.get("lag:+Inf", 0)))
    below = 0.0
    for count, upper, lower in zip(counts, LAG_BUCKETS, (0.0, *LAG_BUCKETS), strict=False):
        if count and below + count >= wanted:
            return lower + (upper - lower) * (wanted - below) / count
        below += count
    return float("inf")


def cpu(process: psutil.Process) -> float:
    """Seconds of CPU this process has used."""
    times = process.cpu_times()
    return times.user + times.system


def measure(number: int, seconds: float, interval: int) -> dict[str, Any]:
    """One row of the table."""
    with RedisServer(options=("--appendonly", "yes", "--appendfsync", "everysec")) as server:
        client = server.client()
        queues = fill(client, number, interval)
        beat = subprocess.Popen(
            [sys.executable, "-m", "celery", "--quiet", "-A", "dsf.celery", "beat"],
            env=child_environment(role="beat", redis_url=server.url, log_level="WARNING"),
        )
        try:
            wait_for(lambda: client.hget(keys.BEAT_STATS, "ticks"), 30, "beat's first tick")
            until = time.monotonic() + WARM_UP
            while time.monotonic() < until:
                drain(client, queues)
                time.sleep(DRAIN_INTERVAL)
            processes = psutil.Process(beat.pid), psutil.Process(server.pid)
            client.delete(keys.BEAT_STATS)
            start, used = time.monotonic(), [cpu(process) for process in processes]
            while time.monotonic() < start + seconds:
                drain(client, queues)
                time.sleep(DRAIN_INTERVAL)
            stats: dict[str, str] = client.hgetall(keys.BEAT_STATS)  # type: ignore[assignment]
            took = time.monotonic() - start
            shares = [(cpu(process) - before) / took for process, before in zip(processes, used, strict=True)]
            memory = processes[0].memory_info().rss
        finally:
            beat.terminate()
            beat.wait(20)
    ticks = int(stats.get("ticks", 0))
    return {
        "entries": number,
        "interval_s": interval,
        "ticks_per_s": ticks / took,
        "due_per_s": number / interval,
        "lag_p50_s": quantile(stats, 0.5),
        "lag_p99_s": quantile(stats, 0.99),
        "lag_mean_s": float(stats.get("lag:sum", 0)) / max(1, ticks),
        "beat_cpu": shares[0],
        "redis_cpu": shares[1],
        "beat_rss_mb": memory / 2**20,
        "skipped": sum(int(n) for name, n in stats.items() if name.startswith("skipped:")),
    }


def main() -> int:
    """Print the table; 1 when a lag is above its limit or ticks were left out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", default="1000,10000,35000", help="numbers of entries, separated by commas")
    parser.add_argument("--seconds", type=float, default=40.0, help="length of each measurement")
    parser.add_argument("--interval", type=int, default=30, help="interval of every entry in seconds")
    parser.add_argument("--json", type=Path, help="also write the figures there")
    arguments = parser.parse_args()
    print("entries   due/s  ticks/s  lag p50  lag p99     mean  CPU beat  CPU redis  RSS beat  skipped")
    rows = []
    for number in map(int, arguments.entries.split(",")):
        row = measure(number, arguments.seconds, arguments.interval)
        rows.append(row)
        print(
            f"{number:7d} {row['due_per_s']:7.0f} {row['ticks_per_s']:8.1f} {row['lag_p50_s'] * 1000:5.0f} ms"
            f" {row['lag_p99_s'] * 1000:5.0f} ms {row['lag_mean_s'] * 1000:5.0f} ms {row['beat_cpu']:8.1%}"
            f"  {row['redis_cpu']:8.1%} {row['beat_rss_mb']:6.0f} MB {row['skipped']:8d}",
            flush=True,
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    late = [row for row in rows if row["lag_p99_s"] > LIMITS.get(row["entries"], float("inf"))]
    # A measurement may begin and end within a slot's second; a fiftieth covers that and no lost ticks.
    missing = [row for row in rows if row["skipped"] or row["ticks_per_s"] < row["due_per_s"] * 0.98 - 1]
    return 1 if late or missing else 0


if __name__ == "__main__":
    sys.exit(main())
