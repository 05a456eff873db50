"""Tables of cases as JSON, one file per rule. `load` gives them as pytest parameters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


def load(name: str) -> list[Any]:
    """Return the cases of `<name>.json`: each a mapping with an `id`, beside what its test reads."""
    cases = json.loads((Path(__file__).parent / f"{name}.json").read_text(encoding="utf-8"))
    return [pytest.param(case, id=case["id"]) for case in cases]
