"""The wheel of the sources that are not part of the framework: what is in it, and what the framework finds of it."""

from __future__ import annotations

import configparser
import zipfile
from pathlib import Path

import pytest

from dsf.auth.authenticator import METHODS
from dsf.sources.registry import EXTRAS
from tests.support.uv import ROOT, built

PACKAGE = ROOT / "packages" / "dsf-sources"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Built through the source distribution, so that this one is whole too."""
    return zipfile.ZipFile(built(PACKAGE, tmp_path_factory.mktemp("dist")))


def _contents(wheel: zipfile.ZipFile) -> set[str]:
    return {name for name in wheel.namelist() if ".dist-info/" not in name}


def test_no_file_is_left_out_and_none_is_also_the_framework_s(wheel: zipfile.ZipFile) -> None:
    files = [path for path in (PACKAGE / "dsf").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert _contents(wheel) == {str(path.relative_to(PACKAGE)) for path in files}
    assert [name for name in _contents(wheel) if (ROOT / name).exists()] == []


def test_the_framework_finds_its_types_and_methods(wheel: zipfile.ZipFile) -> None:
    (name,) = [name for name in wheel.namelist() if name.endswith("/entry_points.txt")]
    parser = configparser.ConfigParser(delimiters=("=",))
    parser.read_string(wheel.read(name).decode())
    modules = [value.partition(":")[0] for value in parser["dsf.sources"].values()]
    modules += [name.partition(":")[0] for name in METHODS.values() if not name.startswith("dsf.auth.")]
    assert set(parser["dsf.sources"]) == set(EXTRAS)
    assert {Path(*module.split(".")).with_suffix(".py").as_posix() for module in modules} <= _contents(wheel)
