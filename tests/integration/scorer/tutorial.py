"""docs/tutorial.md as steps: files to write and commands to run, in the order of the page."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"(?:<!-- file: (?P<file>\S+) -->\n)?```(?P<language>\w+)\n(?P<text>.*?)```\n", re.DOTALL)


@dataclass(frozen=True)
class File:
    """Write this file."""

    path: str
    text: str


@dataclass(frozen=True)
class Command:
    """Run this command in a shell."""

    text: str


Step = File | Command


def steps(page: Path) -> list[Step]:
    """The steps of the page: blocks under a comment that names a file, and what follows `$` in console blocks."""
    found: list[Step] = []
    for match in _FENCE.finditer(page.read_text(encoding="utf-8")):
        if match["file"]:
            found.append(File(match["file"], match["text"]))
        elif match["language"] == "console":
            found += [Command(line.removeprefix("$ ")) for line in match["text"].splitlines() if line.startswith("$ ")]
    return found
