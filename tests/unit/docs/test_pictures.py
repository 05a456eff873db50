"""Pictures of docs/ are as new as the pages that they show; `make pictures` records the hashes."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
SCRIPT: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "pictures"))
NAMES = [name for names in SCRIPT["GROUPS"].values() for name in names]


def test_no_picture_is_older_than_its_code() -> None:
    assert SCRIPT["old"]() == [], "run: make pictures"


def test_every_picture_is_made_by_the_script_and_used_on_a_page() -> None:
    files = {path.name for path in (ROOT / "docs" / "pictures").iterdir()} - {"sources.json"}
    assert files == {SCRIPT["picture"](name).name for name in NAMES}
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    referenced_names = {
        name for page in pages for name in re.findall(r"pictures/([\w.-]+)", page.read_text(encoding="utf-8"))
    }
    assert files <= referenced_names


@pytest.mark.parametrize("name", NAMES)
def test_files_of_a_picture_exist(name: str) -> None:
    assert [path for path in SCRIPT["files"](name) if not path.is_file()] == []


def test_changed_source_makes_its_picture_outdated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = SCRIPT["old"].__globals__
    noted = json.loads((ROOT / "docs" / "pictures" / "sources.json").read_text(encoding="utf-8"))
    (tmp_path / "sources.json").write_text(json.dumps(noted | {"web-pair": "0" * 16}))
    monkeypatch.setitem(names, "SOURCES", tmp_path / "sources.json")
    assert SCRIPT["old"]() == ["web-pair"]


def test_pictures_do_not_load_from_other_hosts() -> None:
    for file in (ROOT / "docs" / "pictures").glob("*.svg"):
        text = file.read_text(encoding="utf-8")
        assert not re.search(r"(href|src)=|url\(['\"]?(https?:)?//|@import", text), file
