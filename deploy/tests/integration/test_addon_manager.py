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

#: Name of the addon's ManifestWork in the namespace of a managed cluster.
WORK = f"addon-{ADDON_NAME}-deploy-0"
_AGENT_VALUES = {"tokenSecrets": ["prometheus-token"], "extraEnv": [{"name": "X", "value": "{{EXTRA}}"}]}
_SOURCE_VALUES = {"kubernetes": True, "otlp": {"enabled": True, "tokenSecret": "collector-token"}}
VALUES: chart.Values = {
    "redis": {"exposure": {"type": "NodePort", "host": "redis.example.com"}},
    "spokeSetting": {"agent": _AGENT_VALUES},
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
#: Kind -> object.
Objects = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def cluster(ocm: ControlPlane, hub: HubCluster) -> Iterator[str]:
    """Yield the name of a managed cluster that the installed chart's Placement selects.

    OCM may not have created the addon's ManifestWork yet.
    """
    name = ocm.cluster("worker")
    with hub.release(VALUES) as release:
        yield name
        # Uninstall while the addon manager still runs.
        release.uninstall()


def _list_deployed_objects(session: Session, cluster: str) -> Objects:
    """Return the objects in the addon's ManifestWork, by kind. Raises AssertionError until the ManifestWork exists."""
    try:
        work = session.get(MANIFEST_WORKS.path(cluster, WORK))
    except ObjectNotFoundError as error:
        raise AssertionError(str(error)) from None
    return {manifest["kind"]: manifest for manifest in work["spec"]["workload"]["manifests"]}


@pytest.fixture
def deployed(session: Session, cluster: str) -> Objects:
    """Return the objects that OCM's work agent would create on the cluster, by kind."""
    return wait_for(lambda: _list_deployed_objects(session, cluster), 60)


def test_addon_is_installed_on_the_cluster(session: Session, cluster: str, deployed: Objects) -> None:
    assert set(deployed) == {
        *("Namespace", "ServiceAccount", "Role", "RoleBinding", "ConfigMap", "Deployment", "Service", "NetworkPolicy")
    }

    def read_configured_addon() -> dict[str, Any]:
        # These fields are set by other controllers than the creator of the ManifestWork, perhaps later.
        addon = session.get(MANAGED_CLUSTER_ADDONS.path(cluster, ADDON_NAME))
        assert addon.get("status", {}).get("namespace") == AGENT_NAMESPACE
        assert _read_conditions(addon).get("Configured") == "True"
        return addon

    addon = wait_for(read_configured_addon, 60)
    assert not addon["status"].get("registrations"), "the addon registers for credentials of the hub"


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
    # OCM replaces the registry in the value of the variable Image.
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
    """The config sets an empty namespace, because OCM's default would replace an unset one."""
    assert cluster
    other_cluster = ocm.cluster("worker")
    wait_for(lambda: _list_deployed_objects(session, other_cluster), 60)
    addon_config = {
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
    session.create(ADDON_CONFIGS.path(other_cluster), addon_config)
    reference = {
        "group": ADDON_CONFIGS.group,
        "resource": ADDON_CONFIGS.plural,
        "name": "own",
        "namespace": other_cluster,
    }
    session.merge(MANAGED_CLUSTER_ADDONS.path(other_cluster, ADDON_NAME), {"spec": {"configs": [reference]}})

    def read_updated_objects() -> Objects:
        deployed_objects = _list_deployed_objects(session, other_cluster)
        (container,) = chart.containers(deployed_objects["Deployment"])
        assert chart.environment(container)["X"] == "7"
        return deployed_objects

    deployed = wait_for(read_updated_objects, 60)
    (container,) = chart.containers(deployed["Deployment"])
    assert container["image"] == "registry.example.com:5000/agent@sha256:0"
    assert deployed["ServiceAccount"]["imagePullSecrets"] == [{"name": "here"}]
    assert deployed["Deployment"]["metadata"]["namespace"] == AGENT_NAMESPACE


def test_upgrade_is_delivered_to_the_cluster(session: Session, hub: HubCluster, cluster: str) -> None:
    # Upgrade the installed release, as `helm upgrade` would.
    import helm_python

    values = {
        **VALUES,
        "log": {"level": "DEBUG"},
        "spokeSetting": {"agent": {**_AGENT_VALUES, "sources": _SOURCE_VALUES}},
    }
    with helm_python.Config(kubeconfig_path=hub.plane.kubeconfig, namespace=HUB_NAMESPACE) as config:
        config.upgrade(chart.CHART, chart.RELEASE, values, reset_values=True)

    def has_new_log_level() -> bool:
        (container,) = chart.containers(_list_deployed_objects(session, cluster)["Deployment"])
        return chart.environment(container)["DSF_LOG_LEVEL"] == "DEBUG"

    wait_for(has_new_log_level, 60)
    # The enabled sources need cluster-wide rights, which only the agent's account gets.
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
    """The test applies the objects with strict validation instead of OCM's work agent, on the hub's own API server."""
    assert deployed
    manifests = session.get(MANIFEST_WORKS.path(cluster, WORK))["spec"]["workload"]["manifests"]
    # OCM does not keep the order of the manifests, and its work agent retries until all objects exist.
    manifests.sort(key=lambda manifest: manifest["kind"] != "Namespace")
    manifest_list = json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests})
    output = ocm.kubectl("apply", "--server-side", "--validate=strict", "-f", "-", stdin=manifest_list)
    assert output.count("serverside-applied") == len(manifests), output
    (container,) = chart.containers(session.get(DEPLOYMENTS.path(AGENT_NAMESPACE, AGENT_NAME)))
    assert chart.environment(container)["DSF_CLUSTER"] == cluster


def test_work_agent_of_ocm_deploys_the_addon(session: Session, ocm: ControlPlane, cluster: str) -> None:
    """The hub is also the managed cluster. OCM's condition Available follows the status of the agent's Deployment."""
    assert cluster
    real_cluster = ocm.cluster("real")
    wait_for(lambda: _list_deployed_objects(session, real_cluster), 60)
    with programs_needed(), work_agent(real_cluster, ocm, ocm) as child:
        wait_for(lambda: _read_agent_cluster(session) == real_cluster, 60, "the Deployment of the agent")
        work = MANIFEST_WORKS.path(real_cluster, WORK)
        wait_for(lambda: _read_conditions(session.get(work)).get("Applied") == "True", 60, "everything applied")
        path = DEPLOYMENTS.path(AGENT_NAMESPACE, AGENT_NAME, "status")
        for ready, available in ((1, "True"), (0, "False"), (1, "True")):
            # Write the status as the Deployment controller would.
            deployment_status = {
                "replicas": 1,
                "readyReplicas": ready,
                "availableReplicas": ready,
                "observedGeneration": 1,
            }
            session.merge(path, {"status": deployment_status})
            wait_for(
                lambda: _read_addon_condition(session, real_cluster, "Available") == available,  # noqa: B023
                60,
                f"{available}\n{child.tail()}",
            )
        # OpenShift injects its CA into ConfigMaps with this annotation. A second apply by OCM must not remove the CA.
        service_ca = CONFIG_MAPS.path(AGENT_NAMESPACE, "dynamic-scoring-agent-service-ca")
        annotations = session.get(service_ca)["metadata"]["annotations"]
        assert annotations["service.beta.openshift.io/inject-cabundle"] == "true"
        session.merge(service_ca, {"data": {"service-ca.crt": "a CA"}})
        generation = session.merge(work, {"spec": {"executor": None, "deleteOption": None}})["metadata"]["generation"]

        def is_applied_again() -> bool:
            [applied] = [
                condition for condition in session.get(work)["status"]["conditions"] if condition["type"] == "Applied"
            ]
            return bool(applied["observedGeneration"] >= generation)

        wait_for(is_applied_again, 60, f"generation {generation}\n{child.tail()}")
        assert session.get(service_ca)["data"] == {"service-ca.crt": "a CA"}


def test_unreachable_cluster_keeps_its_agent(session: Session, cluster: str, deployed: Objects) -> None:
    assert deployed
    taint = {"key": "cluster.open-cluster-management.io/unreachable", "effect": "NoSelect"}
    session.merge(MANAGED_CLUSTERS.path(name=cluster), {"spec": {"taints": [taint]}})
    uid = session.get(MANAGED_CLUSTER_ADDONS.path(cluster, ADDON_NAME))["metadata"]["uid"]
    # Once the Placement has selected a cluster that is created later, OCM has also processed the taint.
    later_cluster = _create_later_cluster(session)
    wait_for(lambda: _list_deployed_objects(session, later_cluster), 60)
    assert session.get(MANAGED_CLUSTER_ADDONS.path(cluster, ADDON_NAME))["metadata"]["uid"] == uid


def _create_later_cluster(session: Session) -> str:
    """Create an accepted ManagedCluster, and return its name."""
    name = "worker-later"
    session.create(NAMESPACES.path(), {"metadata": {"name": name}})
    manifest = {"apiVersion": MANAGED_CLUSTERS.api_version, "kind": MANAGED_CLUSTERS.kind, "metadata": {"name": name}}
    session.create(MANAGED_CLUSTERS.path(), manifest | {"spec": {"hubAcceptsClient": True}})
    return name


def _read_conditions(resource_object: dict[str, Any]) -> dict[str, str]:
    """Return the status of each condition by its type."""
    conditions = resource_object.get("status", {}).get("conditions", [])
    return {condition["type"]: condition["status"] for condition in conditions}


def _read_addon_condition(session: Session, cluster: str, condition_type: str) -> str:
    """Return the status of a condition of the addon; empty without the condition."""
    return _read_conditions(session.get(MANAGED_CLUSTER_ADDONS.path(cluster, ADDON_NAME))).get(condition_type, "")


def _read_agent_cluster(session: Session) -> str:
    """Return the value of DSF_CLUSTER in the agent's Deployment; empty without a Deployment."""
    try:
        (container,) = chart.containers(session.get(DEPLOYMENTS.path(AGENT_NAMESPACE, AGENT_NAME)))
    except ObjectNotFoundError:
        return ""
    return chart.environment(container)["DSF_CLUSTER"]
