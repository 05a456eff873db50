"""Docstrings of packages: each names the modules of its package."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_PACKAGES = sorted(
    path.parent
    for pattern in ("dsf/*/__init__.py", "packages/*/dsf/*/__init__.py", "packages/*/dsf/*/*/__init__.py")
    for path in _ROOT.glob(pattern)
)


@pytest.mark.parametrize("package", _PACKAGES, ids=lambda package: str(package.relative_to(_ROOT)))
def test_package_docstrings_name_every_module(package: Path) -> None:
    text = ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8"))) or ""
    files = {path.stem for path in package.glob("*.py")} - {"__init__", "__main__"}
    modules = files | {path.parent.name for path in package.glob("*/__init__.py")}
    assert set(re.findall(r"^ *(\w+) {2,}\S", text, re.MULTILINE)) == modules
