"""Each sample has its own cases for `dsf scorer test`, and passes them."""

from __future__ import annotations

import json

import pytest

from tests.integration.samples.llm import MODEL, LanguageModel
from tests.support.commandline import dsf
from tests.support.scoringservices import set_hub_timeout
from tests.support.uv import ROOT

FOLDER = ROOT / "samples"
SAMPLES = [*sorted(path.parent.name for path in FOLDER.glob("*-scorer/app.py")), "expressions"]


@pytest.mark.parametrize("name", SAMPLES)
def test_sample_passes_its_own_cases(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    set_hub_timeout(monkeypatch, 60)
    with LanguageModel() as model:
        model.says = "42"
        monkeypatch.setenv("VLLM_ENDPOINT", model.url)
        monkeypatch.setenv("MODEL_NAME", MODEL)
        file = FOLDER / name / "scorer-test.yaml"
        result = dsf("scorer", "test", str(file), "-o", "json")
    report = json.loads(result.stdout)
    assert [failure for case in report["cases"] for failure in case["failures"]] == []
    assert result.exit_code == 0
    # Some items are expected, or the cases would prove nothing.
    assert "value:" in file.read_text()
