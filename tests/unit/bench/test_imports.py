"""Benches run seldom: what they use of the core must still be there."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

MODULES = sorted(file.stem for file in (Path(__file__).parents[3] / "bench").glob("[!_]*.py"))


def test_there_are_benches() -> None:
    assert MODULES


@pytest.mark.parametrize("module", MODULES)
def test_a_bench_finds_what_it_imports(module: str) -> None:
    importlib.import_module(f"bench.{module}")
