"""Each process works with the rights that the chart gives it, and is refused more."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.tests.integration.hubcluster import (
    CLUSTER_ROLES,
    NAMESPACES,
    ROLE_BINDINGS,
    ROLES,
    SERVICE_ACCOUNTS,
    HubCluster,
)
from dsf.agent.kube import KubeConfig
from dsf.api.types import (
    ADDON_NAME,
    AGENT_NAMESPACE,
    CONFIG_NAME,
    CONFIGMAP_NAME,
    CREDENTIALS_KEY,
    CREDENTIALS_NAME,
    CREDENTIALS_WORK_NAME,
    HUB_NAMESPACE,
    MANIFESTWORK_NAME,
)
from dsf.auth.secrets import Use
from dsf.backends.kube import KubeBackend
from dsf.backends.kube_scores import KubeScores
from dsf.backends.protocol import Credentials, Kind, ObjectKey
from dsf.errors import ObjectNotFoundError
from dsf.hub.manifestwork import make_manifest_work
from dsf.kube.leader import LeaderElector
from dsf.kube.resources import (
    ADDON_PLACEMENT_SCORES,
    CONFIG_MAPS,
    DYNAMIC_SCORERS,
    DYNAMIC_SCORING_CONFIGS,
    EVENTS,
    MANAGED_CLUSTER_ADDONS,
    MANAGED_CLUSTERS,
    MANIFEST_WORKS,
    SECRETS,
)
from dsf.kube.session import ForbiddenError, Session
from dsf.redisacl.keyids import KeyIds
from dsf.settings import Settings
from tests.support import chart
from tests.support.controlplane import ControlPlane
from tests.support.wait import wait_for

SCORE = {
    "apiVersion": ADDON_PLACEMENT_SCORES.api_version,
    "kind": ADDON_PLACEMENT_SCORES.kind,
    "metadata": {"name": "s", "labels": {"app.kubernetes.io/managed-by": "dynamic-scoring-framework"}},
}
STATUS = {"scores": [{"name": "a", "value": 1}], "validUntil": "2040-01-01T00:00:00Z"}


@pytest.fixture(scope="module")
def installed(hub: HubCluster) -> Iterator[HubCluster]:
    """The hub with the chart on it."""
    values = {"mode": "Distributed", "spokeSetting": {"agent": {"tokenSecrets": ["prometheus-token"]}}}
    with hub.release(values):
        yield hub


@pytest.fixture
def as_account(installed: HubCluster) -> Iterator[Callable[..., Session]]:
    """`as_account(name, namespace)` -> a session with that ServiceAccount's rights."""
    with contextlib.ExitStack() as stack:

        def make(account: str, namespace: str = HUB_NAMESPACE) -> Session:
            kubeconfig = installed.kubeconfig_of(namespace, account)
            return stack.enter_context(contextlib.closing(Session.load(kubeconfig)))

        yield make


def test_controller_has_the_rights_for_its_work(
    as_account: Callable[..., Session],
    plane: ControlPlane,
    session: Session,
    settings_factory: Callable[..., Settings],
) -> None:
    cluster = plane.cluster("c")
    addon = {"apiVersion": MANAGED_CLUSTER_ADDONS.api_version, "kind": MANAGED_CLUSTER_ADDONS.kind}
    session.create(MANAGED_CLUSTER_ADDONS.path(cluster), addon | {"metadata": {"name": ADDON_NAME}, "spec": {}})
    scorer = {
        "apiVersion": DYNAMIC_SCORERS.api_version,
        "kind": DYNAMIC_SCORERS.kind,
        "metadata": {"name": "sample"},
        "spec": {"description": "d", "configURL": "http://s:8000/config", "configSyncMode": "None"},
    }
    session.create(DYNAMIC_SCORERS.path(cluster), scorer)
    settings = settings_factory(namespace=HUB_NAMESPACE, addon_mode=True, scoring_config={"masks": []})
    backend = KubeBackend(as_account("dynamic-scoring-controller"), settings)
    try:
        backend.start(lambda key: None)
        assert backend.get(Kind.CLUSTER, "", cluster)
        assert backend.get(Kind.ADDON, cluster, ADDON_NAME)
        backend.apply(make_manifest_work(cluster, AGENT_NAMESPACE, []))
        backend.deliver_credentials(cluster, Credentials(KeyIds(), "1:00", "password"))
        backend.update_status(Kind.SCORER, cluster, "sample", {"healthStatus": "Active"})
        backend.update_status(Kind.CONFIG, HUB_NAMESPACE, CONFIG_NAME, {"observedGeneration": 1})
        backend.record_event(ObjectKey(Kind.SCORER, cluster, "sample"), "Normal", "Tested", "with the chart's rights")
        wait_for(lambda: backend.get(Kind.WORK, cluster, MANIFESTWORK_NAME))
        assert session.get(MANIFEST_WORKS.path(cluster, CREDENTIALS_WORK_NAME))
        assert session.get(DYNAMIC_SCORERS.path(cluster, "sample"))["status"]["healthStatus"] == "Active"
        wait_for(lambda: "with the chart's rights" in str(session.get(EVENTS.path(cluster))["items"]))
        session.create(ADDON_PLACEMENT_SCORES.path(cluster), SCORE)
        backend.delete_score(cluster, "s")
        wait_for(lambda: backend.get(Kind.WORK, cluster, CREDENTIALS_WORK_NAME))
        backend.remove_credentials(cluster)
        backend.delete(Kind.WORK, cluster, MANIFESTWORK_NAME)
        backend.keep_name_claims(HUB_NAMESPACE, backend.read_name_claims(HUB_NAMESPACE) or "{}")
        assert backend.read_name_claims(HUB_NAMESPACE) == "{}"
        assert {reflector.error for reflector in backend._reflectors.values()} == {None}
    finally:
        backend.stop()


def test_controller_can_be_elected(as_account: Callable[..., Session]) -> None:
    started: list[bool] = []
    election = LeaderElector(
        as_account("dynamic-scoring-controller"),
        HUB_NAMESPACE,
        on_started=lambda: started.append(True),
        on_lease_lost=lambda: None,
    )
    election.start()
    try:
        wait_for(lambda: started, 20)
    finally:
        election.stop()


def test_controller_is_denied_foreign_objects(as_account: Callable[..., Session], plane: ControlPlane) -> None:
    hub, cluster = as_account("dynamic-scoring-controller"), plane.cluster("c")
    work = make_manifest_work(cluster, AGENT_NAMESPACE, [])
    work["metadata"]["name"] = "anything"
    with pytest.raises(ForbiddenError):
        hub.apply(MANIFEST_WORKS.path(cluster, "anything"), work, field_manager="test")
    for path in (
        MANIFEST_WORKS.path(cluster, "anything"),
        SECRETS.path(HUB_NAMESPACE),
        SECRETS.path(HUB_NAMESPACE, "dynamic-scoring-redis-users"),
        SECRETS.path(cluster),
        CONFIG_MAPS.path(HUB_NAMESPACE),
        NAMESPACES.path(),
    ):
        with pytest.raises(ForbiddenError):
            hub.get(path)
    with pytest.raises(ForbiddenError):
        hub.merge(DYNAMIC_SCORERS.path(HUB_NAMESPACE, "any"), {"spec": {"description": "d"}})
    with pytest.raises(ForbiddenError):
        hub.merge(MANAGED_CLUSTERS.path(name=cluster), {"spec": {"hubAcceptsClient": False}})


def test_controller_writes_scores(as_account: Callable[..., Session], plane: ControlPlane, session: Session) -> None:
    cluster = plane.cluster("c")
    controller = as_account("dynamic-scoring-controller")
    backend = KubeScores(controller, lambda key: None, lambda obj: None)
    score = SCORE | {"metadata": {**_metadata(SCORE), "namespace": cluster}}
    # A new namespace, a changed one, one with objects to remove, and a deleted one.
    backend.apply_score(score, STATUS)
    backend.apply_score(score, STATUS | {"scores": [{"name": "b", "value": 2}]})
    path = ADDON_PLACEMENT_SCORES.path(cluster, "s")
    session.merge(f"{path}/status", {"status": {"scores": [{"name": "b", "value": 2}, {"name": "c", "value": 3}]}})
    backend.apply_score(score, STATUS)
    assert session.get(path)["status"]["scores"] == STATUS["scores"]
    backend.delete_score(cluster, "s")
    with pytest.raises(ObjectNotFoundError):
        session.get(path)


@pytest.mark.parametrize("name", ["beat", "results", "flower", "redis"])
def test_other_services_have_no_rights(as_account: Callable[..., Session], name: str) -> None:
    session = as_account(f"dynamic-scoring-{name}")
    for resource in (SECRETS, CONFIG_MAPS, DYNAMIC_SCORERS, DYNAMIC_SCORING_CONFIGS, MANIFEST_WORKS):
        with pytest.raises(ForbiddenError):
            session.get(resource.path(HUB_NAMESPACE))


def test_agent_reads_its_own_objects_only(
    installed: HubCluster,
    as_account: Callable[..., Session],
    session: Session,
    settings_factory: Callable[..., Settings],
    tmp_path: Path,
) -> None:
    secret = {"name": "prometheus-token", "hosts": ["prometheus.example.com"]}
    template = chart.render({"spokeSetting": {"agent": {"tokenSecrets": [secret]}}})
    agent = chart.agent_objects(template)
    session.create(NAMESPACES.path(), chart.find_object(agent, "Namespace"))
    for resource in (SERVICE_ACCOUNTS, ROLES, ROLE_BINDINGS):
        session.create(resource.path(AGENT_NAMESPACE), chart.find_object(agent, resource.kind))
    for name, key, value in (
        (CREDENTIALS_NAME, CREDENTIALS_KEY, "1:" + "ab" * 32),
        ("prometheus-token", "token", "secret-token"),
        ("somebody-elses", "token", "other-token"),
    ):
        body = {"metadata": {"name": name}, "stringData": {key: value}}
        session.create(SECRETS.path(AGENT_NAMESPACE), body)
    session.create(
        CONFIG_MAPS.path(AGENT_NAMESPACE), {"metadata": {"name": CONFIGMAP_NAME}, "data": {"summaries": "[]"}}
    )
    kubeconfig = installed.kubeconfig_of(AGENT_NAMESPACE, "dynamic-scoring-agent-sa")
    settings = settings_factory(
        agent_kube=True,
        kubeconfig=kubeconfig,
        agent_namespace=AGENT_NAMESPACE,
        agent_token_secrets={"prometheus-token": ["prometheus.example.com"]},
    )
    config = KubeConfig(settings)
    try:
        config.start()
        wait_for(lambda: config.loaded_at)
        use = Use(("http://prometheus.example.com:9090/",))
        assert config.secrets.get_secret("prometheus-token", "token", use) == b"secret-token"
    finally:
        config.stop()
    limited = as_account("dynamic-scoring-agent-sa", AGENT_NAMESPACE)
    for path in (
        SECRETS.path(AGENT_NAMESPACE, "somebody-elses"),
        SECRETS.path(AGENT_NAMESPACE, CREDENTIALS_NAME),
        SECRETS.path(AGENT_NAMESPACE),
        CONFIG_MAPS.path(AGENT_NAMESPACE),
        SECRETS.path(HUB_NAMESPACE),
        NAMESPACES.path(),
    ):
        with pytest.raises(ForbiddenError):
            limited.get(path)


@pytest.mark.parametrize(("role", "verbs"), [("admin", True), ("editor", True), ("viewer", False)])
def test_builtin_roles_include_the_rights(session: Session, installed: HubCluster, role: str, verbs: bool) -> None:
    del installed
    rules = session.get(CLUSTER_ROLES.path(name=f"dynamic-scoring-framework-{role}"))["rules"]
    allowed = {verb for rule in rules for verb in rule["verbs"] if "dynamicscorers" in rule["resources"]}
    assert bool({"create", "*"} & allowed) is verbs


def _metadata(manifest: dict[str, Any]) -> dict[str, Any]:
    metadata: dict[str, Any] = manifest["metadata"]
    return metadata
