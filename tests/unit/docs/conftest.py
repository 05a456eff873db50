"""The documentation site, built once for the tests of a folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.browser import browser
from tests.support.child import run_program

__all__ = ["browser"]

ROOT = Path(__file__).resolve().parents[3]


def build_site(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run scripts/docs; the site is then in the folder `site`."""
    return run_program([sys.executable, ROOT / "scripts" / "docs", folder], cwd=ROOT)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with the site and its sources."""
    folder = tmp_path_factory.mktemp("site")
    process = build_site(folder)
    assert (process.returncode, process.stdout, process.stderr) == (0, "", "")
    return folder
