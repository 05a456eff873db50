"""The optional manifests of sources are valid and speak of the agent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from dsf.api.types import AGENT_ACCOUNT, AGENT_NAME, AGENT_NAMESPACE

FOLDER = Path(__file__).resolve().parents[3] / "deploy" / "sources"


def read(name: str) -> dict[str, Any]:
    return {document["kind"]: document for document in yaml.safe_load_all((FOLDER / name).read_text())}


@pytest.mark.parametrize("name", ["kubernetes.yaml", "otlp.yaml"])
def test_they_are_valid(name: str) -> None:
    for document in read(name).values():
        kubernetes_validate.validate(document, "1.36", strict=True)


def test_the_cluster_role_reads_nodes_and_pods_and_nothing_else() -> None:
    found = read("kubernetes.yaml")
    assert found["ClusterRole"]["rules"] == [
        {"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["get", "list", "watch"]}
    ]
    (subject,) = found["ClusterRoleBinding"]["subjects"]
    assert (subject["name"], subject["namespace"]) == (AGENT_ACCOUNT, AGENT_NAMESPACE)
    assert found["ClusterRoleBinding"]["roleRef"]["name"] == found["ClusterRole"]["metadata"]["name"]


def test_the_service_leads_to_the_agent() -> None:
    found = read("otlp.yaml")
    assert found["Service"]["spec"]["selector"] == {"app": AGENT_NAME}
    assert found["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == {"app": AGENT_NAME}
    assert {document["metadata"]["namespace"] for document in found.values()} == {AGENT_NAMESPACE}
