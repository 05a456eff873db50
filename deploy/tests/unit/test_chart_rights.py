"""Who may do what in Kubernetes: little, and by name where a name is enough."""

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
    found: Rules = {}
    for rule in role["rules"]:
        for resource in rule["resources"]:
            found.setdefault(resource, []).append(rule)
    return found


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
            binding = chart.one(objects, "ClusterRoleBinding", f"dynamic-scoring-{service}")
            assert [subject["name"] for subject in binding["subjects"]] == [f"dynamic-scoring-{process}"]


def test_the_hub_may_read_what_it_watches() -> None:
    rules = _rules(chart.one(chart.render(), "ClusterRole", "dynamic-scoring-controller"))
    # Secrets only where they are delivered, and in one namespace: see the test of that.
    for watched in (watched for kind, watched in WATCHED.items() if kind is not Kind.SECRET):
        found = rules[watched.resource.plural]
        assert {group for rule in found for group in rule["apiGroups"]} == {watched.resource.group}
        assert {"list", "watch"} <= _verbs(found)


def test_the_hub_has_no_right_that_its_code_does_not_use() -> None:
    role = chart.one(chart.render(), "ClusterRole", "dynamic-scoring-controller")
    held = {
        (resource, verb, tuple(rule.get("resourceNames", ())))
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    # Reflectors list and watch whole kinds, or some names.
    used: set[tuple[str, str, tuple[str, ...]]] = {
        (watched.resource.plural, verb, watched.names)
        for kind, watched in WATCHED.items()
        if kind is not Kind.SECRET
        for verb in ("list", "watch")
    }
    # KubeBackend: statuses by apply; finalizers; ManifestWorks; scores of no scorer; events.
    used.add(("dynamicscoringconfigs", "patch", ()))
    used |= {(f"{kind}/status", "patch", ()) for kind in ("dynamicscorers", "dynamicscoringconfigs")}
    works = (MANIFESTWORK_NAME, CREDENTIALS_WORK_NAME)
    used |= {("manifestworks", verb, works) for verb in ("create", "patch", "delete")}
    used |= {("addonplacementscores", verb, ()) for verb in ("get", "create", "patch", "delete")}
    used |= {("addonplacementscores/status", "patch", ()), ("events", "create", ())}
    assert held == used


def test_the_hub_may_touch_its_own_manifestworks_only() -> None:
    objects = chart.render()
    rules = _rules(chart.one(objects, "ClusterRole", "dynamic-scoring-controller"))
    uninstall = _rules(chart.one(objects, "ClusterRole", "dynamic-scoring-uninstall"))
    for rule in (*rules["manifestworks"], *uninstall["manifestworks"]):
        assert set(rule["resourceNames"]) == {MANIFESTWORK_NAME, CREDENTIALS_WORK_NAME}
    assert [rule["resourceNames"] for rule in rules["managedclusteraddons"]] == [[ADDON_NAME]]
    assert "secrets" not in rules
    role = chart.one(objects, "Role", "dynamic-scoring-controller")
    assert {resource for rule in role["rules"] for resource in rule["resources"]} == {"leases", "configmaps"}
    assert [(rule["verbs"], rule.get("resourceNames")) for rule in _rules(role)["configmaps"]] == [
        (["create"], None),
        (["get", "update"], [CLAIMS_NAME]),
    ]
    role = chart.one(chart.render({"hubSetting": {"scorerNamespaces": ["team"]}}), "Role", "dynamic-scoring-controller")
    assert _rules(role)["configmaps"][1]["resourceNames"] == [CLAIMS_NAME, f"{CLAIMS_NAME}.team"]
    assert [LEASE_NAME] in [rule.get("resourceNames") for rule in role["rules"]]
    assert "managedclusteraddons" not in _rules(
        chart.one(chart.render({"addon": {"enabled": False}}), "ClusterRole", "dynamic-scoring-controller")
    )


def test_bindings_cover_only_expected_service_accounts() -> None:
    for values in chart.MATRIX.values():
        objects = chart.render(values)
        bindings = chart.of_kind(objects, "ClusterRoleBinding", "RoleBinding")
        subjects = {subject["name"] for binding in bindings for subject in binding["subjects"]} - {chart.ADDON_GROUP}
        optimizer = {"dynamic-scoring-optimizer"} if values.get("optimizer", {}).get("enabled") else set()
        services = ("controller", "web") if values.get("mode") == "Distributed" else ("hub",)
        own = {f"dynamic-scoring-{name}" for name in (*services, "uninstall")}
        assert subjects == own | optimizer
        for binding in bindings:
            chart.one(objects, binding["roleRef"]["kind"], binding["roleRef"]["name"])


def test_no_wildcards_in_rights_of_processes() -> None:
    for values in chart.MATRIX.values():
        objects = chart.render(values)
        for role in chart.of_kind([*objects, *chart.agent_objects(objects)], "ClusterRole", "Role"):
            if "dynamic-scoring-framework-" not in role["metadata"]["name"]:
                for rule in role["rules"]:
                    assert "*" not in [*rule["verbs"], *rule["resources"], *rule["apiGroups"]]


@pytest.mark.parametrize(("role", "into"), [("admin", "admin"), ("editor", "edit"), ("viewer", "view")])
def test_roles_for_people_become_part_of_the_builtin_ones_on_request(role: str, into: str) -> None:
    name, label = f"dynamic-scoring-framework-{role}", f"rbac.authorization.k8s.io/aggregate-to-{into}"
    found = chart.one(chart.render({"rbac": {"aggregate": True}}), "ClusterRole", name)
    assert found["metadata"]["labels"][label] == "true"
    assert found["rules"][0]["apiGroups"] == [GROUP]
    # Not unless it is asked for: the author of a DynamicScorer decides what agents ask, and whom.
    alone = chart.one(chart.render(), "ClusterRole", name)
    assert label not in alone["metadata"]["labels"]


def test_the_agent_may_read_its_configmap_and_named_secrets_in_its_namespace() -> None:
    values = {"spokeSetting": {"namespace": "a", "agent": {"tokenSecrets": ["one", {"name": "two", "hosts": ["h:1"]}]}}}
    objects = chart.agent_objects(chart.render(values))
    role = chart.one(objects, "Role")
    assert role["metadata"]["namespace"] == "a"
    assert {rule["resources"][0]: rule["resourceNames"] for rule in role["rules"]} == {
        "configmaps": ["dynamic-scoring-config"],
        "secrets": ["one", "two"],
    }
    assert {verb for rule in role["rules"] for verb in rule["verbs"]} == {"get", "list", "watch"}
    assert not chart.of_kind(objects, "ClusterRole", "ClusterRoleBinding")
    (subject,) = chart.one(objects, "RoleBinding")["subjects"]
    assert subject == {"kind": "ServiceAccount", "name": "dynamic-scoring-agent-sa", "namespace": "a"}


def test_the_agent_is_told_where_tokens_may_be_sent() -> None:
    secrets = ["labelled", {"name": "one", "hosts": ["h:1", "https://i"]}, {"name": "one", "hosts": ["j"]}]
    objects = chart.agent_objects(chart.render({"spokeSetting": {"agent": {"tokenSecrets": secrets}}}))
    [container] = chart.pod(chart.one(objects, "Deployment"))["containers"]
    environment = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert json.loads(environment["DSF_AGENT_TOKEN_SECRETS"]) == {"one": ["h:1", "https://i", "j"]}
    assert environment["DSF_SIGNING_KEY_FILE"].rpartition("/")[0] in {
        mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "credentials"
    }


def test_the_hub_is_told_whose_scorers_count_and_where_config_may_send_tokens() -> None:
    names = {"team": ["team-*"]}
    values = {
        "hubSetting": {
            "scorerNamespaces": ["team"],
            "scoreNames": names,
            "scorerHosts": ["a:1"],
            "tokenHosts": ["thanos.example:9091"],
        }
    }
    [container] = chart.containers(chart.one(chart.render(values), "Deployment", "dynamic-scoring-hub"))
    environment = chart.environment(container)
    assert json.loads(environment["DSF_SCORER_NAMESPACES"]) == ["team"]
    assert json.loads(environment["DSF_SCORE_NAMES"]) == names
    assert json.loads(environment["DSF_SCORER_HOSTS"]) == ["a:1"]
    assert json.loads(environment["DSF_TOKEN_HOSTS"]) == ["thanos.example:9091"]
    [container] = chart.containers(chart.one(chart.render(), "Deployment", "dynamic-scoring-hub"))
    assert not {"DSF_SCORER_NAMESPACES", "DSF_SCORE_NAMES", "DSF_TOKEN_HOSTS"} & set(chart.environment(container))


@pytest.mark.parametrize("entry", [CREDENTIALS_NAME, {"name": CREDENTIALS_NAME, "hosts": ["h"]}])
def test_the_agents_own_secret_cannot_be_given_to_scorers(entry: object) -> None:
    with pytest.raises(chart.RenderError, match="is the agent's own"):
        chart.render({"spokeSetting": {"agent": {"tokenSecrets": [entry]}}})


def test_the_hub_reads_secrets_only_where_it_delivers_them() -> None:
    def secrets(values: dict[str, object]) -> list[list[str]]:
        role = chart.one(chart.render(values), "Role", "dynamic-scoring-controller")
        return [rule["verbs"] for rule in role["rules"] if "secrets" in rule["resources"]]

    assert secrets({}) == []
    assert secrets({"hubSetting": {"secretDelivery": True}}) == [["list", "watch"]]
    [container] = chart.containers(
        chart.one(chart.render({"hubSetting": {"secretDelivery": True}}), "Deployment", "dynamic-scoring-hub")
    )
    assert chart.environment(container)["DSF_SECRET_DELIVERY"] == "true"
