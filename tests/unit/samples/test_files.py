"""Manifests, scripts and the recording of the samples, and their READMEs."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml
from starlette.testclient import TestClient

from dsf.api.manifest import ParsedDocument, parse_documents
from dsf.api.remoteconfig import parse_remote_config
from dsf.api.scorer import DynamicScorer
from tests.support.uv import ROOT
from tests.unit.samples.conftest import Load

FOLDER = ROOT / "samples"
SAMPLES = sorted(path.parent.name for path in FOLDER.glob("*-scorer/app.py"))
SCRIPTS = sorted(FOLDER.glob("*-scorer/*.sh"))
PREDICTION = FOLDER / "simple-prediction-scorer"


def objects(file: Path) -> dict[str, dict[str, Any]]:
    """Return the manifests of a file by kind."""
    return {manifest["kind"]: manifest for manifest in yaml.safe_load_all(file.read_text())}


def test_samples_are_listed_and_documented() -> None:
    assert SAMPLES == [
        "ai-workload-scorer",
        "llm-forecast-scorer",
        "resource-usage-scorer",
        "sample-scorer",
        "simple-prediction-scorer",
        "static-scorer",
    ]
    page = (ROOT / "docs" / "samples.md").read_text()
    for name in SAMPLES:
        assert f"](../samples/{name})" in page


@pytest.mark.parametrize("name", SAMPLES)
def test_each_is_complete(name: str) -> None:
    folder = FOLDER / name
    for file in ("README.md", "Dockerfile", "requirements.txt", "test_scorer.sh", "manifests/deployment.yaml"):
        assert (folder / file).is_file(), file
    readme = (folder / "README.md").read_text()
    assert f"docker build --file samples/{name}/Dockerfile" in " ".join(readme.split())
    assert f"samples/{name}/test_scorer.sh" in readme


@pytest.mark.parametrize("name", SAMPLES)
def test_dynamicscorer_manifests_are_valid_and_use_the_service(name: str, load_sample: Load) -> None:
    file = FOLDER / name / "manifests" / "dynamicscorer.yaml"
    documents = parse_documents(file.read_text(), file.name)
    assert documents
    for document in documents:
        assert isinstance(document, ParsedDocument), document
        assert isinstance(document.object, DynamicScorer)
        host, path = f"http://{name}.dynamic-scoring.svc:8000", document.object.spec.config_url
        assert path.startswith(f"{host}/")
        with TestClient(load_sample(name).app) as client:
            parse_remote_config(client.get(path.removeprefix(host)).content)


@pytest.mark.parametrize("name", SAMPLES)
def test_deployments_are_valid_and_unprivileged(name: str) -> None:
    manifests = objects(FOLDER / name / "manifests" / "deployment.yaml")
    for manifest in manifests.values():
        kubernetes_validate.validate(manifest, "1.36", strict=True)
        assert (manifest["metadata"]["name"], manifest["metadata"]["namespace"]) == (name, "dynamic-scoring")
    pod = manifests["Deployment"]["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    assert container["image"] == f"{name}:0.1.0"
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert manifests["Service"]["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert manifests["Service"]["spec"]["ports"][0]["port"] == container["ports"][0]["containerPort"] == 8000


@pytest.mark.parametrize("name", SAMPLES)
def test_variables_and_volumes_of_the_deployments_mean_something(name: str) -> None:
    folder = FOLDER / name
    spec = objects(folder / "manifests" / "deployment.yaml")["Deployment"]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    program = (folder / "app.py").read_text()
    mounts = {mount["mountPath"]: mount["name"] for mount in container.get("volumeMounts", [])}
    for variable in container.get("env", []):
        assert variable["name"] in program
        if variable["name"].endswith("_FILE"):
            assert os.path.dirname(variable["value"]) in mounts
    assert set(mounts.values()) == {volume["name"] for volume in spec.get("volumes", [])}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: f"{script.parent.name}/{script.name}")
def test_scripts_can_be_read_by_their_shell(script: Path) -> None:
    assert os.access(script, os.X_OK)
    shell = script.read_text().splitlines()[0].removeprefix("#!").split()
    subprocess.run([*shell, "-n", script], check=True, timeout=300)


def test_backtest_prints_the_figures_of_the_readme() -> None:
    process = subprocess.run(
        [sys.executable, PREDICTION / "backtest.py"], capture_output=True, text=True, check=True, timeout=300
    )
    readme = (PREDICTION / "README.md").read_text()
    readme_output = re.search(r"backtest\.py\n(.*?)```", readme, re.DOTALL)
    assert readme_output is not None
    printed_words, readme_words = (re.findall(r"[\w.]+", text) for text in (process.stdout, readme_output[1]))
    assert [word for word in printed_words if not word[0].isdigit()] == [
        word for word in readme_words if not word[0].isdigit()
    ]
    # Processors may round the last digit differently.
    numbers = [[float(word) for word in words if word[0].isdigit()] for words in (printed_words, readme_words)]
    assert numbers[0] == pytest.approx(numbers[1], abs=0.11)
    *_, together = process.stdout.splitlines()
    assert float(together.split()[-1]) < 0.9, "of the highest value, which is what the score is made of"


def test_backtest_accepts_other_recordings(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    values = [[at, str(at % 7)] for at in range(60)]
    series = [{"metric": {"pod": "web"}, "values": values}, {"metric": {}, "values": [[at, "1"] for at, _ in values]}]
    file.write_text(
        f'{{"status": "success", "data": {{"resultType": "matrix", "result": {series}}}}}'.replace("'", '"')
    )
    process = subprocess.run(
        [sys.executable, PREDICTION / "backtest.py", file], capture_output=True, text=True, check=True, timeout=300
    )
    # A periodic series is predicted exactly; the constant series has no spread to scale errors with.
    row = process.stdout.splitlines()[-1].split()
    assert row[:3] == ["all", "31", "0.0%"]


def test_load_of_the_prediction_sample_rises_and_falls() -> None:
    (deployment,) = objects(PREDICTION / "manifests" / "load.yaml").values()
    kubernetes_validate.validate(deployment, "1.36", strict=True)
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    sample_containers = objects(PREDICTION / "manifests" / "deployment.yaml")["Deployment"]["spec"]["template"]["spec"][
        "containers"
    ]
    assert container["image"] == sample_containers[0]["image"]
    share = _shares(container["args"][0], period=600)
    assert share == pytest.approx([0.0, 0.5, 1.0, 0.5], abs=0.02)


def _shares(program: str, period: int) -> list[float]:
    """Return the CPU share of a pod's program at each quarter of a period, in tenths of a second."""
    now, cpu_seconds, rested = [0.0], [0.0], list[float]()

    def thread_time() -> float:
        """Return each reading of the clock takes half a millisecond of work."""
        cpu_seconds[0] += 0.0005
        now[0] += 0.0005
        return cpu_seconds[0]

    def sleep(seconds: float) -> None:
        rested.append(seconds)
        if len(rested) == 4:
            raise KeyboardInterrupt
        now[0] = len(rested) * period / 4

    clock = SimpleNamespace(time=lambda: now[0], monotonic=lambda: now[0], thread_time=thread_time, sleep=sleep)
    program_globals = {"math": math, "os": SimpleNamespace(environ={"PERIOD": str(period)}), "time": clock}
    with pytest.raises(KeyboardInterrupt):
        exec(program.replace("import math, os, time\n", ""), program_globals)
    return [1 - seconds / 0.1 for seconds in rested]
