"""`dsf scorer check` finds no mistake in the samples, each in a separate process, checked by its own script."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.samples.conftest import Start, series
from tests.integration.samples.llm import MODEL, LanguageModel
from tests.support.commandline import dsf
from tests.support.programs import find
from tests.support.scoringservices import set_hub_timeout
from tests.support.uv import ROOT

#: Sample -> its /config paths, each with the expected names of items.
SAMPLES = {
    "sample-scorer": {"/config": "${node};${namespace};${pod}"},
    "static-scorer": {"/performance/config": "${app};${device}", "/powerconsumption/config": "${app};${device}"},
    "simple-prediction-scorer": {"/config": "${node};${namespace};${pod}"},
    "ai-workload-scorer": {"/power/config": "${app};${device}", "/performance/config": "${app};${device}"},
}
#: No token is wanted, and there is no Prometheus to run the query.
SKIPPED = {"token", "query"}
#: The source type is None.
SKIPPED_WITHOUT_SOURCE = SKIPPED | {"one-series", "many-series", "gaps", "nan", "unknown-labels", "large", "bad-json"}


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    set_hub_timeout(monkeypatch, 60)


@pytest.fixture
def model() -> Iterator[LanguageModel]:
    with LanguageModel() as running:
        yield running


#: The mean of CPU cores is mostly below one, and published scores are whole numbers.
WARNED = {"sample-scorer": {"range"}}


def check(url: str, *options: str, warned: Collection[str] = ()) -> dict[str, str]:
    """Return the outcome of each point; the service is conformant and only `warned` are warned of."""
    result = dsf("scorer", "check", url, "-o", "json", *options)
    assert result.exit_code == 0, result.output
    points: list[dict[str, Any]] = json.loads(result.stdout)["points"]
    assert {point["point"] for point in points if point["outcome"] == "warn"} == set(warned), points
    return {point["point"]: point["outcome"] for point in points}


@pytest.mark.parametrize(("name", "path"), [(name, path) for name, paths in SAMPLES.items() for path in paths])
def test_sample_passes_scorer_check(start: Start, name: str, path: str) -> None:
    outcomes = check(f"{start(name)}{path}", "--dimension", SAMPLES[name][path], warned=WARNED.get(name, ()))
    skipped = {point for point, outcome in outcomes.items() if outcome == "skipped"}
    assert skipped == (SKIPPED_WITHOUT_SOURCE if name == "static-scorer" else SKIPPED)


def test_language_model_scorer_passes_scorer_check(llm_forecast: Start, model: LanguageModel, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("right\n")
    url = llm_forecast(VLLM_ENDPOINT=model.url, MODEL_NAME=MODEL, API_TOKEN_FILE=str(token))
    options = ("--token-file", str(token), "--dimension", "${node};${namespace};${pod}")
    outcomes = check(f"{url}/config", *options)
    assert outcomes.pop("query") == "skipped"
    assert set(outcomes.values()) == {"pass"}
    # A busy machine has time for a part of the thousand series of a request only.
    assert len(model.prompts) > 100


def test_recording_passes_scorer_check(start: Start) -> None:
    file = ROOT / "samples" / "simple-prediction-scorer" / "recorded.json"
    outcomes = check(
        f"{start('simple-prediction-scorer')}/config", "--sample", str(file), "--dimension", "${node};${device}"
    )
    assert outcomes["range"] == outcomes["labels"] == "pass"


def test_real_accelerator_names_pass_scorer_check(start: Start, tmp_path: Path) -> None:
    watts = [f"{100 + 20 * math.sin(at / 5):.3f}" for at in range(60)]
    labels = {"Hostname": "n1", "GPU_I_ID": "1", "GPU_I_PROFILE": "3g.47gb", "exported_pod": "app02-0"}
    file = tmp_path / "recorded.json"
    file.write_text(json.dumps({"data": [series(watts, **labels), series(watts, Hostname="n2")]}))
    # The second series is of no app, so it gets no score.
    options = ("--sample", str(file), "--dimension", "${app};${device}")
    check(f"{start('ai-workload-scorer')}/power/config", *options, warned={"many-series"})


def test_node_series_pass_scorer_check(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "recorded.json"
    data = [series(["48", "40"], resource="cpu"), series(["16", "20"], resource="cpu", node="n1")]
    file.write_text(json.dumps({"data": data}))
    url = f"{start('resource-usage-scorer')}/config"
    outcomes = check(url, "--sample", str(file), "--dimension", "${meta}")
    assert outcomes["labels"] == outcomes["range"] == "pass"


@pytest.mark.parametrize("name", [*SAMPLES, "resource-usage-scorer", "llm-forecast-scorer"])
def test_sample_script_queries_a_running_scorer(start: Start, model: LanguageModel, name: str) -> None:
    url = start(name, **({"VLLM_ENDPOINT": model.url, "MODEL_NAME": MODEL} if name not in SAMPLES else {}))
    script = ROOT / "samples" / name / "test_scorer.sh"
    variables = os.environ | {"PATH": f"{os.environ['PATH']}:{find('curl').parent}"}
    process = subprocess.run([script, url], env=variables, capture_output=True, text=True, timeout=300, check=False)
    assert process.returncode == 0, process.stderr
    assert re.search(r'"score":-?[0-9]', process.stdout), process.stdout
