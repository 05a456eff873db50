"""The commands of a document, run as a reader would, and what they print held against what the document says."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_FENCE = re.compile(r"^```(\w*)$")
_MARK = re.compile(r"^<!-- (not run|background)\b.*-->$")
#: In place of lines that differ each time.
_ANY = "..."


@dataclass
class Command:
    """One command, and the lines that it shall print."""

    text: str
    line: int
    #: `not run`, `background` or empty.
    mark: str = ""
    wanted: list[str] = field(default_factory=list)


def commands(document: Path) -> Iterator[Command]:
    """The commands of all `console` blocks. A comment before a block marks what is not simply run."""
    mark, inside, current = "", False, None
    for number, line in enumerate(document.read_text().splitlines(), 1):
        fence = _FENCE.match(line)
        if fence and not inside:
            inside = fence.group(1) == "console"
        elif fence:
            if current is not None:
                yield current
            inside, current, mark = False, None, ""
        elif not inside:
            found = _MARK.match(line)
            mark = found.group(1) if found else mark
        elif line.startswith("$ "):
            if current is not None:
                yield current
            current = Command(line[2:], number, mark)
        elif current is not None and current.text.endswith("\\"):
            current.text += "\n" + line
        elif current is not None:
            current.wanted.append(line.rstrip())


def run(command: Command, *, cwd: Path, environment: Mapping[str, str], replace: Mapping[str, str]) -> tuple[int, str]:
    """Exit code and output of a command; `replace` changes words of it, such as a port that is taken here."""
    text = command.text
    for old, new in replace.items():
        text = text.replace(old, new)
    done = subprocess.run(
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
    return done.returncode, done.stdout


def matches(wanted: list[str], printed: str) -> bool:
    """Whether a command printed what it should; `...` stands for any lines."""
    lines = [line.rstrip() for line in printed.splitlines()]
    pattern = "".join("(?:.*\n)*" if line == _ANY else re.escape(line) + "\n" for line in wanted)
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in lines)) is not None
