"""The chart's objects for OCM: consistent names, a deployable agent, and health that follows scoring."""

from __future__ import annotations

import re

import pytest

from dsf.api.types import (
    ADDON_NAME,
    AGENT_ACCOUNT,
    AGENT_NAME,
    AGENT_NAMESPACE,
    CONFIGMAP_NAME,
    CREDENTIALS_KEY,
    CREDENTIALS_NAME,
    HUB_NAMESPACE,
    PULL_SECRET_NAME,
    REDIS_PASSWORD_KEY,
)
from tests.support import chart

#: Variables that OCM always fills in; of others an undefined one becomes an empty text.
PRESET = {"CLUSTER_NAME"}


def test_names_are_those_that_other_programs_know() -> None:
    objects = chart.render()
    assert chart.find_object(objects, "ClusterManagementAddOn")["metadata"]["name"] == ADDON_NAME
    template = chart.find_object(objects, "AddOnTemplate")
    assert template["apiVersion"] == "addon.open-cluster-management.io/v1alpha1"
    assert template["spec"]["addonName"] == ADDON_NAME
    agent = chart.agent_objects(objects)
    deployment = chart.find_object(agent, "Deployment", AGENT_NAME)
    assert deployment["metadata"]["namespace"] == AGENT_NAMESPACE
    assert deployment["spec"]["template"]["metadata"]["labels"]["app"] == AGENT_NAME
    assert chart.pod(deployment)["serviceAccountName"] == AGENT_ACCOUNT
    chart.find_object(agent, "ServiceAccount", AGENT_ACCOUNT)
    (container,) = chart.containers(deployment)
    assert chart.environment(container)["DSF_REDIS_USERNAME"] == "spoke-{{CLUSTER_NAME}}"
    role = chart.find_object(agent, "Role")
    # A rule for Secrets without names would cover all; the agent's Secrets are mounted.
    assert [rule["resourceNames"] for rule in role["rules"]] == [[CONFIGMAP_NAME]]
    [mounted] = [volume["secret"] for volume in chart.pod(deployment)["volumes"] if volume["name"] == "credentials"]
    assert mounted["secretName"] == CREDENTIALS_NAME
    assert {item["key"] for item in mounted["items"]} >= {CREDENTIALS_KEY, REDIS_PASSWORD_KEY}
    service = chart.find_object(agent, "Service", "dynamic-scoring-agent-service")
    assert [(port["name"], port["port"]) for port in service["spec"]["ports"]] == [("http-metrics", 8080)]
    enabled = chart.render({"spokeSetting": {"agent": {"serviceMonitor": {"enabled": True}}}})
    chart.find_object(chart.agent_objects(enabled), "ServiceMonitor", "dynamic-scoring-agent-monitor")
    assert {o["metadata"].get("namespace", HUB_NAMESPACE) for o in objects} == {HUB_NAMESPACE}


def test_referenced_configs_exist() -> None:
    for values in chart.MATRIX.values():
        objects = chart.render(values)
        for addon in chart.of_kind(objects, "ClusterManagementAddOn"):
            defaults = {config["resource"]: config["defaultConfig"] for config in addon["spec"]["supportedConfigs"]}
            chart.find_object(objects, "AddOnTemplate", defaults["addontemplates"]["name"])
            config = chart.find_object(objects, "AddOnDeploymentConfig", defaults["addondeploymentconfigs"]["name"])
            assert config["metadata"]["namespace"] == defaults["addondeploymentconfigs"]["namespace"]
            for placement in addon["spec"]["installStrategy"].get("placements", []):
                placement_object = chart.find_object(objects, "Placement", placement["name"])
                assert placement_object["metadata"]["namespace"] == placement["namespace"]


def test_placement_may_use_its_cluster_set() -> None:
    objects = chart.render({"addon": {"clusterSet": "edge"}})
    assert chart.find_object(objects, "Placement")["spec"]["clusterSets"] == ["edge"]
    binding = chart.find_object(objects, "ManagedClusterSetBinding")
    assert binding["metadata"]["name"] == binding["spec"]["clusterSet"] == "edge"


@pytest.mark.parametrize("namespace", [AGENT_NAMESPACE, "elsewhere"])
def test_agent_namespace_is_the_same_everywhere(namespace: str) -> None:
    objects = chart.render({"spokeSetting": {"namespace": namespace}})
    # OCM's default namespace differs from the one that the hub delivers to.
    assert chart.find_object(objects, "AddOnDeploymentConfig")["spec"]["agentInstallNamespace"] == namespace
    agent = chart.agent_objects(objects)
    assert {o["metadata"].get("namespace", namespace) for o in agent} == {namespace}
    assert chart.find_object(agent, "Namespace")["metadata"]["name"] == namespace
    assert chart.get_environment(objects, "hub")["DSF_AGENT_NAMESPACE"] == namespace
    (container,) = chart.containers(chart.workloads(objects)["dynamic-scoring-agent"])
    assert {"name": "DSF_AGENT_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}} in container[
        "env"
    ]


def test_variables_are_preset_or_defined() -> None:
    for values in chart.MATRIX.values():
        objects = chart.render(values)
        for config in chart.of_kind(objects, "AddOnDeploymentConfig"):
            defined = {variable["name"] for variable in config["spec"].get("customizedVariables", [])}
            used_variables = set(re.findall(r"{{\s*(\w+)\s*}}", str(chart.agent_objects(objects))))
            assert used_variables <= defined | PRESET


def test_registration_is_requested_without_hub_permissions_and_for_hub_api_only() -> None:
    for values in chart.MATRIX.values():
        objects = chart.render(values)
        for template in chart.of_kind(objects, "AddOnTemplate"):
            roles = [role["metadata"]["name"] for role in chart.of_kind(objects, "Role")]
            uses_hub_api = "dynamic-scoring-redis-portforward" in roles
            assert template["spec"].get("registration") == ([{"type": "KubeClient"}] if uses_hub_api else None)


def test_agents_reach_redis_through_the_hub_api_by_default() -> None:
    objects = chart.render()
    role = chart.find_object(objects, "Role", "dynamic-scoring-redis-portforward")
    assert role["rules"] == [
        {
            "apiGroups": [""],
            "resources": ["pods/portforward"],
            "resourceNames": ["dynamic-scoring-redis-0"],
            "verbs": ["get", "create"],
        }
    ]
    binding = chart.find_object(objects, "RoleBinding", "dynamic-scoring-redis-portforward")
    assert [subject["name"] for subject in binding["subjects"]] == [chart.ADDON_GROUP]
    workload = chart.workloads(objects)["dynamic-scoring-agent"]
    environment = chart.environment(chart.containers(workload)[0])
    host = f"dynamic-scoring-redis.{chart.NAMESPACE}.svc"
    assert environment["DSF_REDIS_URL"] == f"rediss://{host}:6379/0"
    assert environment["DSF_REDIS_POD"] == f"{chart.NAMESPACE}/dynamic-scoring-redis-0:6379"
    assert environment["DSF_HUB_KUBECONFIG"] == "/managed/hub-kubeconfig/kubeconfig"
    # OCM's addon manager adds a volume of this name, and refuses a Deployment that has one.
    assert "hub-kubeconfig" not in {volume["name"] for volume in chart.pod(workload)["volumes"]}
    assert chart.pod(workload)["hostAliases"] == [{"ip": "127.0.0.1", "hostnames": [host]}]
    assert host in chart.notes()
    assert "through the hub's API server" in chart.notes()


def test_no_secret_is_in_the_template() -> None:
    for values in chart.MATRIX.values():
        objects = chart.render(values)
        assert not chart.of_kind(chart.agent_objects(objects), "Secret")
        text = str(chart.of_kind(objects, "AddOnTemplate", "AddOnDeploymentConfig"))
        assert "PRIVATE KEY" not in text
        for secret in chart.of_kind(objects, "Secret"):
            for key in set(secret["data"]) - {"ca.crt", "tls.crt", "username"}:
                value = chart.secret_text(secret, key)
                assert value not in text
                assert secret["data"][key] not in text


def test_ready_means_that_cycles_succeed() -> None:
    objects = chart.render()
    (container,) = chart.containers(chart.workloads(objects)["dynamic-scoring-agent"])
    file = chart.environment(container)["DSF_PROBE_DIR"] + "/ready"
    assert container["readinessProbe"]["exec"]["command"] == ["test", "-f", file]
    # OCM checks the Deployment's ready replicas; metrics must be scraped from unready pods too.
    service = chart.find_object(chart.agent_objects(objects), "Service")
    assert service["spec"]["publishNotReadyAddresses"] is True


def test_namespace_with_users_secrets_outlives_the_addon() -> None:
    orphan = "addon.open-cluster-management.io/deletion-orphan"
    namespace = chart.find_object(chart.agent_objects(chart.render()), "Namespace")
    assert orphan in namespace["metadata"]["annotations"]
    values = {"spokeSetting": {"keepNamespace": False}}
    removed_namespace = chart.find_object(chart.agent_objects(chart.render(values)), "Namespace")
    assert orphan not in removed_namespace["metadata"].get("annotations", {})


def test_without_the_addon_every_accepted_cluster_is_served() -> None:
    objects = chart.render({"addon": {"enabled": False}})
    assert chart.get_environment(objects, "hub")["DSF_ADDON_MODE"] == "false"
    assert not [
        o for o in objects if "open-cluster-management.io/v1" in o["apiVersion"] and "dynamic" not in o["apiVersion"]
    ]


def test_pull_secret_of_the_hub_is_delivered_and_used() -> None:
    objects = chart.render({"spokeSetting": {"agent": {"pullSecret": "ours", "imagePullSecrets": ["there"]}}})
    account = chart.find_object(chart.agent_objects(objects), "ServiceAccount")
    assert account["imagePullSecrets"] == [{"name": "there"}, {"name": PULL_SECRET_NAME}]
    hub = chart.workloads(objects)["dynamic-scoring-hub"]
    (container,) = chart.containers(hub)
    file = chart.environment(container)["DSF_AGENT_PULL_SECRET_FILE"]
    (mount,) = [mount_entry for mount_entry in container["volumeMounts"] if mount_entry["name"] == "agent-pull-secret"]
    (volume,) = [
        volume_entry
        for volume_entry in hub["spec"]["template"]["spec"]["volumes"]
        if volume_entry["name"] == mount["name"]
    ]
    (item,) = volume["secret"]["items"]
    assert file == f"{mount['mountPath']}/{item['path']}"
    assert (volume["secret"]["secretName"], item["key"]) == ("ours", ".dockerconfigjson")
    assert volume["secret"]["optional"], "the hub goes on without it"
    assert "imagePullSecrets" not in chart.find_object(chart.agent_objects(chart.render()), "ServiceAccount")


def test_upstreams_variables_count_where_the_values_name_them() -> None:
    variables = [{"name": "Image", "value": "registry.example.com/agent:1"}, {"name": "ImagePullSecret", "value": "x"}]
    objects = chart.render({"addon": {"customizedVariables": variables}})
    (container,) = chart.containers(chart.workloads(objects)["dynamic-scoring-agent"])
    assert container["image"] == "{{Image}}"
    account = chart.find_object(chart.agent_objects(objects), "ServiceAccount")
    assert account["imagePullSecrets"] == [{"name": "{{ImagePullSecret}}"}]
    (container,) = chart.containers(chart.workloads(chart.render())["dynamic-scoring-agent"])
    assert container["image"].startswith("ghcr.io/open-cluster-management-io/dynamic-scoring-agent:")


@pytest.mark.parametrize("bundle", ["", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"])
@pytest.mark.parametrize("has_service_ca", [True, False])
def test_cas_that_agents_trust(bundle: str, has_service_ca: bool) -> None:
    values = {"trustedCA": {"agentBundle": bundle}, "openshift": {"agentServiceCA": has_service_ca}}
    [agent] = chart.of_kind(chart.agent_objects(chart.render(values)), "Deployment")
    sources = [
        source["configMap"]
        for volume in chart.pod(agent)["volumes"]
        if volume["name"] == "trusted-ca"
        for source in volume["projected"]["sources"]
    ]
    names = [(source["name"], source.get("optional", False)) for source in sources]
    # Other platforms lack the ConfigMap, and pods must not wait for it.
    expected = [("dynamic-scoring-agent-ca", False)] * bool(bundle) + [
        ("dynamic-scoring-agent-service-ca", True)
    ] * has_service_ca
    assert names == expected
    [container] = chart.containers(agent)
    folders = {mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "trusted-ca"}
    assert folders == ({chart.environment(container)["DSF_TRUSTED_CA_DIR"]} if expected else set())
