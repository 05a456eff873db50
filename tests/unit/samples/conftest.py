"""Fixtures that load samples as modules."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.scoringservices import load
from tests.support.uv import ROOT

Load = Callable[..., Any]
#: Prefixes of the environment variables that samples read.
_VARIABLES = (
    *("MIN_LENGTH", "HORIZON_LENGTH", "THRESHOLD", "ALPHA", "OFFSET", "CONFIG_FILE", "SOURCE_", "SCORE_", "MAX_"),
    *("MODEL", "VLLM", "INFERENCE", "PROMPT", "CONTEXT", "SCORING", "CONCURRENCY", "API_TOKEN"),
)


@pytest.fixture
def load_sample(monkeypatch: pytest.MonkeyPatch) -> Load:
    """Return a function that loads a sample with only these variables of those it reads.

    `load_sample("sample-scorer", SCORE_INTERVAL="7")` returns the sample's module.
    """

    def load_with(name: str, **environment: str) -> Any:
        for variable in [variable for variable in os.environ if variable.startswith(_VARIABLES)]:
            monkeypatch.delenv(variable)
        for variable, value in environment.items():
            monkeypatch.setenv(variable, value)
        return load(ROOT / "samples" / name / "app.py")

    return load_with


@pytest.fixture
def sample(request: pytest.FixtureRequest, load_sample: Load) -> Load:
    """Return a function that loads the sample that the test's file names as `SAMPLE`: `sample(SCORE_INTERVAL="7")`."""
    return lambda **environment: load_sample(request.module.SAMPLE, **environment)
