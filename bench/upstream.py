"""CPU of a whole cycle beside that of the upstream project's agent, which is written in Go.

    python -m bench.upstream --binary FILE [--quick] [--strict] [--json FILE]

FILE is what `go build ./cmd/dynamic-scoring` makes of the upstream project. Both agents have the same source and
scoring API, and work in turns. Ours is counted with Redis; upstream's with its GET and PUT of the AddOnPlacementScore.
The API server for these is real and not counted, as the results worker and beat are not.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

import psutil

from bench.common import MEGABYTE, Figure, Measurement, cpu, options, process, report, spread
from bench.cycle import Broker, broker
from bench.peers import POINTS, server, summary
from tests.support.controlplane import ControlPlane
from tests.support.wait import wait_for

#: Where upstream's agent reads what it runs, and where it always shows its metrics.
NAMESPACE, CONFIG = "dynamic-scoring", "dynamic-scoring-config"
METRICS = "http://127.0.0.1:8080/metrics"
_ENDED = re.compile(r'^dynamic_scoring_requests_total\{.*status="(\w+)"\} (\S+)$', re.MULTILINE)
#: Seconds of one turn of upstream's agent, whose shortest interval is a second.
TURN = 5.0


@dataclass(frozen=True)
class Size:
    """Scorers, each once a second, with so many series and results; and how many times cheaper than upstream to be."""

    scorers: int
    series: int
    results: int
    least: float

    @property
    def names(self) -> list[str]:
        """Of the scorers."""
        return [f"scorer-{number}" for number in range(self.scorers)]


SIZES = (Size(25, 100, 10, 2.0), Size(10, 1000, 10, 5.0), Size(1, 10_000, 10, 5.0), Size(1, 10_000, 10_000, 6.0))


class Upstream:
    """The agent in Go."""

    def __init__(self, pid: int) -> None:
        self.process = psutil.Process(pid)

    def ended(self) -> int:
        """Cycles that went well so far. Raises RuntimeError when one did not."""
        with urlopen(METRICS, timeout=30) as answer:
            found = _ENDED.findall(answer.read().decode())
        if any(status != "success" for status, _ in found):
            raise RuntimeError("a cycle of upstream's agent failed")
        return int(sum(float(number) for _, number in found))

    def turn(self) -> float:
        """Milliseconds of CPU a cycle, while it runs."""
        self.process.send_signal(signal.SIGCONT)
        first = self.ended()
        wait_for(lambda: self.ended() > first, 60, "a cycle of upstream's agent")
        before, start = self.ended(), cpu(self.process)
        time.sleep(TURN)
        used, ran = cpu(self.process) - start, self.ended() - before
        self.process.send_signal(signal.SIGSTOP)
        return 1000 * used / ran


@contextmanager
def upstream(binary: Path, url: str, size: Size) -> Iterator[Upstream]:
    """That agent with these scorers and an API server; it stands still."""
    with ControlPlane() as plane, tempfile.TemporaryDirectory() as folder:
        cluster = plane.cluster()
        summaries = []
        for name in size.names:
            made = summary(name, url, size.series, size.results)
            more = {"scoring_interval": 1, "score_dimension_format": "${pod}"}
            summaries.append(made.model_copy(update=more).model_dump(mode="json", by_alias=True))
        (Path(folder) / "summaries").write_text(json.dumps(summaries))
        plane.kubectl("create", "namespace", NAMESPACE)
        plane.kubectl("create", "configmap", CONFIG, "-n", NAMESPACE, f"--from-file={folder}/summaries")
        command = [str(binary), "agent", f"--kubeconfig={plane.kubeconfig}", f"--hub-kubeconfig={plane.kubeconfig}"]
        command += [f"--cluster-name={cluster}", f"--addon-namespace={NAMESPACE}", f"--component-namespace={NAMESPACE}"]
        with process(command, {"PATH": "/usr/bin:/bin"}, Path(folder) / "log") as running:
            found = Upstream(running.pid)

            def works() -> bool:
                if running.poll() is not None:
                    raise RuntimeError((Path(folder) / "log").read_text())
                try:
                    return found.ended() > 0
                except OSError:
                    return False

            try:
                wait_for(works, 60, "a cycle of upstream's agent")
                found.process.send_signal(signal.SIGSTOP)
                yield found
            finally:
                # One that stands still does not hear that it is to end.
                running.send_signal(signal.SIGCONT)


def ours(running: Broker, size: Size) -> float:
    """Milliseconds of CPU a cycle, of agent and Redis."""
    rounds = max(1, int(TURN))
    start = cpu(running.agent, running.server)
    for _ in range(rounds):
        running.cycles(size.names, pace=size.scorers)
    return 1000 * (cpu(running.agent, running.server) - start) / rounds / size.scorers


def measure(binary: Path, quick: bool) -> Measurement:
    """All figures."""
    figures, details = [], []
    for size in SIZES:
        with (
            server() as url,
            broker(url, size.names, size.series, size.results) as running,
            upstream(binary, url, size) as other,
        ):
            ours(running, size), other.turn()
            turns = [(ours(running, size), other.turn()) for _ in range(2 if quick else 8)]
            memory = [one.memory_info().rss / MEGABYTE for one in (running.agent, other.process)]
        mine, theirs = zip(*turns, strict=True)
        name = f"CPU of a whole cycle, {size.series:,} x {POINTS} samples and {size.results:,} results"
        ratio = statistics.median(go / python for python, go in turns)
        against = f"upstream's agent, {spread(theirs, 'ms')}; memory {memory[0]:.0f} and {memory[1]:.0f} MiB"
        figures.append(Figure(name, spread(mine, "ms"), ratio, "x cheaper", against, least=size.least))
        details.append({"series": size.series, "results": size.results, "ms": mine, "upstream_ms": theirs})
    return figures, details


def main() -> int:
    """Measure and print."""
    parser = options(__doc__)
    parser.add_argument("--binary", type=Path, required=True, help="upstream's dynamic-scoring")
    arguments = parser.parse_args()
    if shutil.which(arguments.binary) is None:
        parser.error(f"{arguments.binary} is no program: build it with go build ./cmd/dynamic-scoring")
    return report(arguments, measure(arguments.binary, arguments.quick))


if __name__ == "__main__":
    sys.exit(main())
