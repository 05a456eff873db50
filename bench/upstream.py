"""CPU of a whole cycle beside that of the upstream project's agent, which is written in Go.

    python -m bench.upstream --binary FILE [--quick] [--strict] [--json FILE]

FILE is what `go build ./cmd/dynamic-scoring` makes of the upstream project. Both agents have the same source and
scoring API, and work in turns. Ours is counted with Redis; upstream's with its GET and PUT of the AddOnPlacementScore.
The API server for these is real and not counted, as the results worker and beat are not.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import psutil

from bench.common import MEGABYTE, Figure, Measurement, format_spread, make_parser, process, read_cpu_seconds, report
from bench.cycle import Broker, broker
from bench.peers import POINTS, make_summary, run_server
from tests.support.controlplane import ControlPlane
from tests.support.wait import wait_for

#: Names of the ConfigMap that upstream's agent reads, and texts that it logs at the end of a cycle.
NAMESPACE, CONFIG = "dynamic-scoring", "dynamic-scoring-config"
SENT, FAILED = b"Sent scores in", b"Scoring error"
#: Minimum seconds of one turn. The shortest interval of upstream's agent is one second.
TURN = 5


@dataclass(frozen=True)
class Size:
    """Scorers, each once a second, with their series and results, and the required ratio of upstream's CPU to ours."""

    scorers: int
    series: int
    results: int
    lower_limit: float

    @property
    def names(self) -> list[str]:
        """Names of the scorers."""
        return [f"scorer-{number}" for number in range(self.scorers)]


SIZES = (Size(25, 100, 10, 1.0), Size(10, 1000, 10, 4.0), Size(1, 10_000, 10, 8.0), Size(1, 10_000, 10_000, 6.0))


class Upstream:
    """The agent in Go. Cycles are counted in its log, because /metrics with 10,000 scores costs more than a cycle."""

    def __init__(self, running: subprocess.Popen[bytes], log: BinaryIO) -> None:
        self.process = psutil.Process(running.pid)
        self._running = running
        self._log = log
        self._ended = 0

    def finished_cycles(self) -> int:
        """Return the number of cycles so far. Raises RuntimeError if one failed, or the agent has ended."""
        if self._running.poll() is not None:
            raise RuntimeError(f"upstream's agent has ended: {self._log.read().decode()}")
        while (line := self._log.readline()).endswith(b"\n"):
            if FAILED in line:
                raise RuntimeError(f"a cycle of upstream's agent failed: {line.decode()}")
            self._ended += SENT in line
        self._log.seek(-len(line), os.SEEK_CUR)
        return self._ended

    def wait_for_cycle(self) -> tuple[int, float]:
        """Wait for the end of a cycle. Return the cycles and seconds of CPU so far, without parts of a cycle."""
        cycles_before = self.finished_cycles()
        wait_for(lambda: self.finished_cycles() > cycles_before, 60, "a cycle of upstream's agent")
        return self.finished_cycles(), read_cpu_seconds(self.process)

    def measure_turn(self) -> float:
        """Return the milliseconds of CPU per cycle, while it runs."""
        self.process.send_signal(signal.SIGCONT)
        cycles_before, start = self.wait_for_cycle()
        time.sleep(TURN)
        cycles_after, end = self.wait_for_cycle()
        self.process.send_signal(signal.SIGSTOP)
        return 1000 * (end - start) / (cycles_after - cycles_before)


@contextmanager
def upstream(binary: Path, url: str, size: Size) -> Iterator[Upstream]:
    """Start that agent with these scorers and an API server; it is suspended."""
    with ControlPlane() as plane, tempfile.TemporaryDirectory() as folder:
        cluster = plane.cluster()
        summaries = []
        for name in size.names:
            new_summary = make_summary(name, url, size.series, size.results)
            scorer_fields = {"scoring_interval": 1, "score_dimension_format": "${pod}"}
            summaries.append(new_summary.model_copy(update=scorer_fields).model_dump(mode="json", by_alias=True))
        (Path(folder) / "summaries").write_text(json.dumps(summaries))
        plane.kubectl("create", "namespace", NAMESPACE)
        plane.kubectl("create", "configmap", CONFIG, "-n", NAMESPACE, f"--from-file={folder}/summaries")
        command = [str(binary), "agent", f"--kubeconfig={plane.kubeconfig}", f"--hub-kubeconfig={plane.kubeconfig}"]
        command += [f"--cluster-name={cluster}", f"--addon-namespace={NAMESPACE}", f"--component-namespace={NAMESPACE}"]
        log = Path(folder) / "log"
        with process(command, {"PATH": "/usr/bin:/bin"}, log) as running, log.open("rb") as log_stream:
            upstream_agent = Upstream(running, log_stream)
            try:
                upstream_agent.wait_for_cycle()
                upstream_agent.process.send_signal(signal.SIGSTOP)
                yield upstream_agent
            finally:
                # A suspended process receives no SIGTERM.
                running.send_signal(signal.SIGCONT)


def measure_ours(running: Broker, size: Size) -> float:
    """Return the milliseconds of CPU per cycle, of agent and Redis."""
    start = read_cpu_seconds(running.agent, running.server)
    for _ in range(TURN):
        running.cycles(size.names, pace=size.scorers)
    return 1000 * (read_cpu_seconds(running.agent, running.server) - start) / TURN / size.scorers


def measure(binary: Path, quick: bool) -> Measurement:
    """Return all figures."""
    figures, details = [], []
    for size in SIZES:
        with (
            run_server() as url,
            broker(url, size.names, size.series, size.results) as running,
            upstream(binary, url, size) as upstream_agent,
        ):
            measure_ours(running, size), upstream_agent.measure_turn()
            measured_pairs = [
                (measure_ours(running, size), upstream_agent.measure_turn()) for _ in range(2 if quick else 8)
            ]
            our_megabytes, upstream_megabytes = (
                process.memory_info().rss / MEGABYTE for process in (running.agent, upstream_agent.process)
            )
        our_milliseconds, upstream_milliseconds = zip(*measured_pairs, strict=True)
        name = f"CPU of a whole cycle, {size.series:,} x {POINTS} samples and {size.results:,} results"
        ratio = statistics.median(go / python for python, go in measured_pairs)
        against = (
            f"upstream's agent, {format_spread(upstream_milliseconds, 'ms')}; memory {upstream_megabytes:.0f} MiB, "
            f"here {our_megabytes:.0f}"
        )
        figures.append(
            Figure(
                name, format_spread(our_milliseconds, "ms"), ratio, "x cheaper", against, lower_limit=size.lower_limit
            )
        )
        details.append(
            {
                "series": size.series,
                "results": size.results,
                "ms": our_milliseconds,
                "upstream_ms": upstream_milliseconds,
            }
        )
    return figures, details


def main() -> int:
    """Measure and print."""
    parser = make_parser(__doc__)
    parser.add_argument("--binary", type=Path, required=True, metavar="FILE", help="upstream's dynamic-scoring")
    arguments = parser.parse_args()
    arguments.binary = arguments.binary.resolve()
    if not os.access(arguments.binary, os.X_OK) or arguments.binary.is_dir():
        parser.error(f"{arguments.binary} is no program: build it with go build ./cmd/dynamic-scoring")
    return report(arguments, measure(arguments.binary, arguments.quick))


if __name__ == "__main__":
    sys.exit(main())
