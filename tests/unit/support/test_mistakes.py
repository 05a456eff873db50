"""The list of planted mistakes fits the code: `make mistakes` takes minutes to find that out."""

from __future__ import annotations

import ast
import importlib.util
from importlib.machinery import SourceFileLoader
from types import ModuleType
from typing import Any

import pytest

from tests.support.uv import ROOT


def _script() -> ModuleType:
    loader = SourceFileLoader("mistakes", str(ROOT / "scripts" / "mistakes"))
    spec = importlib.util.spec_from_loader("mistakes", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


mistakes = _script()
LISTED = mistakes.listed()


def test_there_are_sixty_in_as_many_places() -> None:
    assert len({(one.file, one.old) for one in LISTED}) == len(LISTED) == 60


@pytest.mark.parametrize("one", LISTED, ids=[f"{one.file}: {one.what}" for one in LISTED])
def test_each_applies_once_and_is_code(one: Any) -> None:
    text = one.planted(ROOT)
    assert text != (ROOT / one.file).read_text(encoding="utf-8")
    assert text.count("\n") == (ROOT / one.file).read_text(encoding="utf-8").count("\n")
    if one.file.endswith(".py"):
        ast.parse(text)


def test_what_does_not_apply_is_named() -> None:
    gone = LISTED[0]._replace(old="no such line")
    with pytest.raises(mistakes.ListError, match=r"^dsf/api/score.py: this stands there 0 times and not once: no such"):
        gone.planted(ROOT)
    with pytest.raises(mistakes.ListError, match=r"^dsf/api/score.py: there are no such tests: tests/unit/none"):
        LISTED[0]._replace(tests=["tests/unit/none"]).planted(ROOT)
