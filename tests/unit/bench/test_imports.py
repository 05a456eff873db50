"""Benches run seldom; these tests check that their imports from the core still exist."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

MODULES = sorted(file.stem for file in (Path(__file__).parents[3] / "bench").glob("[!_]*.py"))


def test_bench_modules_exist() -> None:
    assert MODULES


@pytest.mark.parametrize("module", MODULES)
def test_bench_module_can_be_imported(module: str) -> None:
    importlib.import_module(f"bench.{module}")
