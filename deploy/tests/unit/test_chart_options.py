"""Features that are off by default: sources of the agent that need more rights or a port, and the optimizer."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from dsf.api.objectsource import DENIED
from dsf.api.types import AGENT_ACCOUNT, AGENT_NAME, AGENT_NAMESPACE
from dsf.redisacl.rules import hub_user
from dsf.settings import ENV_PREFIX, Settings
from tests.support import chart

DEPLOY = chart.ROOT / "deploy"


def _read(name: str) -> list[chart.Object]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def _agent(sources: dict[str, Any], **agent: Any) -> list[chart.Object]:
    return chart.agent_objects(chart.render({"spokeSetting": {"agent": {"sources": sources, **agent}}}))


def _container(objects: list[chart.Object]) -> chart.Object:
    (container,) = chart.containers(chart.find_object(objects, "Deployment"))
    return container


def test_optional_parts_are_off_by_default() -> None:
    objects = chart.render()
    agent = chart.agent_objects(objects)
    assert not chart.of_kind(agent, "ClusterRole", "ClusterRoleBinding")
    assert chart.find_object(agent, "Service")["metadata"]["name"] == "dynamic-scoring-agent-service"
    assert chart.find_object(agent, "NetworkPolicy")["metadata"]["name"] == "dynamic-scoring-agent"
    assert not [name for name in chart.environment(_container(agent)) if "OTLP" in name]
    assert not [o for o in objects if o["metadata"]["name"] == "dynamic-scoring-optimizer"]


def test_rights_for_the_source_kubernetes_are_those_of_the_manifest() -> None:
    objects = _agent({"kubernetes": True})
    role, binding = chart.of_kind(objects, "ClusterRole", "ClusterRoleBinding")
    assert [role, binding] == _read("sources/kubernetes.yaml")
    assert role["rules"] == [{"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["get", "list", "watch"]}]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    (subject,) = binding["subjects"]
    assert (subject["name"], subject["namespace"]) == (AGENT_ACCOUNT, AGENT_NAMESPACE)
    elsewhere = {"spokeSetting": {"namespace": "elsewhere", "agent": {"sources": {"kubernetes": True}}}}
    (subject,) = chart.find_object(chart.agent_objects(chart.render(elsewhere)), "ClusterRoleBinding")["subjects"]
    assert subject["namespace"] == "elsewhere"


def test_rights_for_the_source_object_cover_the_named_kinds() -> None:
    source_objects = [
        {"apiGroup": "apps", "resource": "deployments"},
        {"apiGroup": "", "resource": "persistentvolumeclaims"},
    ]
    objects = _agent({"objects": source_objects})
    role = chart.find_object(objects, "ClusterRole", "dynamic-scoring-agent-object-source")
    assert role["rules"] == [
        {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["list"]},
        {"apiGroups": [""], "resources": ["persistentvolumeclaims"], "verbs": ["list"]},
    ]
    binding = chart.find_object(objects, "ClusterRoleBinding", "dynamic-scoring-agent-object-source")
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert [subject["name"] for subject in binding["subjects"]] == ["dynamic-scoring-agent-sa"]
    allowed_objects = json.loads(chart.environment(_container(objects))["DSF_AGENT_OBJECTS"])
    assert allowed_objects == ["deployments.apps", "persistentvolumeclaims"]
    assert "DSF_AGENT_OBJECTS" not in chart.environment(_container(_agent({})))


@pytest.mark.parametrize(
    ("group", "resource"), [(group, plural) for group, kinds in DENIED.items() for plural in kinds.values()]
)
def test_kinds_with_secrets_are_refused_for_the_source_object(group: str, resource: str) -> None:
    with pytest.raises(chart.RenderError, match="hold secrets; the source Object never reads them"):
        _agent({"objects": [{"apiGroup": group, "resource": resource}]})


@pytest.mark.parametrize(
    "entry",
    [{"apiGroup": "*", "resource": "a"}, {"apiGroup": "", "resource": "*"}, {"apiGroup": "", "resource": "pods/log"}],
)
def test_partial_kinds_are_refused_for_the_source_object(entry: dict[str, str]) -> None:
    with pytest.raises(chart.RenderError, match="objects"):
        _agent({"objects": [entry]})


def test_otlp_is_offered_as_in_the_manifest() -> None:
    objects = _agent({"otlp": {"enabled": True}})
    service = chart.find_object(objects, "Service", "dynamic-scoring-agent-otlp")
    (port,) = service["spec"]["ports"]
    (named_port,) = [p for p in _container(objects)["ports"] if p["name"] == port["targetPort"]]
    port["targetPort"] = named_port["containerPort"]
    policy = chart.find_object(objects, "NetworkPolicy", "dynamic-scoring-agent-otlp")
    assert [service, policy] == _read("sources/otlp.yaml")
    assert service["spec"]["selector"] == policy["spec"]["podSelector"]["matchLabels"] == {"app": AGENT_NAME}
    assert {o["metadata"]["namespace"] for o in (service, policy)} == {AGENT_NAMESPACE}
    assert chart.environment(_container(objects))["DSF_OTLP_PORT"] == "4318"


def test_otlp_port_is_the_same_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    objects = _agent({"otlp": {"enabled": True, "port": 14318, "from": [{"podSelector": {}}]}})
    environment = chart.environment(_container(objects))
    monkeypatch.setenv("DSF_OTLP_PORT", environment["DSF_OTLP_PORT"])
    assert Settings.load().otlp_port == 14318
    assert {"name": "otlp-http", "containerPort": 14318} in _container(objects)["ports"]
    (port,) = chart.find_object(objects, "Service", "dynamic-scoring-agent-otlp")["spec"]["ports"]
    assert port["port"] == 14318
    (rule,) = chart.find_object(objects, "NetworkPolicy", "dynamic-scoring-agent-otlp")["spec"]["ingress"]
    assert rule == {"from": [{"podSelector": {}}], "ports": [{"port": 14318, "protocol": "TCP"}]}
    # A policy for this port alone would block the metrics port.
    assert not chart.of_kind(_agent({"otlp": {"enabled": True}}, networkPolicy=False), "NetworkPolicy")


def test_otlp_token_is_a_mounted_secret() -> None:
    objects = _agent({"otlp": {"enabled": True, "tokenSecret": "collector"}})
    file = chart.environment(_container(objects))["DSF_CLIENT_TOKEN_FILE"]
    folder, _, key = file.rpartition("/")
    mounts = _container(objects)["volumeMounts"]
    (name,) = [mount["name"] for mount in mounts if mount["mountPath"] == folder and mount["readOnly"]]
    volumes = chart.pod(chart.find_object(objects, "Deployment"))["volumes"]
    (secret,) = [volume["secret"] for volume in volumes if volume["name"] == name]
    # The Secret is required: without it everybody could push.
    assert secret == {"secretName": "collector", "items": [{"key": "token", "path": key}]}
    # The kubelet mounts the Secret, so the agent's account needs no right to it.
    assert "collector" not in str(chart.find_object(objects, "Role"))
    without = chart.environment(_container(_agent({"otlp": {"enabled": True}})))
    assert "DSF_CLIENT_TOKEN_FILE" not in without
    off = _container(_agent({"otlp": {"enabled": False, "tokenSecret": "collector"}}))
    assert "otlp" not in str(off)


def test_optimizer_equals_the_one_of_the_manifest() -> None:
    """Rights, command, port, probes and resources are equal for both ways of installation."""
    alone = _read("optimizer/optimizer.yaml")
    objects = chart.render({"optimizer": {"enabled": True}})
    name = "dynamic-scoring-optimizer"
    for kind, part in (("ClusterRole", "rules"), ("ClusterRoleBinding", "roleRef"), ("ClusterRoleBinding", "subjects")):
        assert chart.find_object(objects, kind, name)[part] == chart.find_object(alone, kind)[part]
    assert chart.find_object(objects, "ServiceAccount", name)["metadata"]["namespace"] == chart.NAMESPACE
    chart_deployment, manifest_deployment = (
        chart.find_object(objects, "Deployment", name),
        chart.find_object(alone, "Deployment"),
    )
    for key in ("replicas", "strategy"):
        assert chart_deployment["spec"][key] == manifest_deployment["spec"][key]
    (chart_container,), (manifest_container,) = (
        chart.containers(chart_deployment),
        chart.containers(manifest_deployment),
    )
    for key in ("image", "args", "ports", "resources", "securityContext", "volumeMounts"):
        assert chart_container[key] == manifest_container[key], key
    for probe in ("livenessProbe", "readinessProbe"):
        assert chart_container[probe]["httpGet"] == manifest_container[probe]["httpGet"]
    assert chart.pod(chart_deployment)["volumes"] == [
        _make_expected_volume(volume) for volume in chart.pod(manifest_deployment)["volumes"]
    ]
    assert chart.environment(manifest_container).items() <= chart.environment(chart_container).items()
    assert (
        chart.find_object(objects, "Service", name)["spec"]["ports"]
        == chart.find_object(alone, "Service")["spec"]["ports"]
    )


def _make_expected_volume(volume: chart.Object) -> chart.Object:
    """Return a volume of the manifest like the chart's, which creates the Secret too, so a pod may wait for it."""
    if "secret" not in volume:
        return volume
    secret = volume["secret"]
    assert secret["optional"] is True, "one who only makes plans has no Redis of ours"
    return {**volume, "secret": {key: value for key, value in secret.items() if key != "optional"}}


def test_optimizer_has_a_separate_redis_user() -> None:
    objects = chart.render({"optimizer": {"enabled": True}})
    deployment = chart.workloads(objects)["dynamic-scoring-optimizer"]
    (container,) = chart.containers(deployment)
    (hub,) = chart.containers(chart.workloads(objects)["dynamic-scoring-hub"])
    optimizer_variables, hub_variables = (
        {name: value for name, value in chart.environment(entry).items() if name.startswith(f"{ENV_PREFIX}REDIS")}
        for entry in (container, hub)
    )
    del hub_variables["DSF_REDIS_MANAGE_USERS"]
    assert optimizer_variables == hub_variables | {"DSF_REDIS_USERNAME": hub_user("optimizer")}
    assert optimizer_variables["DSF_REDIS_URL"].startswith("rediss://")
    secrets = [volume["secret"] for volume in chart.pod(deployment)["volumes"] if "secret" in volume]
    assert secrets == [
        {"secretName": "dynamic-scoring-redis-users", "items": [{"key": "optimizer", "path": "password"}]},
        {"secretName": "dynamic-scoring-redis-tls", "items": [{"key": "ca.crt", "path": "ca.crt"}]},
    ]
    assert (
        len(chart.secret_text(chart.find_object(objects, "Secret", "dynamic-scoring-redis-users"), "optimizer")) == 40
    )


def test_optimizer_uses_the_queue_limit() -> None:
    workloads = chart.workloads(chart.render({"optimizer": {"enabled": True}, "beat": {"queueLimit": 1000000}}))
    for name in ("hub", "optimizer"):
        assert chart.get_environment(workloads, name)["DSF_QUEUE_LIMIT"] == "1000000"


def test_without_an_optimiser_it_has_no_user() -> None:
    objects = chart.render()
    assert "optimizer" not in chart.find_object(objects, "Secret", "dynamic-scoring-redis-users")["data"]
    assert "optimizer" not in str(chart.find_object(objects, "NetworkPolicy", "dynamic-scoring-redis")["spec"])


def test_network_policies_connect_optimizer_and_redis() -> None:
    objects = chart.render({"optimizer": {"enabled": True}})
    redis = chart.find_object(objects, "NetworkPolicy", "dynamic-scoring-redis")["spec"]
    optimizer = chart.find_object(objects, "NetworkPolicy", "dynamic-scoring-optimizer")["spec"]
    port = {"port": 6379, "protocol": "TCP"}
    assert {"to": [{"podSelector": redis["podSelector"]}], "ports": [port]} in optimizer["egress"]
    (rule,) = redis["ingress"]
    assert {"podSelector": optimizer["podSelector"]} in rule["from"]
    assert rule["ports"] == [port]


def test_optimizer_uses_an_external_redis() -> None:
    objects = chart.render(chart.MATRIX["external-sentinel"] | {"optimizer": {"enabled": True}})
    deployment = chart.workloads(objects)["dynamic-scoring-optimizer"]
    (container,) = chart.containers(deployment)
    assert chart.environment(container)["DSF_REDIS_URL"].startswith("sentinel://")
    secrets = {volume["name"]: volume["secret"] for volume in chart.pod(deployment)["volumes"] if "secret" in volume}
    assert secrets["redis-password"] == {
        "secretName": "redis-users",
        "items": [{"key": "optimizer", "path": "password"}],
    }
    assert secrets["redis-ca"]["secretName"] == "redis-ca"


def test_optimizer_admits_only_configured_peers() -> None:
    name = "dynamic-scoring-optimizer"
    closed = chart.find_object(chart.render({"optimizer": {"enabled": True}}), "NetworkPolicy", name)["spec"]
    assert closed["ingress"] == []
    assert {port["port"] for rule in closed["egress"] for port in rule["ports"]} == {53, 5353, 443, 6443, 6379}
    opened = chart.find_object(chart.render(chart.EVERYTHING), "NetworkPolicy", name)["spec"]
    assert opened["ingress"] == [{"from": [{"podSelector": {}}], "ports": [{"port": 8338, "protocol": "TCP"}]}]


def test_link_local_addresses_are_allowed_by_a_value() -> None:
    for part, name in (({"hubSetting": {}}, "hub"), ({"spokeSetting": {"agent": {}}}, "agent")):
        for allowed in (False, True):
            values = json.loads(json.dumps(part).replace("{}", json.dumps({"allowLinkLocal": allowed})))
            assert chart.get_environment(chart.render(values), name)["DSF_ALLOW_LINK_LOCAL"] == (
                "true" if allowed else "false"
            )
