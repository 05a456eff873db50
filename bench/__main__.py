"""All benches, one after the other, and one table of their figures beside their limits.

    python -m bench [--quick] [--only NAME ...] [--strict] [--json FILE]

Every bench is a process of its own. A missed limit is shown; it makes the exit code 1 only with --strict, because on a
machine with other work the figures are what that work left over. A bench that fails or runs out of time makes it 2.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from bench.adapters import read
from bench.common import ROOT, Figure, exit_code, make_console, make_parser, make_table, write

FAILED = 2
#: Maximum seconds for all benches together, quick and full: twice the time of a fast machine. Benches that have not
#: begun by then are skipped.
QUICK_SECONDS, FULL_SECONDS = 175.0, 1500.0
#: Seconds in which an interrupted bench must end its processes.
_GRACE = 15.0


@dataclass(frozen=True)
class Bench:
    """A module of this package. `quick` and `full` are its arguments, in addition to `--json FILE`."""

    name: str
    quick: tuple[str, ...] = ("--quick",)
    full: tuple[str, ...] = ()
    #: True if the bench runs only when named, because it takes longer than all others together, or needs packages.
    on_request: bool = False

    def make_command(self, file: Path, *, quick: bool) -> list[str]:
        """Return the command that runs it."""
        return [sys.executable, "-m", f"bench.{self.name}", *(self.quick if quick else self.full), "--json", str(file)]


BENCHES = (
    Bench("stages"),
    Bench("expression"),
    Bench("authentication"),
    Bench("severalsources"),
    Bench("cycle"),
    Bench("backtest"),
    Bench("scheduler"),
    Bench("ingest"),
    Bench("firstscore"),
    Bench("memory"),
    Bench("commands"),
    Bench("otlp"),
    Bench("scorer_overhead", ("--rounds", "3", "--seconds", "0.2")),
    Bench("forecast"),
    Bench(
        "optimizer",
        ("--size", "10x5x3", "--size", "100x50x3", "--seconds", "3"),
        # All sizes except the largest.
        (
            *("--size", "10x5x3", "--size", "mixed-20x10x3", "--size", "100x50x3", "--size", "mixed-100x50x3"),
            *("--size", "500x200x3", "--size", "mixed-500x200x3", "--http", "10x5x3", "--http", "100x50x3"),
        ),
    ),
    Bench("kube", ("--rounds", "3", "--seconds", "0", "--clusters", "0"), on_request=True),
    Bench("writes", (), on_request=True),
    Bench("hub", on_request=True),
    Bench("agent", on_request=True),
    Bench("rest", on_request=True),
    Bench("fleet", on_request=True),
    Bench("readmodel", on_request=True),
    Bench("web", on_request=True),
)


@dataclass
class Report:
    """The results of all benches."""

    figures: list[tuple[str, Figure]] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)
    #: Name of a bench -> the reason why it has no figures.
    problems: dict[str, str] = field(default_factory=dict)

    def document(self, machine: dict[str, Any]) -> dict[str, Any]:
        """Return the content of the JSON file."""
        figures = [{"bench": name, **asdict(figure), "is_met": figure.is_met} for name, figure in self.figures]
        return {"machine": machine, "figures": figures, "details": self.details, "problems": self.problems}


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line. Unknown names end the program with 2."""
    parser = make_parser(__doc__)
    names = [bench.name for bench in BENCHES]
    parser.add_argument(
        "--only",
        action="append",
        choices=names,
        metavar="NAME",
        help=f"run only this one, may be given again: {', '.join(names)}",
    )
    return parser.parse_args(arguments)


def selected_benches(only: Sequence[str] | None) -> list[Bench]:
    """Return the benches to run, in their own order."""
    return [bench for bench in BENCHES if (bench.name in only if only else not bench.on_request)]


def run_one(bench: Bench, report: Report, *, quick: bool, seconds: float) -> None:
    """Run one bench for at most this many seconds, and add its figures, or its problem, to the report."""
    with tempfile.TemporaryDirectory() as folder:
        file, log = Path(folder) / "figures.json", Path(folder) / "log"
        with log.open("wb") as output:
            code = _run(bench.make_command(file, quick=quick), output, seconds)
        if not file.exists():
            lines = log.read_text(errors="replace").strip().splitlines() or [f"ended with {code} and said nothing"]
            report.problems[bench.name] = f"not done in {seconds:.0f} s" if code is None else lines[-1]
            return
        figures, report.details[bench.name] = read(bench.name, json.loads(file.read_text(encoding="utf-8")))
    report.figures += [(bench.name, figure) for figure in figures]


def _run(command: list[str], output: IO[bytes], seconds: float) -> int | None:
    """Run a command, and return its exit code, or None after a timeout. Its processes end with it."""
    # A separate process group, so that all of its processes can be ended.
    running = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output, start_new_session=True)
    try:
        return running.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if running.poll() is None:
            # First only the bench itself, which then ends its processes as after Ctrl-C; later all remaining
            # processes.
            running.send_signal(signal.SIGINT)
            try:
                running.wait(_GRACE)
            except subprocess.TimeoutExpired:
                os.killpg(running.pid, signal.SIGKILL)
                running.wait()


def machine() -> dict[str, Any]:
    """Return the properties of the machine on which the figures depend."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 1),
    }


def main() -> int:
    """Run the benches, print the table, and return the exit code."""
    arguments = parse()
    # SIGTERM acts as Ctrl-C: it ends the running bench with all of its processes.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    machine_facts, report = machine(), Report()
    deadline = time.monotonic() + (QUICK_SECONDS if arguments.quick else FULL_SECONDS)
    for bench in selected_benches(arguments.only):
        remaining_seconds = deadline - time.monotonic()
        if remaining_seconds <= 0 and not arguments.only:
            report.problems[bench.name] = "not run: no time was left; see --only"
            continue
        print(f"{bench.name} ...", end="", file=sys.stderr, flush=True)
        started = time.monotonic()
        run_one(bench, report, quick=arguments.quick, seconds=FULL_SECONDS if arguments.only else remaining_seconds)
        print(f" {time.monotonic() - started:.0f} s", file=sys.stderr)
    machine_facts["load_after"] = round(os.getloadavg()[0], 1)
    figures = [figure for _, figure in report.figures]
    out = make_console()
    out.print(make_table(figures))
    out.print(", ".join(f"{name.replace('_', ' ')} {value}" for name, value in machine_facts.items()), highlight=False)
    for name, problem in report.problems.items():
        out.print(f"{name} failed: {problem}", style="bold red", highlight=False, markup=False)
    if arguments.json:
        write(arguments.json, report.document(machine_facts))
    return FAILED if report.problems else exit_code(figures, strict=arguments.strict)


if __name__ == "__main__":
    sys.exit(main())
