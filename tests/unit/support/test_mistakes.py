"""The list of planted mistakes matches the code, which `make mistakes` needs minutes to check."""

from __future__ import annotations

import ast
import importlib.util
from datetime import date, timedelta
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


def test_mistakes_are_sixty_in_distinct_places() -> None:
    assert len({mistake.old for mistake in LISTED}) == len({mistake.what for mistake in LISTED}) == len(LISTED) == 64


@pytest.mark.parametrize("mistake", LISTED, ids=[mistake.what for mistake in LISTED])
def test_each_mistake_applies_once_and_is_code(mistake: Any) -> None:
    file = mistake.place()
    text = mistakes.sources()[file].replace(mistake.old, mistake.new)
    assert text != mistakes.sources()[file]
    assert text.count("\n") == mistakes.sources()[file].count("\n")
    if file.endswith(".py"):
        ast.parse(text)


def test_samples_of_consecutive_days_cover_all_mistakes() -> None:
    days = [date(2026, 12, 30) + timedelta(number) for number in range(22)]
    samples = [mistakes.sample(LISTED, 3, day) for day in days]
    assert {len(sample) for sample in samples} == {3}
    assert {mistake.what for sample in samples for mistake in sample} == {mistake.what for mistake in LISTED}
    assert sorted(mistakes.sample(LISTED[:2], 3, days[0])) == sorted(LISTED[:2])


def test_inapplicable_mistake_is_named() -> None:
    with pytest.raises(LookupError, match=r"^a score is rounded up: this stands 0 times in the code and not once: x=y"):
        LISTED[0]._replace(old="x=y").place()
    with pytest.raises(LookupError, match=r"^a score is rounded up: there are no such tests: tests/unit/none"):
        LISTED[0]._replace(tests=["tests/unit/none"]).place()
