"""Runs commands of the machine, and makes errors of failures."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


class LabError(Exception):
    """A step that failed; the message is for the person who typed `make node`."""


class CannotRunError(LabError):
    """This machine cannot run nodes; the message is one line with a remedy."""


def say(text: str) -> None:
    """Progress, for people."""
    print(f"node: {text}", file=sys.stderr, flush=True)


def run(*command: str | Path, stdin: str | None = None, timeout: float = 120, log: Path | None = None) -> str:
    """Run a command and return its standard output. Raises LabError with the end of its output if it fails.

    With `log` all output goes to that file, and nothing is returned.
    """
    arguments = [str(argument) for argument in command]
    if log is not None:
        with log.open("w") as output:
            process = subprocess.run(
                arguments, input=stdin, stdout=output, stderr=subprocess.STDOUT, text=True, timeout=timeout, check=False
            )
        printed = log.read_text(errors="replace")
    else:
        process = subprocess.run(arguments, input=stdin, capture_output=True, text=True, timeout=timeout, check=False)
        printed = process.stdout + process.stderr
    if process.returncode:
        where = f" (all of it: {log})" if log else ""
        raise LabError(f"{' '.join(arguments)[:300]}: exit code {process.returncode}{where}\n{printed.strip()[-2000:]}")
    return process.stdout if log is None else ""


def succeeds(*command: str | Path) -> bool:
    """True if the command exits with 0; its output is dropped."""
    arguments: Sequence[str] = [str(argument) for argument in command]
    return subprocess.run(arguments, capture_output=True, timeout=300, check=False).returncode == 0
