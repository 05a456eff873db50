"""A test file stands where its module stands: what is tested for a module is found by the module's path."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
#: Folders and files of tests whose subject is nothing in dsf/: name -> what is tested.
_OTHERS = {
    "bench": "bench/",
    "circles": "imports between all modules",
    "deploy": "deploy/, and what it installs",
    "exporter": "the metrics and the JSON API of the web service, as programs ask for them",
    "docs": "docs/: what pages say, against the code and on real clusters",
    "hostile": "every reader of foreign bytes, with documents made to take memory",
    "fuzz": "parsers of several packages, with the same inputs",
    "packages": "docstrings of all packages",
    "places": "tests/ itself",
    "policywatcher": "samples/policy-watcher, which has modules of its own on the path",
    "release": "scripts/release, scripts/version, and the files that a release is made of",
    "samples": "samples/",
    "security": "the whole framework on a Redis with TLS and users",
    "support": "tests/support/",
}


def _names(folder: Path) -> set[str]:
    """What stands in a folder: packages, and modules without their ending."""
    found = {path for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    return {path.stem for path in found if path.name != "__init__.py"}


def _ours() -> set[str]:
    """What stands in dsf/, of the framework or of a distribution of its own."""
    return set().union(*map(_names, [_ROOT / "dsf", _ROOT / "demo" / "dsf", *(_ROOT / "packages").glob("*/dsf")]))


def _tested(kind: str) -> set[str]:
    return {name.removeprefix("test_") for name in _names(_ROOT / "tests" / kind)}


def _imported(file: Path) -> Iterator[str]:
    """Packages and modules of `dsf` that a file imports, by their names in dsf/."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        yield from (name.split(".")[1] for name in names if name.startswith("dsf."))


@pytest.mark.parametrize("kind", ["unit", "integration"])
def test_each_folder_of_tests_is_one_of_dsf_or_a_named_other(kind: str) -> None:
    assert _tested(kind) - _ours() - _OTHERS.keys() == set()


def test_the_named_others_are_there_and_nothing_of_dsf() -> None:
    assert _OTHERS.keys() <= _tested("unit") | _tested("integration")
    assert not _OTHERS.keys() & _ours()


def test_unit_test_imports_its_own_package() -> None:
    """What imports of other packages only is one of theirs; what imports nothing starts programs."""
    packages = {name for name in _ours() if not (_ROOT / "dsf" / f"{name}.py").is_file()}
    files = [file for package in packages for file in (_ROOT / "tests" / "unit" / package).rglob("test_*.py")]
    assert files
    elsewhere = {
        str(file.relative_to(_ROOT)): sorted(imported & packages)
        for file in files
        if (imported := set(_imported(file))) & packages and file.relative_to(_ROOT).parts[2] not in imported
    }
    assert elsewhere == {}
