"""Cost of reading a large fleet: the hub's `/metrics`, its JSON API, and commands.

    python -m bench.readmodel [--quick] [--strict] [--json FILE]

3,500 clusters x 10 scorers with 6 items each (`--quick`: 1,000 x 10), seeded in a Redis of its own as a hub would have
left them, a real exporter, one request after the other. CPU time of the responding process, best of three.
"""

from __future__ import annotations

import gzip
import subprocess
import sys
import time
from typing import Any

import psutil
import requests

from bench.commands import measure_cost
from bench.common import Figure, Measurement, process, read_cpu_seconds, read_highest_memory, run
from bench.seeded import seed, start_redis

CLUSTERS, QUICK_CLUSTERS = 3500, 1000
SCORERS, ITEMS = 10, 6
#: Number of clusters and items whose pairs fit into the limit of a scrape with every series.
FULL_CLUSTERS, FULL_ITEMS = 110, 10
ROUNDS = 3
#: Limits: seconds of CPU, bytes.
ANSWER_SECONDS, ANSWER_BYTES = 0.2, 1_000_000
SCRAPE_SECONDS, SCRAPE_BYTES, MEMORY = 1.0, 5_000_000, 150 * 1024 * 1024
COMMAND_SECONDS = 1.0
PATHS = (
    *("summary", "scorers", "scorers/scorer-03", "clusters?limit=200", "clusters/cluster-0007"),
    *("pairs?limit=200", "pairs?state=ok&limit=200", "pairs?reason=bad_query&limit=200"),
    *("pairs?cluster=cluster-0*&limit=200", "pairs/cluster-0003/scorer-02", "scores?limit=10000"),
    *("scores?state=failing", "schedule?limit=10000", "history/cluster-0003/scorer-02", "updates?since=0"),
)
COMMANDS = ("status", "status scorer-03", "scores", "schedule list", "scores --scorer scorer-03")


def measure(quick: bool) -> Measurement:
    """Return a row for the most expensive response of each kind."""
    clusters = QUICK_CLUSTERS if quick else CLUSTERS
    with start_redis() as (client, ports, environment, folder):
        seed(client, FULL_CLUSTERS, SCORERS, FULL_ITEMS)
        port = ports.any()
        environment |= {"DSF_TARGET": "web", "DSF_PROBE_PORT": "0", "DSF_LISTEN_PORT": str(port), "DSF_BACKEND": "dir"}
        command, url = [sys.executable, "-m", "dsf.hub"], f"http://127.0.0.1:{port}"
        with process(command, environment, folder / "full.log") as exporter:
            _wait(url)
            full = _measure_responses(exporter, url, ())["/metrics"]
        client.flushall()
        seed(client, clusters, SCORERS, ITEMS)
        memory = int(client.info("memory")["used_memory"])
        with process(command, environment, folder / "exporter.log") as exporter:
            _wait(url)
            raw = _measure_responses(exporter, url)
            highest = read_highest_memory(exporter.pid)
        seconds_by_command = {words: min(measure_cost(words, environment) for _ in range(ROUNDS)) for words in COMMANDS}
    pairs = clusters * SCORERS
    slowest = max((path for path in raw if path != "/metrics"), key=lambda path: raw[path][0])
    longest = max((path for path in raw if path != "/metrics"), key=lambda path: raw[path][1])
    seconds, size, packed = raw["/metrics"]
    dearest = max(seconds_by_command, key=lambda words: seconds_by_command[words])
    figures = [
        Figure(
            f"a scrape with every series, just below the limit, CPU ({full[1] / 1e6:.2f} MB)",
            f"{full[0]:.2f} s",
            full[0],
            "s",
            upper_limit=SCRAPE_SECONDS,
        ),
        Figure(f"a scrape of {pairs:,} x {ITEMS}, CPU", f"{seconds:.2f} s", seconds, "s", upper_limit=SCRAPE_SECONDS),
        Figure(
            f"a scrape of {pairs:,} x {ITEMS}, size",
            f"{size / 1e6:.2f} MB, {packed / 1e6:.2f} MB packed",
            size,
            "B",
            upper_limit=SCRAPE_BYTES,
        ),
        Figure("highest memory of that exporter", f"{highest / 2**20:.0f} MiB", highest, "B", upper_limit=MEMORY),
        Figure(
            "most expensive response of the JSON API, CPU",
            f"{raw[slowest][0] * 1000:.0f} ms, {slowest}",
            raw[slowest][0],
            "s",
            upper_limit=ANSWER_SECONDS,
        ),
        Figure(
            "longest response of the JSON API",
            f"{raw[longest][1] / 1000:.0f} KB, {longest}",
            raw[longest][1],
            "B",
            upper_limit=ANSWER_BYTES,
        ),
        Figure(
            "dearest command that looks, CPU of the process",
            f"{seconds_by_command[dearest]:.2f} s, dsf {dearest}",
            seconds_by_command[dearest],
            "s",
            upper_limit=COMMAND_SECONDS,
        ),
        Figure("Redis per pair, with 50 past cycles", f"{memory / pairs:,.0f} B", memory / pairs, "B"),
    ]
    return figures, {"answers": raw, "commands": seconds_by_command, "memory": highest}


def _wait(url: str) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if requests.get(f"{url}/healthz", timeout=5).ok:
                return
        except requests.ConnectionError:
            time.sleep(0.1)
    raise TimeoutError(f"no exporter at {url}")


def _measure_responses(
    exporter: subprocess.Popen[bytes], url: str, paths: tuple[str, ...] = PATHS
) -> dict[str, tuple[float, int, int]]:
    """Return CPU seconds, bytes, and compressed bytes of each response."""
    watched = psutil.Process(exporter.pid)
    rows_by_path: dict[str, tuple[float, int, int]] = {}
    for path in ("/metrics", *(f"/api/v1/{path}" for path in paths)):
        rounds: list[tuple[float, int, int]] = []
        for _ in range(ROUNDS):
            cpu_before = read_cpu_seconds(watched)
            response: Any = requests.get(url + path, headers={"Accept-Encoding": "gzip"}, stream=True, timeout=60)
            packed = response.raw.read()
            cpu_seconds = read_cpu_seconds(watched) - cpu_before
            response.raise_for_status()

            is_packed = response.headers.get("Content-Encoding") == "gzip"
            rounds.append((cpu_seconds, len(gzip.decompress(packed)) if is_packed else len(packed), len(packed)))
        rows_by_path[path] = min(rounds)
    return rows_by_path


if __name__ == "__main__":
    sys.exit(run(__doc__, measure))
