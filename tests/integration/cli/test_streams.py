"""Standard output that is full, closed, or of a small alphabet."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.forked import Forked

_COMMAND = (
    "import typer; from pydantic import BaseModel; from dsf.cli.main import app, run; "
    "from dsf.cli.output import Format, emit\n"
    "class View(BaseModel): name: str = 'caf\\u00e9 \\u2192 \\U0001f600'\n"
    "def shout():\n"
    "    for output in (Format.TABLE, Format.JSON, Format.YAML):\n"
    "        view = View(); emit(view, output, lambda: view.name); print('=====', flush=True)\n"
    "app.command('shout')(shout); run()"
)


def _ran(redirection: str, *arguments: str, module: str = "", **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run a command with a redirection of the shell."""
    program = ["-m", "dsf.cli"] if not module else ["-c", module]
    command = ["bash", "-c", f'exec "$@" {redirection}', "bash", sys.executable, *program, *arguments]
    return subprocess.run(command, capture_output=True, env={**os.environ, **environment}, check=False, timeout=300)


@pytest.mark.parametrize(
    ("redirection", "reason"), [(">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")]
)
def test_unwritable_output_is_reported_in_one_line(redirection: str, reason: str) -> None:
    process = _ran(redirection, "version")
    assert (process.returncode, process.stdout) == (1, b"")
    assert process.stderr.decode().splitlines() == [f"error: cannot write to standard output: {reason}"]


@pytest.mark.parametrize("arguments", [("version", "-o", "json"), ("crds",), ("--help",)])
def test_full_disk_is_reported_by_each_way_to_print(arguments: tuple[str, ...], tmp_path: Path) -> None:
    errors = tmp_path / "errors"
    process = Forked("dsf.cli", Path("/dev/full"), arguments=arguments, errors=errors)
    assert process.wait() == 1
    assert errors.read_text().splitlines() == ["error: cannot write to standard output: No space left on device"]


def test_closed_standard_error_leaves_the_output() -> None:
    process = _ran("2>&-", "version")
    assert (process.returncode, process.stdout[:4]) == (0, b"dsf ")
    # No descriptor of the three is left for a connection.
    assert _ran("<&- >&- 2>&-", "version").returncode == 1


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "cp1252", "utf-8"])
def test_characters_beyond_the_alphabet_are_replaced(encoding: str) -> None:
    process = _ran("", "shout", module=_COMMAND, PYTHONIOENCODING=encoding)
    assert (process.returncode, process.stderr) == (0, b"")
    table, as_json, as_yaml, _ = process.stdout.split(b"=====\n")
    text = "café → \U0001f600"
    assert table == f"{text}\n".encode(encoding, "replace")
    # Programs get the text whole.
    assert json.loads(as_json.decode(encoding)) == {"name": text}
    assert yaml.safe_load(as_yaml.decode(encoding)) == {"name": text}
