"""The demo of an installation that has no checkout around it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.integration.demo.test_demo import check_nothing_is_left, make_environment
from tests.support.uv import ROOT, built, environment

pytestmark = pytest.mark.xdist_group("demo")

PACKAGES = (ROOT, ROOT / "demo", ROOT / "packages" / "dsf-scorer")


def test_once_from_wheels_in_an_empty_environment(tmp_path: Path) -> None:
    wheels = [built(package, tmp_path / f"dist{number}") for number, package in enumerate(PACKAGES)]
    programs = environment(tmp_path / "environment", *wheels)
    variables = make_environment(tmp_path)
    done = subprocess.run(
        [str(programs / "dsf"), "demo", "--once"],
        env=variables,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    for name in ("worker01", "worker02", "sample-scorer", "example-performance-scorer"):
        assert name in done.stdout
    check_nothing_is_left(variables)
