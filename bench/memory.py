"""Resident memory of each process after its first 200 cycles, after 1,000 more, and after another 1,000.

    python -m bench.memory [--quick] [--strict] [--json FILE]

The whole stack as processes; 40 scorers of 1 s on one cluster, each with a Prometheus source of 100 x 61 samples and 10
results; the metrics of exporter and agent are scraped every second. In the first cycles all threads come to work. Flat
means: after all cycles no more than 8 MB or a tenth above that, whichever is more.
"""

from __future__ import annotations

import functools
import sys
import tempfile
import threading
import time
from pathlib import Path

import requests

from bench.common import MEGABYTE, Figure, Measurement, run
from bench.peers import run_server
from bench.stack import CLUSTER, Production
from dsf.store.pairs import Pairs
from tests.support.wait import wait_for

SCORERS, SERIES, RESULTS = 40, 100, 10
FIRST_CYCLES, CYCLES, QUICK_CYCLES = 200, 1_000, 300
#: Accepted growth: megabytes, and a share of the size before. The larger one counts.
ALLOWANCE, SHARE = 8.0, 0.1
PROCESSES = ("hub", "beat", "results", "web", f"agent {CLUSTER}")
SCRAPED = ("web", f"agent {CLUSTER}")


class Scraper(threading.Thread):
    """Scrapes the metrics as Prometheus does."""

    def __init__(self, stack: Production) -> None:
        super().__init__(name="scraper", daemon=True)
        self._urls = [f"http://127.0.0.1:{stack.port(name)}/metrics" for name in SCRAPED]
        self._stop_scraping = threading.Event()

    def run(self) -> None:
        """Scrape until stopped."""
        headers = {"Accept": "application/openmetrics-text; version=1.0.0", "Accept-Encoding": "gzip"}
        with requests.Session() as session:
            session.trust_env = False
            while not self._stop_scraping.wait(1):
                for url in self._urls:
                    session.get(url, headers=headers, timeout=10).raise_for_status()

    def stop(self) -> None:
        """End the thread."""
        self._stop_scraping.set()
        self.join()


def apply(stack: Production, url: str) -> None:
    """Apply the scorers' manifests."""
    params = {"query": "up", "range": 3600, "step": 60}
    source = {"type": "Prometheus", "host": url, "path": f"/get/{SERIES}", "params": params}
    for number in range(SCORERS):
        scoring = {"path": f"/post/{RESULTS}", "params": {"name": f"score-{number}", "interval": 1}}
        spec = {"configURL": f"{url}/config", "configSyncMode": "None", "source": source, "scoring": scoring}
        stack.scorer(f"scorer-{number}", spec)


def has_cycles(stack: Production, expected_cycles: int) -> bool:
    """True if this many successful cycles have ended."""
    pairs = Pairs(stack.redis)
    return sum(state.count("ok") for state in pairs.read_states(pairs.list_names())) >= expected_cycles


def read_memory(stack: Production) -> dict[str, float]:
    """Return the megabytes of every process."""
    return {name: stack.memory(name) / MEGABYTE for name in PROCESSES}


def watch(cycles: int) -> tuple[list[dict[str, float]], float]:
    """Return the memory after the first cycles, after `cycles` more, and after as many again; and the cycles per
    second.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        run_server() as url,
        Production(Path(folder) / "stack") as stack,
    ):
        scraper = Scraper(stack)
        scraper.start()
        try:
            samples, start = [], time.monotonic()
            apply(stack, url)
            for expected_cycles in (FIRST_CYCLES, FIRST_CYCLES + cycles, FIRST_CYCLES + 2 * cycles):
                reached = functools.partial(has_cycles, stack, expected_cycles)
                wait_for(reached, 240, f"{expected_cycles} good cycles", interval=0.2)
                samples.append(read_memory(stack))
            rate = (FIRST_CYCLES + 2 * cycles) / (time.monotonic() - start)
        finally:
            scraper.stop()
    return samples, rate


def measure(quick: bool) -> Measurement:
    """Return a row for each process."""
    cycles = QUICK_CYCLES if quick else CYCLES
    samples, rate = watch(cycles)
    initial_memory, first_memory, second_memory = samples
    figures = [
        Figure(
            f"memory of {name.partition(' ')[0]} after {cycles:,} cycles, and {cycles:,} more",
            f"{first_memory[name]:.1f} MB, {second_memory[name]:.1f} MB "
            f"({second_memory[name] - first_memory[name]:+.1f})",
            second_memory[name] - initial_memory[name],
            "MB more",
            f"after its first {FIRST_CYCLES}, {initial_memory[name]:.1f} MB",
            upper_limit=round(max(ALLOWANCE, SHARE * initial_memory[name]), 1),
        )
        for name in PROCESSES
    ]
    return figures, {
        "cycles": cycles,
        "cycles_per_second": rate,
        "before_mb": initial_memory,
        "then_mb": [first_memory, second_memory],
    }


def main() -> int:
    """Measure and print."""
    return run(__doc__, measure)


if __name__ == "__main__":
    sys.exit(main())
