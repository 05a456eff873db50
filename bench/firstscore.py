"""Time from a manifest being written to the first score being readable.

    python -m bench.firstscore [--quick] [--strict] [--json FILE]

The whole stack as processes, on a folder of manifests. Each round applies a DynamicScorer that was never there; the hub
has to find it, to check its health, to ask its /config, to hand it to the agent and to schedule it; then the cycle with
a Prometheus source runs. Readable means: the AddOnPlacementScore is there with its item, and the page's
/api/v1/scores has it. The scorer answers at once and says how long it took; the limit is for the rest.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import requests
import yaml

from bench.common import Figure, Measurement, format_spread, make_parser, report
from bench.peers import make_matrix, make_scores, run_server
from bench.stack import CLUSTER, Production
from tests.support.wait import wait_for

#: Maximum milliseconds, in addition to the scorer's own time.
LIMIT = 2000
INTERVAL = 30
#: Seconds between polls for the score, and so the accuracy of the figure.
LOOK = 0.01


class Scorer(BaseHTTPRequestHandler):
    """Scoring API and source of any number of scorers, `/<name>/...`. `/<name>/log` returns the requests with their
    times.
    """

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    log: dict[str, list[tuple[str, float, float]]]
    series, results = make_matrix(100), make_scores(10)

    def do_GET(self) -> None:
        """Respond to requests for health, configuration, source and log."""
        started, arrived = time.perf_counter(), time.time()
        name, _, page = self.path.strip("/").partition("?")[0].partition("/")
        if page == "log":
            self._send(json.dumps(self.log.get(name, [])).encode())
            return
        if page == "source":
            self._send(self.series)
        elif page == "config":
            self._send(json.dumps(self._config(name)).encode())
        else:
            self._send(b"ok")
        # A health check concerns the server and names no scorer, so it has its own entry.
        self.log.setdefault(name, []).append((page or name, arrived, time.perf_counter() - started))

    def do_POST(self) -> None:
        """Score."""
        started, arrived = time.perf_counter(), time.time()
        self.rfile.read(int(self.headers["Content-Length"]))
        self._send(self.results)
        name = self.path.strip("/").partition("/")[0]
        self.log.setdefault(name, []).append(("scoring", arrived, time.perf_counter() - started))

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def _config(self, name: str) -> dict[str, Any]:
        host = f"http://{self.headers['Host']}"
        params = {"query": "up", "range": 3600, "step": 60}
        source = {"type": "Prometheus", "host": host, "path": f"/{name}/source", "params": params}
        scoring = {"host": host, "path": f"/{name}/scoring", "params": {"name": f"{name}-score", "interval": INTERVAL}}
        return {"name": name, "description": "", "source": source, "scoring": scoring}

    def _send(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def serve() -> None:
    """Serve the scoring API, and print the port."""
    Scorer.log = {}
    with ThreadingHTTPServer(("127.0.0.1", 0), Scorer) as running:
        print(running.server_address[1], flush=True)
        running.serve_forever()


class Readers:
    """Polls for the score in the places where users read it."""

    def __init__(self, stack: Production, name: str) -> None:
        self._stack = stack
        self._name = name
        self._file = stack.out / "clusters" / CLUSTER / "addonplacementscores" / f"{name}-score.yaml"
        self.seen: dict[str, float] = {}

    def poll(self) -> bool:
        """Poll all places. True if all have the score."""
        for reader, sees in (("object", self._object), ("web", self._exporter)):
            if reader not in self.seen and sees():
                self.seen[reader] = time.time()
        return len(self.seen) == 2

    def _object(self) -> bool:
        if not self._file.exists():
            return False
        return bool(yaml.safe_load(self._file.read_text(encoding="utf-8"))["status"].get("scores"))

    def _exporter(self) -> bool:
        response = self._stack.page("web", f"/api/v1/scores?scorer={self._name}")
        # 404 until the scorer is registered.
        return response.status_code == 200 and any(score["items"] for score in response.json()["scores"])


def first_score(stack: Production, url: str, name: str) -> dict[str, float]:
    """Run a round. Return the milliseconds after the manifest's write at which each step happened, and the scorer's
    time.
    """
    readers = Readers(stack, name)
    written_at = time.time()
    stack.scorer(name, {"configURL": f"{url}/{name}/config", "configSyncMode": "Full"})
    wait_for(readers.poll, 30, f"the first score of {name}", interval=LOOK)
    log_entries: list[tuple[str, float, float]] = []
    for page in (name, "healthz"):
        log_entries += [
            entry for entry in requests.get(f"{url}/{page}/log", timeout=5).json() if entry[1] >= written_at
        ]
    times = {page: at for page, at, _ in reversed(log_entries)} | readers.seen
    delays = {page: 1000 * (at - written_at) for page, at in sorted(times.items(), key=lambda pair: pair[1])}
    delays["own"] = 1000 * sum(seconds for _, _, seconds in log_entries)
    return delays


@contextmanager
def running() -> Iterator[tuple[Production, str]]:
    """Yield the stack and the URL of the scoring API."""
    with (
        tempfile.TemporaryDirectory() as folder,
        run_server("bench.firstscore", "--serve") as url,
        Production(Path(folder) / "stack") as stack,
    ):
        yield stack, url


def measure(quick: bool) -> Measurement:
    """Return all rounds."""
    with running() as (stack, url):
        # The first round connects and imports modules, so it has its own row.
        cold = first_score(stack, url, "cold")
        rounds = [first_score(stack, url, f"warm-{number}") for number in range(4 if quick else 12)]
    steps = [step for step in cold if step != "own"]
    medians = {step: statistics.median(delays[step] for delays in rounds) for step in steps}
    own_times = [delays["own"] for delays in rounds]
    against = f"2 s + the scorer's own time, {format_spread(own_times, 'ms', 1)}"
    figures = []
    for reader, title in (("object", "AddOnPlacementScore"), ("web", "/api/v1/scores")):
        # Without the scorer's own time, like the limit.
        waited = [delays[reader] - delays["own"] for delays in rounds]
        name = f"manifest to first score in {title}"
        figures.append(Figure(name, format_spread(waited, "ms", 0), max(waited), "ms max", against, upper_limit=LIMIT))
    slowest = max(cold["object"], cold["web"]) - cold["own"]
    name = "manifest to first score, first one of new processes"
    figures.append(Figure(name, f"{slowest:.0f} ms", slowest, "ms", against, upper_limit=LIMIT))
    return figures, {"median_ms_until": medians, "cold": cold, "rounds": rounds}


def main() -> int:
    """Measure and print."""
    parser = make_parser(__doc__)
    parser.add_argument("--serve", action="store_true", help="be the scoring API, as this program starts it itself")
    arguments = parser.parse_args()
    if arguments.serve:
        serve()
        return 0
    measurement = measure(arguments.quick)
    steps = measurement[1]["median_ms_until"].items()
    print("median ms until:", ", ".join(f"{step} {ms:.0f}" for step, ms in sorted(steps, key=lambda pair: pair[1])))
    return report(arguments, measurement)


if __name__ == "__main__":
    sys.exit(main())
