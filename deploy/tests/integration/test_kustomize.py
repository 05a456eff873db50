"""The kustomize base, applied through the overlay of docs/gitops.md to a real API server."""

from __future__ import annotations

import contextlib

import pytest
import yaml

from deploy.tests.integration.hubcluster import ADDON_TEMPLATES, DEPLOYMENTS, STATEFUL_SETS
from dsf.api.types import ADDON_NAME
from tests.support import chart
from tests.support.controlplane import ControlPlane

OVERLAY = chart.ROOT / "deploy" / "kustomize-example"


@pytest.fixture(scope="module")
def built(plane: ControlPlane) -> list[chart.Object]:
    """Return the output of `kubectl kustomize` for the overlay."""
    return [document for document in yaml.safe_load_all(plane.kubectl("kustomize", str(OVERLAY))) if document]


def test_overlay_is_short_and_documented() -> None:
    text = (OVERLAY / "kustomization.yaml").read_text()
    assert len(text.splitlines()) <= 10
    assert text in (chart.ROOT / "docs" / "gitops.md").read_text()


def test_overlay_gives_agents_the_ca_and_pods_their_secrets(built: list[chart.Object]) -> None:
    ca = chart.find_object(built, "ConfigMap", "our-redis-ca")["data"]["ca.crt"]
    assert (
        chart.find_object(chart.agent_objects(built), "ConfigMap", "dynamic-scoring-agent-ca")["data"]["redis-ca.crt"]
        == ca
    )
    referenced_secrets = {
        volume["secret"]["secretName"]
        for workload in chart.workloads([o for o in built if o["kind"] != "AddOnTemplate"]).values()
        for volume in chart.pod(workload)["volumes"]
        if "secret" in volume
    }
    assert referenced_secrets <= {secret["metadata"]["name"] for secret in chart.of_kind(built, "Secret")}
    assert not [o for o in built if o["metadata"]["name"] == "dynamic-scoring-redis-external"], "nothing is exposed"


def test_overlay_is_applied(plane: ControlPlane, built: list[chart.Object]) -> None:
    plane.kubectl("apply", "--server-side", "-f", str(chart.CHART / "files" / "crds.yaml"))
    plane.kubectl(
        "wait", "--for=condition=Established", "--timeout=60s", "-f", str(chart.CHART / "files" / "crds.yaml")
    )
    try:
        applied = plane.kubectl("apply", "--server-side", "-k", str(OVERLAY))
        assert applied.count(" serverside-applied") == len(built)
        with contextlib.closing(plane.session()) as session:
            namespace = chart.NAMESPACE
            assert session.get(DEPLOYMENTS.path(namespace, "dynamic-scoring-hub"))
            assert session.get(STATEFUL_SETS.path(namespace, "dynamic-scoring-redis"))
            assert session.get(ADDON_TEMPLATES.path(name=ADDON_NAME))
    finally:
        plane.kubectl("delete", "-k", str(OVERLAY), "--ignore-not-found", "--wait=false")
