"""Cost of viewing a large fleet on the page: each kind of page, and 200 open pages that poll their content.

    python -m bench.web [--quick] [--strict] [--json FILE]

3,500 clusters x 10 scorers (`--quick`: 1,000 x 10), seeded in a Redis of its own as a hub would have left them, a real
`dsf hub --target web`. CPU time of that process per page, best of three that are more than a second apart, so that none
has the reading of the one before. Then 200 pages are polled every three seconds, half of them the first page, while 100
pairs a second get a newer score.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import redis
import requests

from bench.common import Figure, Measurement, process, read_cpu_seconds, read_highest_memory, run
from bench.seeded import seed, start_redis
from dsf import keys

CLUSTERS, QUICK_CLUSTERS = 3500, 1000
SCORERS, ITEMS = 10, 6
ROUNDS = 3
#: Number of open pages, and seconds of the measurement.
OPEN, WATCHED, QUICK_WATCHED = 200, 20.0, 8.0
#: Seconds between two polls of a page (`data-every` in page.html).
EVERY = 3.0
#: Number of pairs that get a newer score each second.
CHANGES = 100
#: Limits: seconds of CPU and of waiting, elements, bytes, part of a core.
VIEW_CPU, FIRST_VIEW, NODES, MEMORY, POLL_CPU = 0.05, 1.0, 5000, 150_000_000, 0.5
PATHS = (
    *("/", "/scorers/scorer-03", "/clusters/cluster-0007", "/clusters/cluster-0003/scorers/scorer-02"),
    *("/find?q=state:failing", "/find?q=cluster:cluster-00*", "/find?q=reason:bad_query", "/changes", "/plans"),
    *("/find?q=set:set-03", "/parts", "/?set=set-03"),
)


def measure(quick: bool) -> Measurement:
    """Return a row for the most expensive page, and rows for the other figures."""
    clusters = QUICK_CLUSTERS if quick else CLUSTERS
    with start_redis() as (client, ports, environment, folder):
        seed(client, clusters, SCORERS, ITEMS)
        port = ports.any()
        environment |= {"DSF_TARGET": "web", "DSF_PROBE_PORT": "0", "DSF_LISTEN_PORT": str(port), "DSF_BACKEND": "dir"}
        with process([sys.executable, "-m", "dsf.hub"], environment, folder / "web.log") as page:
            url = f"http://127.0.0.1:{port}"
            _wait(url)
            first = _measure_page(page, url, "/")[1]
            views = {path: _measure_view(page, url, path) for path in PATHS}
            polling = _measure_polling(page, url, client, QUICK_WATCHED if quick else WATCHED)
            highest = read_highest_memory(page.pid)
    pairs = clusters * SCORERS
    dearest = max(views, key=lambda path: views[path][0])
    slowest = max(views, key=lambda path: views[path][1])
    largest = max(views, key=lambda path: views[path][2])
    cpu_share, change_count = polling
    figures = [
        Figure(f"first page of {pairs:,} after the start", f"{first:.2f} s", first, "s", upper_limit=FIRST_VIEW),
        _figure("dearest page, CPU", views[dearest][0], dearest, VIEW_CPU),
        _figure("slowest page", views[slowest][1], slowest, FIRST_VIEW),
        Figure("largest page, elements", f"{views[largest][2]:,}, {largest}", views[largest][2], "", upper_limit=NODES),
        Figure("highest memory", f"{highest / 1e6:.0f} MB", highest, "B", upper_limit=MEMORY),
        Figure(
            f"{OPEN} open pages, {CHANGES} changes a second",
            f"{100 * cpu_share:.1f} % of a core, {change_count:,} responses with new data",
            cpu_share,
            "cores",
            upper_limit=POLL_CPU,
        ),
    ]
    return figures, {"views": views, "first": first, "polled": polling, "memory": highest}


def _figure(name: str, seconds: float, path: str, limit: float) -> Figure:
    return Figure(name, f"{seconds * 1000:.0f} ms, {path}", seconds, "s", upper_limit=limit)


def _wait(url: str) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if requests.get(f"{url}/healthz", timeout=5).ok:
                return
        except requests.ConnectionError:
            time.sleep(0.1)
    raise TimeoutError(f"no page at {url}")


def _measure_page(page: subprocess.Popen[bytes], url: str, path: str) -> tuple[float, float, int]:
    """Return CPU seconds, seconds and elements of one page."""
    watched = psutil.Process(page.pid)
    cpu_before, began = read_cpu_seconds(watched), time.monotonic()
    response = requests.get(url + path, timeout=60)
    duration = time.monotonic() - began
    response.raise_for_status()
    return read_cpu_seconds(watched) - cpu_before, duration, len(re.findall(r"<[a-zA-Z]", response.text))


def _measure_view(page: subprocess.Popen[bytes], url: str, path: str) -> tuple[float, float, int]:
    rounds = []
    for _ in range(ROUNDS):
        # Wait until the snapshot expires, because a read of the fleet serves all pages for a second.
        time.sleep(1.2)
        rounds.append(_measure_page(page, url, path))
    return min(rounds)


def _measure_polling(page: subprocess.Popen[bytes], url: str, client: redis.Redis, seconds: float) -> tuple[float, int]:
    """Return the share of a core that open pages take while pairs change, and the share of their polls with new
    content.
    """
    paths = ["/"] * (OPEN // 2) + [f"/scorers/scorer-{number % SCORERS:02}" for number in range(OPEN // 2)]
    tags = dict.fromkeys(range(OPEN), '"none"')
    local = threading.local()

    def poll(number: int) -> bool:
        if not hasattr(local, "session"):
            local.session = requests.Session()
        response = local.session.get(url + paths[number], headers={"If-None-Match": tags[number]}, timeout=60)
        tags[number] = response.headers["ETag"]
        return bool(response.status_code == 200)

    watched, changes_ended = psutil.Process(page.pid), threading.Event()
    worker = threading.Thread(target=_change_scores, args=(client, changes_ended))
    worker.start()
    try:
        with ThreadPoolExecutor(8) as pool:
            # All pages have their first content.
            list(pool.map(poll, range(OPEN)))
            cpu_before, began, change_count = read_cpu_seconds(watched), time.monotonic(), 0
            while (passed := time.monotonic() - began) < seconds:
                change_count += sum(pool.map(poll, range(OPEN)))
                time.sleep(max(0.0, began + passed + EVERY - time.monotonic()))
            return (read_cpu_seconds(watched) - cpu_before) / (time.monotonic() - began), change_count
    finally:
        changes_ended.set()
        worker.join()


def _change_scores(client: redis.Redis, changes_ended: threading.Event) -> None:
    """Write newer scores of some pairs, as results workers do."""
    number = 0
    while not changes_ended.wait(1.0):
        now = time.time()
        with client.pipeline(transaction=False) as pipe:
            for _ in range(CHANGES):
                cluster, scorer = f"cluster-{number % QUICK_CLUSTERS:04}", f"scorer-{number % SCORERS:02}"
                pair = keys.pair(cluster, scorer)
                row = {"last_success": str(now), "valid_until": str(now + 900), "items": "1"}
                pipe.hset(keys.ROWS, pair, json.dumps(row))
                pipe.zadd(keys.CHANGED, {pair: client.incr(keys.SEQUENCE)})
                number += 7
            pipe.execute()


if __name__ == "__main__":
    sys.exit(run(__doc__, measure))
