"""CPU time of a command's whole process before it does any work.

    python -m bench.commands [--quick] [--strict] [--json FILE]

`dsf status` and the others that look, against a Redis without any scorer, each in a process of its own. CPU time and
not the clock: a person's machine runs the demo beside it. In turns with a process that only imports the libraries that
such a command cannot do without: what is beyond them is ours. With compiled bytecode, as pip and the images have it.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.common import Figure, Measurement, format_spread, run
from dsf.settings import make_child_environment
from dsf.up.embedded_redis import EmbeddedRedis
from dsf.up.ports import Ports
from dsf.up.supervisor import Supervisor

COMMANDS = ("version", "status", "scores", "schedule list")
ROUNDS, QUICK_ROUNDS = 7, 3
#: Libraries that a reading command needs: its options, its connection, its models, its table.
LIBRARIES = "typer.main, redis, pydantic_settings, rich.table"
#: Maximum CPU seconds of a command.
LIMIT = 0.4


def measure_cost(command: str, environment: dict[str, str]) -> float:
    """Return the CPU seconds of one call."""
    return _measure_cpu("from dsf.cli.main import run; run()", command, environment)


def measure_libraries(environment: dict[str, str]) -> float:
    """Return the CPU seconds of importing the libraries alone."""
    return _measure_cpu(f"import {LIBRARIES}", "", environment)


def _measure_cpu(code: str, words: str, environment: dict[str, str]) -> float:
    child = subprocess.Popen(
        [sys.executable, "-c", code, *words.split()],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, _, usage = os.wait4(child.pid, 0)
    # Popen must not wait for the process again.
    child.returncode = 0
    return usage.ru_utime + usage.ru_stime


def measure(quick: bool) -> Measurement:
    """Return a row for each command."""
    with tempfile.TemporaryDirectory() as folder:
        supervisor = Supervisor(Path(folder), lambda _: None)
        server = EmbeddedRedis(Path(folder) / "redis", Ports(lambda _: None).any())
        try:
            supervisor.start(server.program())
            supervisor.wait_ready(30)
            environment = make_child_environment(redis_url=server.url) | {"XDG_STATE_HOME": folder}
            environment |= {"PYTHONPYCACHEPREFIX": f"{folder}/bytecode", "PYTHONDONTWRITEBYTECODE": ""}
            for command in COMMANDS:
                measure_cost(command, environment)
            seconds_by_command: dict[str, list[float]] = {command: [] for command in COMMANDS}
            alone: list[float] = []
            for _ in range(QUICK_ROUNDS if quick else ROUNDS):
                alone.append(measure_libraries(environment))
                for command, values in seconds_by_command.items():
                    values.append(measure_cost(command, environment))
        finally:
            supervisor.stop_all()
    figures = [
        Figure(
            f"CPU time of `dsf {command}`",
            format_spread(values, "s"),
            statistics.median(values),
            "s",
            f"the libraries that it loads, {format_spread(alone, 's')}",
            upper_limit=LIMIT,
        )
        for command, values in seconds_by_command.items()
    ]
    return figures, {"libraries": alone, **seconds_by_command}


if __name__ == "__main__":
    sys.exit(run(__doc__, measure))
