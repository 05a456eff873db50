"""`make pythons`: a Python that cannot be had is named, and nothing is said to be tried on it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(("ci", "code"), [("", 0), ("true", 1)])
def test_one_that_is_not_there_fails_in_ci_only(ci: str, code: int) -> None:
    done = subprocess.run(
        [ROOT / "scripts" / "pythons"],
        env=os.environ | {"PYTHONS": "9.9", "CI": ci},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.splitlines()[-1].endswith("uv fetch it: 9.9")
