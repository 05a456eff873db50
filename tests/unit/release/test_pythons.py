"""`make pythons` names a missing Python and does not claim to have tested it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.child import run_program

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(("ci", "code"), [("", 0), ("true", 1)])
def test_missing_python_fails_only_in_ci(ci: str, code: int) -> None:
    process = run_program([ROOT / "scripts" / "pythons"], env=os.environ | {"PYTHONS": "9.9", "CI": ci})
    assert (process.returncode, process.stdout) == (code, "")
    assert process.stderr.splitlines()[-1].endswith("uv fetch it: 9.9")
