"""The samples as modules."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.scoringservices import load
from tests.support.uv import ROOT

Load = Callable[..., Any]
#: Beginnings of the environment variables that samples read.
_VARIABLES = (
    *("MIN_LENGTH", "HORIZON_LENGTH", "THRESHOLD", "ALPHA", "OFFSET", "CONFIG_FILE", "SOURCE_", "SCORE_", "MAX_"),
    *("MODEL", "VLLM", "INFERENCE", "PROMPT", "CONTEXT", "SCORING", "CONCURRENCY", "API_TOKEN"),
)


@pytest.fixture
def load_sample(monkeypatch: pytest.MonkeyPatch) -> Load:
    """Return `load_sample("sample-scorer", SCORE_INTERVAL="7")` -> its module, loaded with these variables alone."""

    def make(name: str, **environment: str) -> Any:
        for variable in [variable for variable in os.environ if variable.startswith(_VARIABLES)]:
            monkeypatch.delenv(variable)
        for variable, value in environment.items():
            monkeypatch.setenv(variable, value)
        return load(ROOT / "samples" / name / "app.py")

    return make


@pytest.fixture
def sample(request: pytest.FixtureRequest, load_sample: Load) -> Load:
    """Return `sample(SCORE_INTERVAL="7")` -> the sample that the test's file names as `SAMPLE`."""
    return lambda **environment: load_sample(request.module.SAMPLE, **environment)
