"""The files and commands of a document, run as a reader runs them, and a check of their output."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_FENCE = re.compile(r"^```(\w*)$")
#: Matches the comment that marks or names the following block.
_MARK = re.compile(r"^<!-- (?:(?P<mark>not run|background)\b.*|file: (?P<file>\S+) )-->$")
#: Stands for lines that differ each time.
_ANY = "..."


@dataclass
class File:
    """A file that the document tells the reader to write."""

    path: str
    text: str


@dataclass
class Command:
    """A command and its expected output lines."""

    text: str
    line: int
    #: `not run`, `background` or empty.
    mark: str = ""
    expected_lines: list[str] = field(default_factory=list)


def parse_steps(document: Path) -> Iterator[File | Command]:
    """Yield the blocks that a comment names as files, and the commands of all `console` blocks, in order."""
    language, mark, file = None, "", ""
    lines: list[str] = []
    for number, line in enumerate(document.read_text(encoding="utf-8").splitlines(), 1):
        fence = _FENCE.match(line)
        if language is None:
            if fence:
                language, lines = fence[1], []
            elif mark_match := _MARK.match(line):
                mark, file = mark_match["mark"] or "", mark_match["file"] or ""
        elif not fence:
            lines.append(line)
        else:
            if file:
                yield File(file, "".join(f"{line}\n" for line in lines))
            elif language == "console":
                yield from _parse_commands(lines, number - len(lines), mark)
            language, mark, file = None, "", ""


def parse_commands(document: Path) -> Iterator[Command]:
    """Yield the commands without the files."""
    return (step for step in parse_steps(document) if isinstance(step, Command))


def _parse_commands(lines: list[str], first: int, mark: str) -> Iterator[Command]:
    current: Command | None = None
    for number, line in enumerate(lines, first):
        if line.startswith("$ "):
            if current is not None:
                yield current
            current = Command(line[2:], number, mark)
        elif current is not None and current.text.endswith("\\"):
            current.text += "\n" + line
        elif current is not None:
            current.expected_lines.append(line.rstrip())
    if current is not None:
        yield current


def run(command: Command, *, cwd: Path, environment: Mapping[str, str], replace: Mapping[str, str]) -> tuple[int, str]:
    """Return exit code and output of a command; `replace` changes parts of it, such as a port that is in use here."""
    text = command.text
    for old, new in replace.items():
        text = text.replace(old, new)
    process = subprocess.run(
        ["bash", "-c", text],
        cwd=cwd,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    return process.returncode, process.stdout


def matches(expected_lines: list[str], printed: str) -> bool:
    """True if a command printed the expected lines; `...` stands for any lines."""
    lines = [line.rstrip() for line in printed.splitlines()]
    pattern = "".join("(?:.*\n)*" if line == _ANY else re.escape(line) + "\n" for line in expected_lines)
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in lines)) is not None
