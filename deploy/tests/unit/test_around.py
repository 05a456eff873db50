"""Manifests beside the chart: they are valid and agree with it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from dsf.redisacl.rules import hub_roles, hub_user
from dsf.settings import ENV_PREFIX, Settings
from tests.support import chart

DEPLOY = chart.ROOT / "deploy"
FOLDERS = ("agentfeedback", "optimizer", "prometheus", "skupper", "sources", "utils")
FILES = sorted(path for folder in FOLDERS for path in (DEPLOY / folder).rglob("*.yaml"))
#: Files that are no manifests.
OTHERS = {DEPLOY / "prometheus" / name for name in ("values.yaml", "rules.yaml")}


def _read(path: Path) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def _find_object(name: str, kind: str) -> dict[str, Any]:
    return chart.find_object(_read(DEPLOY / name), kind)


@pytest.mark.parametrize(
    "path", [path for path in FILES if path not in OTHERS], ids=lambda p: str(p.relative_to(DEPLOY))
)
def test_manifests_are_valid(path: Path) -> None:
    for obj in _read(path):
        assert obj["metadata"]["name"]
        group = obj["apiVersion"].partition("/")[0]
        assert obj["kind"].startswith("ClusterRole") or obj["metadata"]["namespace"]
        if "." not in group or group.endswith(".k8s.io"):
            kubernetes_validate.validate(obj, "1.36", strict=True)


def test_feedback_objects_are_those_of_the_addon() -> None:
    values = {"spokeSetting": {"agent": {"serviceMonitor": {"enabled": True}}}}
    deployed = chart.agent_objects(chart.render(values))
    assert _find_object("agentfeedback/service.yaml", "Service") == chart.find_object(deployed, "Service")
    standalone_monitor, chart_monitor = (
        _find_object("agentfeedback/servicemonitor.yaml", "ServiceMonitor"),
        chart.find_object(deployed, "ServiceMonitor"),
    )
    assert standalone_monitor["metadata"] == chart_monitor["metadata"]
    assert standalone_monitor["spec"]["endpoints"] == chart_monitor["spec"]["endpoints"]
    assert standalone_monitor["spec"]["selector"] == chart_monitor["spec"]["selector"]


def test_prometheus_sends_scores_and_the_summary() -> None:
    (write,) = yaml.safe_load((DEPLOY / "prometheus" / "values.yaml").read_text())["prometheus"]["prometheusSpec"][
        "remoteWrite"
    ]
    (rule,) = write["writeRelabelConfigs"]
    assert rule["action"] == "keep"
    kept_metrics = re.compile(rule["regex"])
    for name in ("dynamic_score", "dynamic_scoring_requests_total", "cluster_cpu_free", "cluster_memory_free"):
        assert kept_metrics.fullmatch(name)
    assert not kept_metrics.fullmatch("up")


def test_skupper_leads_to_the_name_in_the_certificate() -> None:
    listener = _find_object("skupper/v2/managed-cluster.yaml", "Listener")
    connector = chart.find_object(chart.render(chart.MATRIX["skupper-v2"]), "Connector")
    assert listener["spec"]["routingKey"] == connector["spec"]["routingKey"]
    url = chart.get_environment(chart.render(chart.MATRIX["skupper-v2"]), "agent")["DSF_REDIS_URL"]
    assert url == f"rediss://{listener['spec']['host']}:{listener['spec']['port']}/0"


def test_test_pod_uses_the_redis_of_the_chart() -> None:
    spec = _find_object("utils/test-pod.yaml", "Pod")
    (container,) = spec["spec"]["containers"]
    environment = chart.environment(container)
    assert set(environment) <= {ENV_PREFIX + name.upper() for name in Settings.model_fields}
    objects = chart.render()
    same = ("DSF_REDIS_URL", "DSF_REDIS_PASSWORD_FILE", "DSF_REDIS_CA_FILE")
    assert {name: environment[name] for name in same} == {
        name: chart.get_environment(objects, "hub")[name] for name in same
    }
    assert environment["DSF_REDIS_USERNAME"] == hub_user("operator")
    for volume in spec["spec"]["volumes"]:
        if "secret" in volume:
            secret = chart.find_object(objects, "Secret", volume["secret"]["secretName"])
            assert {item["key"] for item in volume["secret"]["items"]} <= set(secret["data"])
    (rule,) = chart.find_object(objects, "NetworkPolicy", "dynamic-scoring-redis")["spec"]["ingress"]
    labels = spec["metadata"]["labels"]
    assert [peer for peer in rule["from"] if peer["podSelector"]["matchLabels"].items() <= labels.items()]


def test_check_of_an_agent_has_the_settings_and_files_of_the_agent() -> None:
    job = yaml.safe_load((DEPLOY / "utils" / "agent-check.yaml").read_text().replace("CLUSTER_NAME", "X"))
    check = job["spec"]["template"]["spec"]
    agent = chart.pod(chart.workloads(chart.render())["dynamic-scoring-agent"])
    check_environment, agent_environment = (chart.environment(pod["containers"][0]) for pod in (check, agent))
    agent_environment = {name: text.replace("{{CLUSTER_NAME}}", "X") for name, text in agent_environment.items()}
    assert check_environment.items() <= agent_environment.items()
    assert {name for name in agent_environment if "REDIS" in name} <= set(check_environment)
    assert check["hostAliases"] == agent["hostAliases"]
    assert check["containers"][0]["image"] == agent["containers"][0]["image"]
    mounts = {mount["mountPath"] for mount in check["containers"][0]["volumeMounts"]}
    for value in check_environment.values():
        assert not value.startswith("/") or str(Path(value).parent) in mounts, value
    agent_volumes = {volume["name"]: volume for volume in agent["volumes"]}
    check_volumes = {volume["name"]: volume for volume in check["volumes"]}
    credentials, authority = "credentials", "redis-ca"
    assert check_volumes[credentials]["secret"]["secretName"] == agent_volumes[credentials]["secret"]["secretName"]
    assert check_volumes[authority]["configMap"]["name"] == agent_volumes[authority]["configMap"]["name"]


@pytest.mark.parametrize("values", [{}, chart.EVERYTHING], ids=["defaults", "everything"])
def test_every_user_of_the_chart_is_one_of_redis(values: chart.Values) -> None:
    users = {hub_user(role) for role in hub_roles()}
    objects = chart.render(values)
    for workload in chart.workloads(objects).values():
        for container in chart.containers(workload):
            name = chart.environment(container).get("DSF_REDIS_USERNAME", "")
            assert not name or name in users or name.startswith("spoke-")
    for key in chart.find_object(objects, "Secret", "dynamic-scoring-redis-users")["data"]:
        assert f"dsf-{key}" in users
