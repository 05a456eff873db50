"""The source Object against a real API server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from dsf.api.objectsource import ObjectSource
from dsf.errors import HttpError
from dsf.kube.resources import CONFIG_MAPS, DEPLOYMENTS
from dsf.kube.session import ForbiddenError, Session
from dsf.owncluster import kubelisting
from dsf.settings import Settings
from dsf.sources.memory import SourceMemory
from tests.support import chart
from tests.support.apirelay import ApiServerRelay
from tests.support.controlplane import ControlPlane
from tests.support.sourcefetch import ask, memory, summary
from tests.support.wait import PATIENCE, wait_for

FIELDS = [
    {"name": "replicas", "path": "spec.replicas", "labels": [{"name": "app", "path": "metadata.labels.app"}]},
    {"name": "cpu_limit", "path": "spec.template.spec.containers[0].resources.limits.cpu"},
]


def chart_objects() -> list[chart.Object]:
    """Return the chart's objects for agents that may read Deployments."""
    objects = [{"apiGroup": "apps", "resource": "deployments"}]
    return chart.agent_objects(chart.render({"spokeSetting": {"agent": {"sources": {"objects": objects}}}}))


class Cluster:
    """An API server, an agent's account, and the agent's source memory."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self.admin = plane.session()
        self.namespace = plane.namespace("objects")
        rules = chart.find_object(chart_objects(), "ClusterRole")["rules"]
        self.relay = ApiServerRelay(plane, plane.service_account(self.namespace, "agent", rules)).__enter__()
        self.session = Session.load(self.relay.kubeconfig)
        self.memory: SourceMemory = memory()
        self.memory.settings = Settings(agent_kube=True, kubeconfig=self.relay.kubeconfig)

    def close(self) -> None:
        """End connections."""
        self.memory.stop()
        self.session.close()
        self.relay.__exit__()

    def deployment(self, name: str, app: str, **limits: str) -> None:
        """A Deployment with two replicas."""
        container = {"name": "main", "image": "none", "resources": {"limits": limits}}
        labels = {"app": app}
        self.admin.create(
            DEPLOYMENTS.path(self.namespace),
            {
                "metadata": {"name": name, "labels": labels},
                "spec": {
                    "replicas": 2,
                    "selector": {"matchLabels": labels},
                    "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
                },
            },
        )

    def ask(self, max_bytes: int = 1_000_000, seconds: float = 60, **source: Any) -> dict[tuple[str, ...], float]:
        """Return the newest values by their labels."""
        source_fields = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "namespace": self.namespace,
            "fields": FIELDS,
        } | source
        query = ObjectSource.model_validate(source_fields, by_alias=True).model_dump_json(
            by_alias=True, exclude_unset=True
        )
        return {
            tuple(value for key, value in series["metric"].items() if key != "namespace"): float(
                series["values"][-1][1]
            )
            for series in ask(summary("Object", query), self.memory, max_bytes=max_bytes, seconds=seconds)
        }

    def failure_of(self, **source: Any) -> HttpError:
        """How the cycle fails."""
        with pytest.raises(HttpError) as caught:
            self.ask(**source)
        return caught.value


@pytest.fixture
def cluster(control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setenv("DSF_AGENT_OBJECTS", '["deployments.apps"]')
    new_cluster = Cluster(control_plane)
    yield new_cluster
    new_cluster.close()


def test_selected_objects_are_read_in_pages_with_their_fields(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, app in (("a", "shop"), ("b", "shop"), ("c", "other")):
        cluster.deployment(name, app, cpu="500m" if name == "a" else "2")
    expected_values = {
        ("replicas", "a", "shop"): 2,
        ("replicas", "b", "shop"): 2,
        ("replicas", "c", "other"): 2,
        ("cpu_limit", "a"): 0.5,
        ("cpu_limit", "b"): 2,
        ("cpu_limit", "c"): 2,
    }
    assert cluster.ask() == expected_values
    monkeypatch.setattr(kubelisting, "_PAGE_SIZE", 1)
    assert cluster.ask() == expected_values
    shop = cluster.ask(selector={"matchLabels": {"app": "shop"}}, fields=FIELDS[1:])
    assert shop == {("cpu_limit", "a"): 0.5, ("cpu_limit", "b"): 2}
    assert cluster.ask(selector={"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}) == {}
    error = cluster.failure_of(max_bytes=500)
    assert (error.reason, error.retryable) == ("too_large", False)


def test_unreleased_kind_is_not_read_despite_permissions(cluster: Cluster) -> None:
    rule = {"apiGroups": [""], "resources": ["configmaps", "secrets"], "verbs": ["list"]}
    cluster.plane.set_rules(cluster.namespace, "agent", [rule])

    def may() -> bool:
        try:
            return bool(cluster.session.get(CONFIG_MAPS.path(cluster.namespace)))
        except ForbiddenError:
            return False

    wait_for(may, 60, "the right works")
    error = cluster.failure_of(apiVersion="v1", kind="ConfigMap")
    assert error.reason == "unauthorized"
    assert "this agent may not read configmaps: " in str(error)
    assert "add {apiGroup: '', resource: configmaps} to the chart's spokeSetting.agent.sources.objects" in str(error)


def test_missing_right_error_names_the_rule_to_grant(cluster: Cluster) -> None:
    cluster.plane.set_rules(cluster.namespace, "agent", [])

    def refusal() -> HttpError | None:
        try:
            cluster.ask()
        except HttpError as error:
            return error
        return None

    error = wait_for(refusal, 60, "the right is gone")
    assert (error.reason, error.status) == ("unauthorized", 403)
    assert "needs the right to list deployments.apps; on the hub add {apiGroup: apps, resource: deployments}" in str(
        error
    )
    assert "cannot list resource" in str(error)


@pytest.mark.parametrize(
    ("source", "reason", "expected_message"),
    [
        ({"apiVersion": "example.com/v1", "kind": "Widget"}, "unknown_kind", "this cluster has no example.com/v1"),
        ({"kind": "Widget"}, "unknown_kind", "this cluster has no kind Widget in apps/v1"),
        ({"apiVersion": "v1", "kind": "Binding"}, "unknown_kind", "that can be listed"),
        ({"apiVersion": "v1", "kind": "Node"}, "bad_query", "a Node is in no namespace"),
    ],
)
def test_invalid_object_source_is_refused(
    cluster: Cluster, source: dict[str, Any], reason: str, expected_message: str
) -> None:
    error = cluster.failure_of(**source)
    assert error.reason == reason
    assert expected_message in str(error)


def test_silent_or_absent_server_is_reported(control_plane: ControlPlane) -> None:
    cluster = Cluster(control_plane)
    with cluster.relay.stalled():
        began = time.monotonic()
        error = cluster.failure_of(seconds=2)
        assert time.monotonic() - began < PATIENCE
    assert (error.reason, error.retryable) == ("timeout", True)
    cluster.relay.cut()
    error = cluster.failure_of()
    assert (error.reason, error.retryable) == ("connection_failed", True)
    cluster.close()
