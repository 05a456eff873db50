"""The pages that people read, as blocks, commands, links and anchors."""

from __future__ import annotations

import functools
import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
#: README.md and everything in docs/, but for notes on decisions, which have no commands.
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[\w-]*)\n(?P<text>.*?)^(?P=indent)```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_SHELLS = ("console", "sh", "bash", "shell")
#: A word in the place of a command that is not a command.
_KEYWORDS = {"do", "done", "then", "fi", "if", "else", "while"}
#: Characters that a shell interprets, apart from quotes; in single quotes it interprets nothing.
_FOR_A_SHELL = re.compile(r"[|&;<>$`()*?{}~!\[\\]")
_STRING = re.compile(r"'[^']*'|\"[^\"]*\"")
_OPERATORS = {"|", "||", "&&", ";", "(", "&", "|&"}


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Command:
    """A command as typed at a prompt: a line, or several that are joined by a backslash."""

    page: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line} {self.text[:60]}"

    @property
    def words(self) -> list[str]:
        """Return its words, if it is one program and needs no shell; else an empty list."""
        return [] if needs_a_shell(self.text) else shlex.split(self.text)

    @functools.cached_property
    def programs(self) -> list[str]:
        """Return the programs that it calls, in order of the text, without assignments and the shell's own words."""
        return list(_programs(self.text))


def needs_a_shell(text: str) -> bool:
    """Whether a shell does more with a command than to split it into words."""
    without = _STRING.sub(lambda match: match[0] if match[0].startswith('"') else "", text)
    return bool(_FOR_A_SHELL.search(without))


def name(page: Path) -> str:
    """`README.md` or `docs/...`."""
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(name(page), text.count("\n", 0, match.start()) + 1, match["language"], textwrap.dedent(match["text"]))
        for match in _FENCE.finditer(text)
    ]


def commands(page: Path) -> list[Command]:
    """Return the commands of a page: after `$` in console blocks, every line in the others."""
    page_commands: list[Command] = []
    for block in blocks(page):
        if block.language not in _SHELLS:
            continue
        open_line: tuple[int, str] | None = None
        for number, line in enumerate(block.text.splitlines(), block.line + 1):
            if open_line is not None:
                open_line = open_line[0], f"{open_line[1]} {line.strip()}"
            elif block.language != "console":
                open_line = number, line.strip()
            elif line.startswith("$ "):
                open_line = number, line.removeprefix("$ ")
            else:
                continue
            start, text = open_line
            if text.endswith("\\"):
                open_line = start, text[:-1].rstrip()
                continue
            open_line = None
            if text := _uncommented(text):
                page_commands.append(Command(block.page, start, text))
        assert open_line is None, f"{block}: the block ends in the middle of a command"
    return page_commands


def _uncommented(text: str) -> str:
    return re.sub(r"(^|\s+)#\s.*$", "", text).strip()


def all_commands() -> list[Command]:
    """Return the commands of all pages."""
    return [command for page in PAGES for command in commands(page)]


def _programs(text: str) -> Iterator[str]:
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    at_start = True
    in_list = False
    for token in lexer:
        # `for NAME in WORDS;`
        in_list = (in_list or (at_start and token == "for")) and token != ";"
        if in_list:
            continue
        if token in _OPERATORS or set(token) <= set("|&;("):
            at_start = True
        elif at_start and re.fullmatch(r"\w+=.*", token, re.DOTALL):
            # The lexer splits `A=$(b)` into `A=$`, `(` and so on; `A="$(b)"` is one token.
            yield from _inner(token)
        elif at_start and token not in _KEYWORDS:
            at_start = False
            yield token
        else:
            at_start = at_start and token in _KEYWORDS
            yield from _inner(token)


def _inner(token: str) -> Iterator[str]:
    for text in re.findall(r"\$\(([^()]*)\)", token):
        yield from _programs(text)


def links(page: Path) -> list[str]:
    """Targets of links outside of fenced blocks."""
    return [match["target"] for match in _LINK.finditer(_FENCE.sub("", page.read_text(encoding="utf-8")))]


def anchors(page: Path) -> set[str]:
    """Return the names of its headings, as GitHub makes them."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    page_anchors: set[str] = set()
    for heading in re.findall(r"^#{1,6} (.*)$", text, re.MULTILINE):
        plain = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        page_anchors.add(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return page_anchors
