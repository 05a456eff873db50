"""OCM's own placement controller and addon manager turn the chart into the objects that OCM's work agent deploys."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from deploy.tests.integration.hubcluster import ADDON_CONFIGS, DEPLOYMENTS, NAMESPACES, HubCluster
from dsf.api.types import ADDON_NAME, AGENT_NAME, AGENT_NAMESPACE, HUB_NAMESPACE
from dsf.errors import ObjectNotFoundError
from dsf.kube.resources import CONFIG_MAPS, MANAGED_CLUSTER_ADDONS, MANAGED_CLUSTERS, MANIFEST_WORKS
from dsf.kube.session import Session
from tests.support import chart
from tests.support.controlplane import ControlPlane
from tests.support.controlplane_fixtures import programs_needed
from tests.support.wait import wait_for
from tests.support.workagent import work_agent

WORK = f"addon-{ADDON_NAME}-deploy-0"
_AGENT = {"tokenSecrets": ["prometheus-token"], "extraEnv": [{"name": "X", "value": "{{EXTRA}}"}]}
_SOURCES = {"kubernetes": True, "otlp": {"enabled": True, "tokenSecret": "collector-token"}}
VALUES: chart.Values = {
    "redis": {"exposure": {"type": "NodePort", "host": "redis.example.com"}},
    "spokeSetting": {"agent": _AGENT},
    "addon": {
        "customizedVariables": [
            {"name": "EXTRA", "value": "1000"},
            {"name": "Image", "value": "ghcr.io/open-cluster-management-io/dynamic-scoring-agent:1.2.3"},
            {"name": "ImagePullSecret", "value": "everywhere"},
        ],
        "proxyConfig": {"httpsProxy": "http://proxy:3128", "noProxy": ".svc"},
        "registries": [{"source": "ghcr.io/open-cluster-management-io", "mirror": "mirror.example.com/ocm"}],
    },
}
Objects = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def cluster(ocm: ControlPlane, hub: HubCluster) -> Iterator[str]:
    """A managed cluster that the installed chart's Placement has chosen."""
    name = ocm.cluster("worker")
    with hub.release(VALUES) as release:
        yield name
        # Uninstall while the addon manager runs.
        release.uninstall()


def _list_deployed_objects(session: Session, cluster: str) -> Objects:
    """Return the objects in the addon's ManifestWork, by kind. Raises AssertionError until it exists."""
    try:
        work = session.get(MANIFEST_WORKS.path(cluster, WORK))
    except ObjectNotFoundError as error:
        raise AssertionError(str(error)) from None
    return {manifest["kind"]: manifest for manifest in work["spec"]["workload"]["manifests"]}


@pytest.fixture
def deployed(session: Session, cluster: str) -> Objects:
    """Return the objects that OCM would create on the cluster."""
    return wait_for(lambda: _list_deployed_objects(session, cluster), 60)


def test_addon_is_installed_on_the_cluster(session: Session, cluster: str, deployed: Objects) -> None:
    assert set(deployed) == {
        *("Namespace", "ServiceAccount", "Role", "RoleBinding", "ConfigMap", "Deployment", "Service", "NetworkPolicy")
    }

    def addon_with_configs() -> dict[str, Any]:
        # Other controllers than the one that creates the ManifestWork set these.
        addon = session.get(MANAGED_CLUSTER_ADDONS.path(cluster, ADDON_NAME))
        assert addon.get("status", {}).get("namespace") == AGENT_NAMESPACE
        assert _conditions(addon).get("Configured") == "True"
        return addon

    addon = wait_for(addon_with_configs, 60)
    assert not addon["status"].get("registrations"), "it has no credentials of the hub"


def test_objects_are_in_the_namespace_of_the_agent(deployed: Objects) -> None:
    assert deployed["Namespace"]["metadata"]["name"] == AGENT_NAMESPACE
    for kind in set(deployed) - {"Namespace"}:
        assert deployed[kind]["metadata"]["namespace"] == AGENT_NAMESPACE
    (subject,) = deployed["RoleBinding"]["subjects"]
    assert subject["namespace"] == AGENT_NAMESPACE


def test_agent_environment_names_its_cluster(deployed: Objects, cluster: str) -> None:
    (container,) = chart.containers(deployed["Deployment"])
    environment = chart.environment(container)
    assert environment["DSF_CLUSTER"] == cluster
    assert environment["DSF_REDIS_USERNAME"] == f"spoke-{cluster}"
    assert environment["DSF_REDIS_URL"] == "rediss://redis.example.com:30379/0"
    assert environment["X"] == "1000"
    assert not re.findall("{{.*?}}", str(deployed))


def test_proxy_and_registry_are_applied(deployed: Objects) -> None:
    (container,) = chart.containers(deployed["Deployment"])
    assert chart.environment(container)["HTTPS_PROXY"] == "http://proxy:3128"
    # The variable's, of which OCM replaces the registry.
    assert container["image"] == "mirror.example.com/ocm/dynamic-scoring-agent:1.2.3"
    assert deployed["ServiceAccount"]["imagePullSecrets"] == [{"name": "everywhere"}]


def test_user_secrets_survive_the_removal_of_the_addon(session: Session, cluster: str, deployed: Objects) -> None:
    assert deployed
    option = session.get(MANIFEST_WORKS.path(cluster, WORK))["spec"]["deleteOption"]
    assert option["propagationPolicy"] == "SelectivelyOrphan"
    (rule,) = option["selectivelyOrphans"]["orphaningRules"]
    assert (rule["resource"], rule["name"]) == ("namespaces", AGENT_NAMESPACE)


def test_addon_config_of_one_cluster_overrides_its_variables_and_keeps_the_namespace(
    session: Session, ocm: ControlPlane, cluster: str
) -> None:
    """With a config that does not set the namespace, OCM's default would apply, so the config must set it."""
    assert cluster
    other = ocm.cluster("worker")
    wait_for(lambda: _list_deployed_objects(session, other), 60)
    body = {
        "apiVersion": ADDON_CONFIGS.api_version,
        "kind": ADDON_CONFIGS.kind,
        "metadata": {"name": "own"},
        "spec": {
            "agentInstallNamespace": "",
            "customizedVariables": [
                {"name": "EXTRA", "value": "7"},
                {"name": "Image", "value": "registry.example.com:5000/agent@sha256:0"},
                {"name": "ImagePullSecret", "value": "here"},
            ],
        },
    }
    session.create(ADDON_CONFIGS.path(other), body)
    reference = {"group": ADDON_CONFIGS.group, "resource": ADDON_CONFIGS.plural, "name": "own", "namespace": other}
    session.merge(MANAGED_CLUSTER_ADDONS.path(other, ADDON_NAME), {"spec": {"configs": [reference]}})

    def moved() -> Objects:
        deployed_objects = _list_deployed_objects(session, other)
        (container,) = chart.containers(deployed_objects["Deployment"])
        assert chart.environment(container)["X"] == "7"
        return deployed_objects

    deployed = wait_for(moved, 60)
    (container,) = chart.containers(deployed["Deployment"])
    assert container["image"] == "registry.example.com:5000/agent@sha256:0"
    assert deployed["ServiceAccount"]["imagePullSecrets"] == [{"name": "here"}]
    assert deployed["Deployment"]["metadata"]["namespace"] == AGENT_NAMESPACE


def test_upgrade_is_delivered_to_the_cluster(
    session: Session, ocm: ControlPlane, hub: HubCluster, cluster: str
) -> None:
    del ocm
    # By the same way as `helm upgrade`, on the release that is installed.
    import helm_python

    values = {**VALUES, "log": {"level": "DEBUG"}, "spokeSetting": {"agent": {**_AGENT, "sources": _SOURCES}}}
    with helm_python.Config(kubeconfig_path=hub.plane.kubeconfig, namespace=HUB_NAMESPACE) as config:
        config.upgrade(chart.CHART, chart.RELEASE, values, reset_values=True)

    def upgraded() -> bool:
        (container,) = chart.containers(_list_deployed_objects(session, cluster)["Deployment"])
        return chart.environment(container)["DSF_LOG_LEVEL"] == "DEBUG"

    wait_for(upgraded, 60)
    # Sources that were enabled, with the right of the whole cluster for the agent's account and no other.
    work = session.get(MANIFEST_WORKS.path(cluster, WORK))
    manifests: list[chart.Object] = work["spec"]["workload"]["manifests"]
    (subject,) = chart.find_object(manifests, "ClusterRoleBinding")["subjects"]
    account = chart.find_object(manifests, "ServiceAccount")["metadata"]
    assert (subject["name"], subject["namespace"]) == (account["name"], AGENT_NAMESPACE)
    assert chart.find_object(manifests, "ClusterRole")["rules"][0]["resources"] == ["nodes", "pods"]
    assert (
        chart.find_object(manifests, "Service", "dynamic-scoring-agent-otlp")["metadata"]["namespace"]
        == AGENT_NAMESPACE
    )
    (container,) = chart.containers(chart.find_object(manifests, "Deployment"))
    assert chart.environment(container)["DSF_OTLP_PORT"] == "4318"


def test_manifests_rendered_by_ocm_deploy_the_agent(
    session: Session, ocm: ControlPlane, cluster: str, deployed: Objects
) -> None:
    """Apply objects as strictly as possible in place of OCM's work agent; hub and managed cluster are the same."""
    assert deployed
    manifests = session.get(MANIFEST_WORKS.path(cluster, WORK))["spec"]["workload"]["manifests"]
    # OCM does not keep their order; its work agent retries until all of them exist.
    manifests.sort(key=lambda manifest: manifest["kind"] != "Namespace")
    manifest_list = json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests})
    output = ocm.kubectl("apply", "--server-side", "--validate=strict", "-f", "-", stdin=manifest_list)
    assert output.count("serverside-applied") == len(manifests), output
    (container,) = chart.containers(session.get(DEPLOYMENTS.path(AGENT_NAMESPACE, AGENT_NAME)))
    assert chart.environment(container)["DSF_CLUSTER"] == cluster


def test_work_agent_of_ocm_deploys_the_addon(session: Session, ocm: ControlPlane, cluster: str) -> None:
    """On a cluster that is also the hub. OCM's status follows the agent, which is ready while it scores."""
    assert cluster
    real_cluster = ocm.cluster("real")
    wait_for(lambda: _list_deployed_objects(session, real_cluster), 60)
    with programs_needed(), work_agent(real_cluster, ocm, ocm) as child:
        wait_for(lambda: _agents_cluster(session) == real_cluster, 60, "the Deployment of the agent")
        work = MANIFEST_WORKS.path(real_cluster, WORK)
        wait_for(lambda: _conditions(session.get(work)).get("Applied") == "True", 60, "everything applied")
        path = DEPLOYMENTS.path(AGENT_NAMESPACE, AGENT_NAME, "status")
        for ready, available in ((1, "True"), (0, "False"), (1, "True")):
            # The kubelet's part.
            counts = {"replicas": 1, "readyReplicas": ready, "availableReplicas": ready, "observedGeneration": 1}
            session.merge(path, {"status": counts})
            wait_for(
                lambda: _condition(session, real_cluster, "Available") == available,  # noqa: B023
                60,
                f"{available}\n{child.tail()}",
            )
        # OpenShift injects this into ConfigMaps that request it, and keeps it when the objects are applied again.
        service_ca = CONFIG_MAPS.path(AGENT_NAMESPACE, "dynamic-scoring-agent-service-ca")
        annotations = session.get(service_ca)["metadata"]["annotations"]
        assert annotations["service.beta.openshift.io/inject-cabundle"] == "true"
        session.merge(service_ca, {"data": {"service-ca.crt": "a CA"}})
        generation = session.merge(work, {"spec": {"executor": None, "deleteOption": None}})["metadata"]["generation"]

        def applied_again() -> bool:
            [applied] = [
                condition for condition in session.get(work)["status"]["conditions"] if condition["type"] == "Applied"
            ]
            return bool(applied["observedGeneration"] >= generation)

        wait_for(applied_again, 60, f"generation {generation}\n{child.tail()}")
        assert session.get(service_ca)["data"] == {"service-ca.crt": "a CA"}


def test_unreachable_cluster_keeps_its_agent(session: Session, cluster: str, deployed: Objects) -> None:
    assert deployed
    taint = {"key": "cluster.open-cluster-management.io/unreachable", "effect": "NoSelect"}
    session.merge(MANAGED_CLUSTERS.path(name=cluster), {"spec": {"taints": [taint]}})
    uid = session.get(MANAGED_CLUSTER_ADDONS.path(cluster, ADDON_NAME))["metadata"]["uid"]
    # Something that happens after it shows that the taint was seen: another cluster is chosen.
    later = _plane_cluster(session)
    wait_for(lambda: _list_deployed_objects(session, later), 60)
    assert session.get(MANAGED_CLUSTER_ADDONS.path(cluster, ADDON_NAME))["metadata"]["uid"] == uid


def _plane_cluster(session: Session) -> str:
    name = "worker-later"
    session.create(NAMESPACES.path(), {"metadata": {"name": name}})
    body = {"apiVersion": MANAGED_CLUSTERS.api_version, "kind": MANAGED_CLUSTERS.kind, "metadata": {"name": name}}
    session.create(MANAGED_CLUSTERS.path(), body | {"spec": {"hubAcceptsClient": True}})
    return name


def _conditions(resource_object: dict[str, Any]) -> dict[str, str]:
    conditions = resource_object.get("status", {}).get("conditions", [])
    return {condition["type"]: condition["status"] for condition in conditions}


def _condition(session: Session, cluster: str, kind: str) -> str:
    return _conditions(session.get(MANAGED_CLUSTER_ADDONS.path(cluster, ADDON_NAME))).get(kind, "")


def _agents_cluster(session: Session) -> str:
    """The cluster that the deployed agent believes to be in; empty while it is not there."""
    try:
        (container,) = chart.containers(session.get(DEPLOYMENTS.path(AGENT_NAMESPACE, AGENT_NAME)))
    except ObjectNotFoundError:
        return ""
    return chart.environment(container)["DSF_CLUSTER"]
