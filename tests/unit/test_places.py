"""A test file's path follows its module's path.

Tests of the core are in tests/, those of a distribution in its own folder `tests`, those of the chart in deploy/tests.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.uv import ROOT

#: Distributions beside the core, each with modules in `dsf` and tests in `tests`.
_DISTRIBUTIONS = [ROOT / "demo", *sorted((ROOT / "packages").iterdir())]
#: Folders with a folder `tests`, which has `unit` or `integration`, whose folders are named after those in `dsf`.
_HOMES = [ROOT, *_DISTRIBUTIONS]
#: Folders and files of tests whose subject is not in `dsf/` of their home: name -> subject.
_OTHERS = {
    "bench": "bench/",
    "circles": "imports between all modules",
    "exporter": "the metrics and the JSON API of the web service, as programs ask for them",
    "docs": "docs/: what pages say, against the code and on real clusters",
    "hostile": "every reader of foreign bytes, with documents made to take memory",
    "fuzz": "parsers of several packages, with the same inputs",
    "packages": "docstrings of all packages",
    "places": "tests/ itself",
    "policywatcher": "samples/policy-watcher, which has modules of its own on the path",
    "release": "scripts/release, scripts/version, and the files that a release is made of",
    "samples": "samples/",
    "scripts": "scripts/ and the Makefile",
    "security": "the whole framework on a Redis with TLS and users",
    "support": "tests/support/",
}
#: The same in distributions: a source type with its agent, its server and its clients.
_OTHERS_OF_DISTRIBUTIONS = {"packages/dsf-sources": {"sources"}}


def _names(folder: Path) -> set[str]:
    """Return the folders with modules and the modules, without their ending, of a folder."""
    if not folder.is_dir():
        return set()
    paths = {path for path in folder.iterdir() if path.suffix == ".py" or any(path.glob("**/*.py"))}
    return {path.stem for path in paths} - {"__init__", "conftest"}


def _list_tested(home: Path) -> set[str]:
    names = _names(home / "tests" / "unit") | _names(home / "tests" / "integration")
    return {name.removeprefix("test_") for name in names}


def _list_others(home: Path) -> set[str]:
    return set(_OTHERS) if home == ROOT else _OTHERS_OF_DISTRIBUTIONS.get(str(home.relative_to(ROOT)), set())


def _find_imports(file: Path) -> Iterator[str]:
    """Return packages and modules of `dsf` that a file imports, by their names in dsf/."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        yield from (name.split(".")[1] for name in names if name.startswith("dsf."))


@pytest.mark.parametrize("home", _HOMES, ids=lambda home: home.name)
def test_each_folder_of_tests_is_one_of_its_distribution_or_a_named_other(home: Path) -> None:
    assert _list_tested(home) - _names(home / "dsf") - _list_others(home) == set()


@pytest.mark.parametrize("home", _HOMES, ids=lambda home: home.name)
def test_listed_foreign_folders_have_tests_and_are_no_modules(home: Path) -> None:
    assert _list_others(home) <= _list_tested(home)
    assert not _list_others(home) & _names(home / "dsf")


@pytest.mark.parametrize("home", _DISTRIBUTIONS, ids=lambda home: home.name)
def test_each_distribution_has_its_tests(home: Path) -> None:
    assert _names(home / "tests" / "unit") & _names(home / "dsf")


def test_files_of_tests_are_in_folders_that_pytest_collects() -> None:
    folders = [ROOT / "tests", ROOT / "deploy" / "tests", *(home / "tests" for home in _DISTRIBUTIONS)]
    roots = ["dsf", "bench", "packages", "demo", "deploy", "samples", "scripts"]
    files = [file for root in roots for file in (ROOT / root).rglob("test_*.py")]
    assert files
    assert [str(file) for file in files if not any(file.is_relative_to(folder) for folder in folders)] == []


def test_unit_test_imports_its_own_package() -> None:
    """Tests that import only other packages belong to those packages; tests without imports start programs."""
    packages = {
        name: home for home in _HOMES for name in _names(home / "dsf") if not (home / "dsf" / f"{name}.py").is_file()
    }
    elsewhere = {
        str(file.relative_to(ROOT)): sorted(imported & packages.keys())
        for package, home in packages.items()
        for file in (home / "tests" / "unit" / package).rglob("test_*.py")
        if (imported := set(_find_imports(file))) & packages.keys() and package not in imported
    }
    assert elsewhere == {}
    assert any((ROOT / "tests" / "unit").rglob("test_*.py"))


@pytest.mark.parametrize(
    "path",
    [
        "dsf/tasks/__init__.py",
        "dsf/hub/__init__.py",
        "dsf/agent/__init__.py",
        "dsf/beat_schedule.py",
        "deploy/helm/Chart.yaml",
        "deploy/redis/kustomization.yaml",
        "docker-compose.yaml",
        "pyproject.toml",
    ],
)
def test_path_that_the_layout_promises_to_users_exists(path: str) -> None:
    assert (ROOT / path).is_file()
