"""docs/migration.md lists the upstream manifests that need a change, and the effect without it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from dsf.api.manifest import ManifestProblem, parse_documents
from dsf.api.resolve import resolve
from dsf.api.scorer import DynamicScorer
from dsf.api.types import API_VERSION, ResolveReason
from dsf.cli.main import app
from dsf.errors import ResolutionError
from tests.integration.docs import pages

ROOT = Path(__file__).parents[3]
PAGE = (Path(__file__).parents[3] / "docs" / "migration.md").read_text()
_HEAD = f"apiVersion: {API_VERSION}\nkind: DynamicScorer\nmetadata:\n  name: sample\nspec:\n"
_SPEC = f"{_HEAD}  description: A sample\n  configURL: http://sample-scorer:8000/config\n  configSyncMode: Full\n"
_TOKEN = {"tokenSecretRef": {"name": "source-query-secret", "key": "token"}}


def _resolved_with(synced_source_host: str | None, **spec: Any) -> Any:
    source = {"params": {"query": "up", "range": 60, "step": 15}}
    if synced_source_host:
        source["host"] = synced_source_host  # type: ignore[assignment]
    scorer = DynamicScorer.from_manifest(
        {
            "apiVersion": API_VERSION,
            "kind": "DynamicScorer",
            "metadata": {"name": "sample", "namespace": "open-cluster-management"},
            "spec": {
                "description": "A sample",
                "configURL": "http://sample-scorer:8000/config",
                "configSyncMode": "Full",
                "location": "External",
                **spec,
            },
            "status": {
                "healthStatus": "Active",
                "lastSyncedConfig": {
                    "name": "sample",
                    "source": source,
                    "scoring": {"params": {"name": "sample_score", "interval": 30}},
                },
            },
        }
    )
    return resolve(scorer).summary


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (f"{_SPEC}  source:\n    type: prometheus\n", "is not one of Prometheus"),
        (_HEAD, "spec"),
        (_SPEC.replace("http://", "sample://"), "configURL"),
        (f"{_SPEC}  scoring:\n    params: {{name: a, interval: 0}}\n", "interval"),
        (f"{_SPEC}  source:\n    params: {{query: up, range: -1, step: 1}}\n", "range"),
    ],
)
def test_listed_manifests_are_refused(text: str, names: str) -> None:
    (problem, *_) = parse_documents(text, "f.yaml")
    assert isinstance(problem, ManifestProblem)
    assert names in str(problem)


def test_their_remedies_are_accepted() -> None:
    documents = parse_documents(f"{_SPEC}  source:\n    type: Prometheus\n", "f.yaml")
    assert not [document for document in documents if isinstance(document, ManifestProblem)]
    assert _resolved_with("http://prom.example:9090", source={"host": "http://prom.example:9090", "auth": _TOKEN})


def test_token_for_a_host_set_only_by_config_is_refused() -> None:
    with pytest.raises(ResolutionError) as raised:
        _resolved_with("http://prom.example:9090", source={"auth": _TOKEN})
    assert raised.value.reason == ResolveReason.TokenHostMismatch
    assert f"`{ResolveReason.TokenHostMismatch}`" in PAGE


@pytest.mark.parametrize(("path", "endpoint"), [(None, "/scoring"), ("/", ""), ("/score", "/score")])
def test_unset_scoring_path_defaults_to_scoring(path: str | None, endpoint: str) -> None:
    summary = _resolved_with(None, scoring={} if path is None else {"path": path})
    assert summary.scoring_endpoint == f"http://sample-scorer:8000{endpoint}"


#: The upstream project's documents with instructions.
DOCUMENTS = {
    *("README.md", "docs/quickstart.md", "docs/setup-local-clusters.md", "docs/development.md"),
    *("docs/setup-prometheus.md", "docs/setup-skupper.md", "docs/scoring-api-samples.md"),
    *("docs/optimization-using-dsf.md", "docs/install-on-ocp.md", "docs/concept-and-design.md"),
}


def _rows() -> list[tuple[str, str, str]]:
    table = PAGE.partition("## Upstream's documents, command by command")[2].partition("\n## ")[0]
    rows = [tuple(cell.strip() for cell in line.strip("|").split(" | ")) for line in table.splitlines() if "|" in line]
    return [row for row in rows[2:] if len(row) == 3]


def test_every_document_of_upstream_has_its_rows() -> None:
    lines = PAGE.partition("command by command")[2].partition("\n## ")[0].count("\n|")
    assert len(_rows()) == lines - 2, "a row without three cells"
    assert {row[0].strip("`") for row in _rows()} - {""} == DOCUMENTS


@pytest.mark.parametrize("row", _rows(), ids=lambda row: row[1][:40])
def test_replacement_of_each_command_exists(row: tuple[str, str, str]) -> None:
    codes = re.findall(r"`([^`]+)`", row[2])
    links = re.findall(r"\]\(([^)]+)\)", row[2])
    checked = [_exists(code) for code in codes] + [_leads_somewhere(link) for link in links]
    assert any(checked), f"nothing in {row[2]!r} can be looked up"


def _exists(code: str) -> bool:
    """Return True if the code names an object that can be looked up, and assert that it exists."""
    words = code.split()
    if words[0] == "make":
        subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, check=True, capture_output=True, timeout=300)
        return True
    if words[0] == "dsf":
        assert words[1] in get_command(app).commands, code  # type: ignore[attr-defined]
        return True
    if re.fullmatch(r"[a-z]\w+(\.\w+)+(: \w+)?", words[0] if len(words) == 1 else code) and words[0].count("/") == 0:
        values = yaml.safe_load((ROOT / "deploy" / "helm" / "values.yaml").read_text())
        for part in words[0].rstrip(":").split("."):
            assert part in values, f"{code}: no value of the chart"
            values = values[part]
        return True
    paths = [
        word for word in words if ((ROOT / word.partition("/")[0]).exists() and "/" in word) or word == "Dockerfile"
    ]
    for path in paths:
        assert (ROOT / path).exists(), path
    return bool(paths)


def _leads_somewhere(link: str) -> bool:
    path, _, anchor = link.partition("#")
    file = ROOT / "docs" / path
    assert file.is_file(), link
    assert not anchor or anchor in pages.anchors(file), link
    return True
