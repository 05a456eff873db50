"""Symptoms of unclear names and sentences stay below the limits of docs/style.md; Markdown lines stay short."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.child import run_program

ROOT = Path(__file__).resolve().parents[3]
WORDS = Path(__file__).with_name("vague_words.txt")
#: Vague variables in 1,000 bindings, in every folder.
MAX_VARIABLES = 5.0
#: Fragment openings in 100 sentences of comments and docstrings.
MAX_OPENINGS = {"tests": 6.0}
MAX_OPENINGS_IN_CODE = 4.0
#: Names of tests in 100.
MAX_TEST_NAMES = 2.0
#: Characters of a line of Markdown outside of tables and code.
MAX_LINE = 120
FOLDERS = ("dsf", "packages", "demo", "bench", "samples", "deploy", "tests")


def _word_lists() -> dict[str, frozenset[str]]:
    words: dict[str, set[str]] = {}
    section = ""
    for line in WORDS.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif not line.startswith("#"):
            words.setdefault(section, set()).update(line.split())
    return {name: frozenset(listed_words) for name, listed_words in words.items()}


def _list_tracked(pattern: str, folder: str) -> list[Path]:
    listing = run_program(
        ["git", "ls-files", "-z", "--", f"{folder}/{pattern}" if folder else pattern], cwd=ROOT
    ).stdout
    return [ROOT / name for name in listing.split("\0") if name and (ROOT / name).is_file()]


def _sentences(text: str) -> Iterator[str]:
    for block in re.split(r"\n\s*\n", text):
        for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z`])", " ".join(block.split())):
            if len(sentence) > 12:
                yield sentence


#: String literals and comments. Whatever looks like a comment within a string is a part of the string.
_LITERAL_OR_COMMENT = re.compile(
    r'"""(?:\\.|[^\\])*?"""|'
    r"'''(?:\\.|[^\\])*?'''|"
    r'"(?:\\.|[^"\\\n])*"|'
    r"'(?:\\.|[^'\\\n])*'|"
    r"#[^\n]*",
    re.DOTALL,
)


def _comments(source: str) -> Iterator[str]:
    """Yield each run of comment lines as one text. A regular expression takes a tenth of the time of `tokenize`."""
    lines: list[str] = []
    line = last_line = position = 0
    for match in _LITERAL_OR_COMMENT.finditer(source):
        if match[0].startswith("#"):
            line += source.count("\n", position, match.start())
            position = match.start()
            if lines and line != last_line + 1:
                yield " ".join(lines)
                lines = []
            lines.append(match[0].lstrip("#: "))
            last_line = line
    if lines:
        yield " ".join(lines)


class Symptoms(NamedTuple):
    """Places of each symptom in a folder, and how many names and sentences were read."""

    variables: list[str]
    bindings: int
    openings: list[str]
    sentences: int
    test_names: list[str]
    tests: int


def measure(files: list[Path]) -> Symptoms:
    words = _word_lists()
    variables, openings, test_names = [], [], []
    bindings = sentences = tests = 0
    for file in files:
        source = file.read_text(encoding="utf-8")
        place = str(file.relative_to(ROOT)) if file.is_relative_to(ROOT) else file.name
        prose = list(_comments(source))
        for node in ast.walk(ast.parse(source)):
            name = None
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                name = node.id
            elif isinstance(node, ast.arg):
                name = node.arg
            if name is not None:
                bindings += 1
                if name in words["variables"]:
                    variables.append(f"{place}:{getattr(node, 'lineno', 0)} {name}")
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                tests += 1
                if node.name.split("_")[1] in words["tests"]:
                    test_names.append(f"{place}:{node.lineno} {node.name}")
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                prose.append(ast.get_docstring(node) or "")
        for sentence in (sentence for text in prose for sentence in _sentences(text)):
            sentences += 1
            if re.split(r"\W", sentence.lower(), maxsplit=1)[0] in words["openings"]:
                openings.append(f"{place}: {sentence[:100]}")
    return Symptoms(variables, bindings, openings, sentences, test_names, tests)


@pytest.mark.parametrize("folder", FOLDERS)
def test_symptoms_stay_below_limits(folder: str) -> None:
    symptoms = measure(_list_tracked("*.py", folder))
    assert 1000 * len(symptoms.variables) <= MAX_VARIABLES * symptoms.bindings, "\n".join(symptoms.variables)
    max_openings = MAX_OPENINGS.get(folder, MAX_OPENINGS_IN_CODE)
    assert 100 * len(symptoms.openings) <= max_openings * symptoms.sentences, "\n".join(symptoms.openings)
    assert 100 * len(symptoms.test_names) <= MAX_TEST_NAMES * symptoms.tests, "\n".join(symptoms.test_names)


def test_each_symptom_is_counted(tmp_path: Path) -> None:
    file = tmp_path / "test_vague.py"
    lines = ['"""What nobody reads here."""', "# Those that were before are kept.", "known = 1"]
    lines.append("def test_it_works(given): ...")
    file.write_text("\n".join(lines), encoding="utf-8")
    symptoms = measure([file])
    assert [len(symptoms.variables), len(symptoms.openings), len(symptoms.test_names)] == [2, 2, 1]
    assert (symptoms.bindings, symptoms.tests) == (2, 1)


def test_markdown_lines_are_short() -> None:
    long_lines = []
    for page in _list_tracked("*.md", ""):
        in_code = False
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
            in_code ^= line.lstrip().startswith(("```", "~~~"))
            if len(line) > MAX_LINE and not in_code and not line.lstrip().startswith(("|", "<", "[")):
                long_lines.append(f"{page.relative_to(ROOT)}:{number} ({len(line)} characters)")
    assert long_lines == []
