"""docs/migration.md says which manifests of the upstream project need a change, and what happens without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dsf.api.manifest import ManifestProblem, parse_documents
from dsf.api.resolve import resolve
from dsf.api.resolvereason import ResolveReason
from dsf.api.scorer import DynamicScorer
from dsf.api.types import API_VERSION
from dsf.errors import ResolutionError

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
def test_these_manifests_are_refused(text: str, names: str) -> None:
    (problem, *_) = parse_documents(text, "f.yaml")
    assert isinstance(problem, ManifestProblem)
    assert names in str(problem)


def test_their_remedies_are_accepted() -> None:
    found = parse_documents(f"{_SPEC}  source:\n    type: Prometheus\n", "f.yaml")
    assert not [one for one in found if isinstance(one, ManifestProblem)]
    assert _resolved_with("http://prom.example:9090", source={"host": "http://prom.example:9090", "auth": _TOKEN})


def test_a_token_for_a_host_of_config_alone_is_refused() -> None:
    with pytest.raises(ResolutionError) as raised:
        _resolved_with("http://prom.example:9090", source={"auth": _TOKEN})
    assert raised.value.reason == ResolveReason.TokenHostMismatch
    assert f"`{ResolveReason.TokenHostMismatch}`" in PAGE


@pytest.mark.parametrize(("path", "endpoint"), [(None, "/scoring"), ("/", ""), ("/score", "/score")])
def test_an_unset_scoring_path_is_scoring(path: str | None, endpoint: str) -> None:
    summary = _resolved_with(None, scoring={} if path is None else {"path": path})
    assert summary.scoring_endpoint == f"http://sample-scorer:8000{endpoint}"
