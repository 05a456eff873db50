"""`make pythons`: a Python that cannot be had is named, and nothing is said to be tried on it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.child import ran

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(("ci", "code"), [("", 0), ("true", 1)])
def test_missing_python_fails_only_in_ci(ci: str, code: int) -> None:
    done = ran([ROOT / "scripts" / "pythons"], env=os.environ | {"PYTHONS": "9.9", "CI": ci})
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.splitlines()[-1].endswith("uv fetch it: 9.9")
