"""docs/architecture.md has the order of `.importlinter`, and follows one tick through few files."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def layers() -> dict[str, int]:
    """Return package or module of `dsf` -> its layer, 0 for the lowest."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / ".importlinter")
    lines = parser["importlinter:contract:layers"]["layers"].split("\n")
    layer_names = [re.findall(r"\w+", line) for line in lines if line.strip()]
    return {name: number for number, names in enumerate(reversed(layer_names)) for name in names}


def steps() -> list[list[str]]:
    """Return the names at the start of each numbered item of the reading order."""
    text = PAGE.partition("## Modules in reading order")[2].partition("\nLower numbers")[0]
    items = re.split(r"^\d+\. ", text, flags=re.MULTILINE)[1:]
    return [re.findall(r"`dsf/(\w+)(?:/|\.py)`", item.partition("; the tasks")[0]) for item in items]


def test_reading_order_and_layers_are_the_same() -> None:
    layer_numbers = layers()
    below = -1
    for names in steps():
        numbers = [layer_numbers[name] for name in names]
        assert numbers, names
        assert min(numbers) > below, f"{names} stand below what was named before"
        # Settings, keys and metrics are listed beside the model, since both are read early.
        below = max(numbers) if "errors" not in names else below


def test_every_package_is_in_the_reading_order() -> None:
    packages = {file.parent.name for file in (ROOT / "dsf").glob("*/__init__.py")}
    assert packages <= {name for names in steps() for name in names}


def test_walk_of_one_tick_names_few_files() -> None:
    walk = PAGE.partition("## One tick, file by file")[2].partition("\n## ")[0]
    files = re.findall(r"^\| \d+ \| `([^`]+)`", walk, re.MULTILINE)
    assert 10 < len(files) <= 14
    assert [name for name in files if not (ROOT / name).is_file()] == []


def _places() -> list[tuple[str, str]]:
    """Return each file of "Where to change what", with each name in parentheses after it; '' for none."""
    section = PAGE.partition("## Where to change what")[2].partition("\n## ")[0]
    places = []
    for file, names in re.findall(r"`([\w.-]+/[\w./-]+\.\w+)`(?: \(([^()]*)\))?", section):
        places += [(file, name) for name in re.findall(r"`([^`/]+)`", names)] or [(file, "")]
    return places


def test_names_on_the_page_are_in_their_files() -> None:
    places = _places()
    assert len(places) > 100
    assert {file for file, _ in places if not (ROOT / file).is_file()} == set()
    words = {file: set(re.findall(r"[\w-]+", (ROOT / file).read_text(encoding="utf-8"))) for file, _ in places}
    assert [(file, name) for file, name in places if not set(re.findall(r"[\w-]+", name)) <= words[file]] == []
