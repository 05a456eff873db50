"""Helpers of the benches: a figure beside its limit, the table of figures, and the common options."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
MEGABYTE = 2**20
#: Exit codes: success, and with --strict a figure beyond its limit.
OK, MISSED = 0, 1


@dataclass(frozen=True)
class Figure:
    """A row of the table. `value`, in `unit`, is compared with `most` or `least`; without both it has no limit.

    `value` is what is compared with `most` or `least`, in `unit`; without both there is nothing to reach. `measured`
    and `against` are texts: what was measured, and what it is held against, both in the same run.
    """

    name: str
    measured: str
    value: float
    unit: str
    against: str = ""
    upper_limit: float | None = None
    lower_limit: float | None = None

    @property
    def is_met(self) -> bool | None:
        """True if the limit is met; None without a limit."""
        if self.upper_limit is None and self.lower_limit is None:
            return None
        return (self.upper_limit is None or self.value <= self.upper_limit) and (
            self.lower_limit is None or self.value >= self.lower_limit
        )

    @property
    def goal(self) -> str:
        """The limit as text."""
        bounds = (("<=", self.upper_limit), (">=", self.lower_limit))
        return ", ".join(f"{sign} {bound:g} {self.unit}" for sign, bound in bounds if bound is not None)


#: Result of a bench: its figures, and all data in detail.
Measurement = tuple[list[Figure], Any]


def format_spread(values: Sequence[float], unit: str, digits: int = 2) -> str:
    """Return the median of all rounds and their range: `3.31 ms (3.20-3.52)`."""
    middle, low, high = (f"{value:.{digits}f}" for value in (statistics.median(values), min(values), max(values)))
    return f"{middle} {unit}" if len(values) == 1 else f"{middle} {unit} ({low}-{high})"


def make_table(figures: Sequence[Figure], title: str = "") -> Table:
    """Return all figures, one row each."""
    rendered_table = Table(title=title or None, title_justify="left")
    for heading in ("figure", "limit it is held against", "measured: median (min-max)"):
        rendered_table.add_column(heading, overflow="fold")
    for heading in ("value", "to reach"):
        rendered_table.add_column(heading, justify="right", no_wrap=True)
    rendered_table.add_column("", no_wrap=True)
    verdicts = {True: "[green]ok[/green]", False: "[bold red]missed[/bold red]", None: ""}
    for figure in figures:
        value = f"{figure.value:.3g} {figure.unit}" if abs(figure.value) < 100 else f"{figure.value:.0f} {figure.unit}"
        texts = (figure.name, figure.against, figure.measured, value, figure.goal)
        rendered_table.add_row(*texts, verdicts[figure.is_met])
    return rendered_table


def make_console(width: int | None = None) -> Console:
    """Return the console for tables, with full width where that is not a terminal."""
    new_console = Console(width=width)
    return new_console if width or new_console.is_terminal else Console(width=180)


def exit_code(figures: Sequence[Figure], *, strict: bool) -> int:
    """Return the exit code. Missed limits count only with `strict`, because other load changes figures."""
    return MISSED if strict and any(figure.is_met is False for figure in figures) else OK


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options that every bench has."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter measurements")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    parser.add_argument("--strict", action="store_true", help="end with 1 when a limit is missed")
    return parser


def report(arguments: argparse.Namespace, measurement: Measurement) -> int:
    """Print the table of one bench, write the requested file, and return the exit code."""
    figures, details = measurement
    if arguments.json:
        write(arguments.json, {"figures": [asdict(figure) for figure in figures], "details": details})
    make_console().print(make_table(figures))
    return exit_code(figures, strict=arguments.strict)


def run(description: str | None, measure: Callable[[bool], Measurement]) -> int:
    """Run a bench without its own options, and return the exit code. `measure` gets True for a quick run."""
    arguments = make_parser(description).parse_args()
    return report(arguments, measure(arguments.quick))


def write(file: Path, document: Mapping[str, Any]) -> None:
    """Write a JSON document."""
    file.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def read_cpu_seconds(*processes: psutil.Process) -> float:
    """Return the seconds of CPU, user and system, that these processes have used, including ended threads (Linux)."""
    # The CPU clock of another process, as clock_getcpuclockid(3) computes its id.
    return sum(time.clock_gettime((~process.pid << 3) | 2) for process in processes)


def read_highest_memory(pid: int) -> int:
    """Return the highest resident bytes of a process so far (Linux).

    The value is not `ru_maxrss`: a child inherits that of its parent there.
    """
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"process {pid} has no memory")


@contextmanager
def process(command: Sequence[str], environment: Mapping[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program until the end of the block. Its output is appended to `log`."""
    with (
        log.open("ab") as output,
        subprocess.Popen(command, env=dict(environment), cwd=ROOT, stdout=output, stderr=output) as running,
    ):
        try:
            yield running
        finally:
            running.terminate()
            running.wait(60)
