"""Rights in Kubernetes are minimal, and limited to names if possible."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dsf.api.types import ADDON_NAME, CREDENTIALS_NAME, CREDENTIALS_WORK_NAME, GROUP, MANIFESTWORK_NAME
from dsf.backends.kube import CLAIMS_NAME
from dsf.backends.kube_kinds import WATCHED
from dsf.backends.protocol import Kind
from dsf.kube.leader import LEASE_NAME
from tests.support import chart

#: Resource -> its rules
Rules = dict[str, list[dict[str, Any]]]


def _rules(role: chart.Object) -> Rules:
    rules_by_resource: Rules = {}
    for rule in role["rules"]:
        for resource in rule["resources"]:
            rules_by_resource.setdefault(resource, []).append(rule)
    return rules_by_resource


def _verbs(rules: list[dict[str, Any]]) -> set[str]:
    return {verb for rule in rules for verb in rule["verbs"]}


def test_services_that_need_no_api_server_have_no_rights() -> None:
    objects = chart.render({"mode": "Distributed"})
    for service in ("beat", "results"):
        for kind in ("ClusterRole", "Role"):
            assert not [o for o in chart.of_kind(objects, kind) if service in o["metadata"]["name"]]


def test_process_of_all_services_has_the_rights_of_each() -> None:
    for mode, (controller, web) in {"Single": ("hub", "hub"), "Distributed": ("controller", "web")}.items():
        objects = chart.render({"mode": mode})
        for service, process in (("controller", controller), ("web", web)):
            binding = chart.find_object(objects, "ClusterRoleBinding", f"dynamic-scoring-{service}")
            assert [subject["name"] for subject in binding["subjects"]] == [f"dynamic-scoring-{process}"]


def test_hub_may_list_and_watch_its_kinds() -> None:
    rules = _rules(chart.find_object(chart.render(), "ClusterRole", "dynamic-scoring-controller"))
    # Secrets need delivery and one namespace; another test covers them.
    for watched in (watched for kind, watched in WATCHED.items() if kind is not Kind.SECRET):
        resource_rules = rules[watched.resource.plural]
        assert {group for rule in resource_rules for group in rule["apiGroups"]} == {watched.resource.group}
        assert {"list", "watch"} <= _verbs(resource_rules)


def test_hub_has_only_rights_that_its_code_uses() -> None:
    role = chart.find_object(chart.render(), "ClusterRole", "dynamic-scoring-controller")
    granted = {
        (resource, verb, tuple(rule.get("resourceNames", ())))
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    # Reflectors list and watch whole kinds or certain names.
    needed: set[tuple[str, str, tuple[str, ...]]] = {
        (watched.resource.plural, verb, watched.names)
        for kind, watched in WATCHED.items()
        if kind is not Kind.SECRET
        for verb in ("list", "watch")
    }
    # KubeBackend applies statuses, sets finalizers, and writes ManifestWorks, orphaned scores and events.
    needed.add(("dynamicscoringconfigs", "patch", ()))
    needed |= {(f"{kind}/status", "patch", ()) for kind in ("dynamicscorers", "dynamicscoringconfigs")}
    works = (MANIFESTWORK_NAME, CREDENTIALS_WORK_NAME)
    needed |= {("manifestworks", verb, works) for verb in ("create", "patch", "delete")}
    needed |= {("addonplacementscores", verb, ()) for verb in ("get", "create", "patch", "delete")}
    needed |= {("addonplacementscores/status", "patch", ()), ("events", "create", ())}
    assert granted == needed


def test_hub_may_change_only_its_manifestworks() -> None:
    objects = chart.render()
    rules = _rules(chart.find_object(objects, "ClusterRole", "dynamic-scoring-controller"))
    uninstall = _rules(chart.find_object(objects, "ClusterRole", "dynamic-scoring-uninstall"))
    for rule in (*rules["manifestworks"], *uninstall["manifestworks"]):
        assert set(rule["resourceNames"]) == {MANIFESTWORK_NAME, CREDENTIALS_WORK_NAME}
    assert [rule["resourceNames"] for rule in rules["managedclusteraddons"]] == [[ADDON_NAME]]
    assert "secrets" not in rules
    role = chart.find_object(objects, "Role", "dynamic-scoring-controller")
    resources = {resource for rule in role["rules"] for resource in rule["resources"]}
    assert resources == {"leases", "configmaps", "dynamicscoringconfigs"}
    assert [(rule["verbs"], rule.get("resourceNames")) for rule in _rules(role)["configmaps"]] == [
        (["create"], None),
        (["get", "update"], [CLAIMS_NAME]),
    ]
    role = chart.find_object(
        chart.render({"hubSetting": {"scorerNamespaces": ["team"]}}), "Role", "dynamic-scoring-controller"
    )
    assert _rules(role)["configmaps"][1]["resourceNames"] == [CLAIMS_NAME, f"{CLAIMS_NAME}.team"]
    assert [LEASE_NAME] in [rule.get("resourceNames") for rule in role["rules"]]
    assert "managedclusteraddons" not in _rules(
        chart.find_object(chart.render({"addon": {"enabled": False}}), "ClusterRole", "dynamic-scoring-controller")
    )


def test_bindings_cover_only_expected_service_accounts() -> None:
    for values in chart.MATRIX.values():
        objects = chart.render(values)
        bindings = chart.of_kind(objects, "ClusterRoleBinding", "RoleBinding")
        subjects = {subject["name"] for binding in bindings for subject in binding["subjects"]} - {chart.ADDON_GROUP}
        optimizer = {"dynamic-scoring-optimizer"} if values.get("optimizer", {}).get("enabled") else set()
        services = ("controller", "web") if values.get("mode") == "Distributed" else ("hub",)
        expected_accounts = {f"dynamic-scoring-{name}" for name in (*services, "uninstall", "viewer")}
        assert subjects == expected_accounts | optimizer
        for binding in bindings:
            chart.find_object(objects, binding["roleRef"]["kind"], binding["roleRef"]["name"])


def test_no_wildcards_in_rights_of_processes() -> None:
    for values in chart.MATRIX.values():
        objects = chart.render(values)
        for role in chart.of_kind([*objects, *chart.agent_objects(objects)], "ClusterRole", "Role"):
            if "dynamic-scoring-framework-" not in role["metadata"]["name"]:
                for rule in role["rules"]:
                    assert "*" not in [*rule["verbs"], *rule["resources"], *rule["apiGroups"]]


@pytest.mark.parametrize(("role", "into"), [("admin", "admin"), ("editor", "edit"), ("viewer", "view")])
def test_roles_for_people_are_aggregated_to_builtin_roles_on_request(role: str, into: str) -> None:
    name, label = f"dynamic-scoring-framework-{role}", f"rbac.authorization.k8s.io/aggregate-to-{into}"
    cluster_role = chart.find_object(chart.render({"rbac": {"aggregate": True}}), "ClusterRole", name)
    assert cluster_role["metadata"]["labels"][label] == "true"
    assert cluster_role["rules"][0]["apiGroups"] == [GROUP]
    # Aggregation is off by default: authors of DynamicScorers decide which servers agents query.
    alone = chart.find_object(chart.render(), "ClusterRole", name)
    assert label not in alone["metadata"]["labels"]


def test_agent_may_read_its_configmap_and_named_secrets_in_its_namespace() -> None:
    values = {"spokeSetting": {"namespace": "a", "agent": {"tokenSecrets": ["one", {"name": "two", "hosts": ["h:1"]}]}}}
    objects = chart.agent_objects(chart.render(values))
    role = chart.find_object(objects, "Role")
    assert role["metadata"]["namespace"] == "a"
    assert {rule["resources"][0]: rule["resourceNames"] for rule in role["rules"]} == {
        "configmaps": ["dynamic-scoring-config"],
        "secrets": ["one", "two"],
    }
    assert {verb for rule in role["rules"] for verb in rule["verbs"]} == {"get", "list", "watch"}
    assert not chart.of_kind(objects, "ClusterRole", "ClusterRoleBinding")
    (subject,) = chart.find_object(objects, "RoleBinding")["subjects"]
    assert subject == {"kind": "ServiceAccount", "name": "dynamic-scoring-agent-sa", "namespace": "a"}


def test_agent_setting_lists_allowed_hosts_of_tokens() -> None:
    secrets = ["labelled", {"name": "one", "hosts": ["h:1", "https://i"]}, {"name": "one", "hosts": ["j"]}]
    objects = chart.agent_objects(chart.render({"spokeSetting": {"agent": {"tokenSecrets": secrets}}}))
    [container] = chart.pod(chart.find_object(objects, "Deployment"))["containers"]
    environment = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert json.loads(environment["DSF_AGENT_TOKEN_SECRETS"]) == {"one": ["h:1", "https://i", "j"]}
    assert environment["DSF_SIGNING_KEY_FILE"].rpartition("/")[0] in {
        mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "credentials"
    }


def test_hub_settings_list_scorer_namespaces_and_allowed_hosts() -> None:
    names = {"team": ["team-*"]}
    values = {
        "hubSetting": {
            "scorerNamespaces": ["team"],
            "scoreNames": names,
            "scorerHosts": ["a:1"],
            "tokenHosts": ["thanos.example:9091"],
        }
    }
    [container] = chart.containers(chart.find_object(chart.render(values), "Deployment", "dynamic-scoring-hub"))
    environment = chart.environment(container)
    assert json.loads(environment["DSF_SCORER_NAMESPACES"]) == ["team"]
    assert json.loads(environment["DSF_SCORE_NAMES"]) == names
    assert json.loads(environment["DSF_SCORER_HOSTS"]) == ["a:1"]
    assert json.loads(environment["DSF_TOKEN_HOSTS"]) == ["thanos.example:9091"]
    [container] = chart.containers(chart.find_object(chart.render(), "Deployment", "dynamic-scoring-hub"))
    assert not {"DSF_SCORER_NAMESPACES", "DSF_SCORE_NAMES", "DSF_TOKEN_HOSTS"} & set(chart.environment(container))


@pytest.mark.parametrize("entry", [CREDENTIALS_NAME, {"name": CREDENTIALS_NAME, "hosts": ["h"]}])
def test_credentials_secret_of_the_agent_is_refused_as_token_secret(entry: object) -> None:
    with pytest.raises(chart.RenderError, match="is the agent's own"):
        chart.render({"spokeSetting": {"agent": {"tokenSecrets": [entry]}}})


def test_hub_reads_secrets_only_with_secret_delivery() -> None:
    def secrets(values: dict[str, object]) -> list[list[str]]:
        role = chart.find_object(chart.render(values), "Role", "dynamic-scoring-controller")
        return [rule["verbs"] for rule in role["rules"] if "secrets" in rule["resources"]]

    assert secrets({}) == []
    assert secrets({"hubSetting": {"secretDelivery": True}}) == [["list", "watch"]]
    [container] = chart.containers(
        chart.find_object(chart.render({"hubSetting": {"secretDelivery": True}}), "Deployment", "dynamic-scoring-hub")
    )
    assert chart.environment(container)["DSF_SECRET_DELIVERY"] == "true"
