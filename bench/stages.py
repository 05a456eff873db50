"""CPU of the agent's stage code: fetch and score, without Celery.

    python -m bench.stages [--quick] [--strict] [--json FILE]

Held against moving the same bytes with requests and nothing else, in the same process and in turns. Source and scoring
API are in a process of their own and are not counted. Every size runs in its own process, so that one does not warm up
the next.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import requests

from bench.common import MEGABYTE, ROOT, Figure, Measurement, format_spread, make_parser, read_highest_memory, report
from bench.peers import POINTS, make_summary, run_server
from dsf.agent.secrets import FileSecrets, Release
from dsf.cycle.stages import Cycle, FilePayload, Stages, store_payload
from dsf.settings import Settings

#: Series -> maximum CPU relative to moving the same bytes. The limits are for a scoring API with few results.
LIMITS = {100: 1.3, 1_000: 2.3, 10_000: 2.6}
FEW = 10
CLUSTER = "bench"


def measure_call(work: Callable[[], object], seconds: float) -> float:
    """Return the CPU milliseconds of one call, user and system, from calls during about `seconds`."""
    calls = 0
    started = time.monotonic()
    cpu_before = time.process_time()
    while calls < 2 or time.monotonic() - started < seconds:
        work()
        calls += 1
    return 1000 * (time.process_time() - cpu_before) / calls


def stages(url: str, series: int, results: int, rounds: int, seconds: float) -> dict[str, Any]:
    """Measure one size: CPU of both in every round, and the memory of the stages."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(cluster=CLUSTER)
        stage_runner = Stages(settings, FileSecrets(None, Release(settings)))
        scorer = make_summary("bench", url, series, results)
        session = requests.Session()
        session.trust_env = False
        params: dict[str, str | int] = {"query": scorer.source_query, "start": 0, "end": 3600, "step": 60}

        def move() -> None:
            body = session.get(scorer.source_endpoint, params=params).content
            response = session.post(scorer.scoring_endpoint, data=body, headers={"Content-Type": "application/json"})
            assert response.content

        def cycle() -> None:
            run = Cycle(scorer.name, "run", scorer, math.inf)
            request = store_payload(Path(folder), stage_runner.fetch(run).pieces)
            stage_runner.score(run, request)
            if isinstance(request, FilePayload):
                request.close()

        # The peers generate their responses at the first request.
        requests.get(scorer.source_endpoint, timeout=60, stream=True).close()
        process = psutil.Process()
        at_rest = process.memory_info().rss
        cycle()
        peak, final_bytes = read_highest_memory(process.pid), process.memory_info().rss
        move()
        pairs = [(measure_call(move, seconds), measure_call(cycle, seconds)) for _ in range(rounds)]
        session.close()
    return {
        "series": series,
        "results": results,
        "move_ms": [moving for moving, _ in pairs],
        "stages_ms": [cycling for _, cycling in pairs],
        "ratios": [cycling / moving for moving, cycling in pairs],
        "rest_mb": at_rest / MEGABYTE,
        "peak_mb": (peak - at_rest) / MEGABYTE,
        "after_mb": (final_bytes - at_rest) / MEGABYTE,
    }


def measure_in_process(*values: object) -> dict[str, Any]:
    """Run the measurement of one size in a separate process."""
    command = [sys.executable, "-m", "bench.stages", "--stages", *map(str, values)]
    output = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    measured: dict[str, Any] = json.loads(output)
    return measured


def figure(row: dict[str, Any]) -> Figure:
    """Return a row of the table."""
    series, results = row["series"], row["results"]
    return Figure(
        f"CPU of fetch + score, {series:,} x {POINTS} samples, {results:,} results",
        format_spread(row["stages_ms"], "ms"),
        statistics.median(row["ratios"]),
        "x",
        f"moving the same bytes, {format_spread(row['move_ms'], 'ms')}",
        upper_limit=LIMITS[series] if results == FEW else None,
    )


def measure(quick: bool) -> Measurement:
    """Measure all sizes, each with few results and with as many as series."""
    rounds, seconds = (5, 0.2) if quick else (11, 0.6)
    rows = []
    with run_server() as url:
        for series in LIMITS:
            sizes = (FEW,) if quick else (FEW, series)
            rows += [measure_in_process(url, series, results, rounds, seconds) for results in sizes]
    return [figure(row) for row in rows], rows


def main() -> int:
    """Measure and print."""
    parser = make_parser(__doc__)
    parser.add_argument("--stages", nargs=5, help="one measurement, as this program starts it itself")
    arguments = parser.parse_args()
    if arguments.stages:
        url, series, results, rounds, seconds = arguments.stages
        print(json.dumps(stages(url, int(series), int(results), int(rounds), float(seconds))))
        return 0
    return report(arguments, measure(arguments.quick))


if __name__ == "__main__":
    sys.exit(main())
