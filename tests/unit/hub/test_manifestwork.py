"""The ManifestWork that delivers scorers to an agent."""

from __future__ import annotations

from dsf.api.authentication import CaKind, Reference
from dsf.api.summary import ScorerSummary, dump_summaries
from dsf.hub.manifestwork import ScorerPart, is_applied, make_manifest_work, make_part


def test_empty_list_of_summaries_is_distributed() -> None:
    work = make_manifest_work("c", "agents", [])
    assert work["apiVersion"] == "work.open-cluster-management.io/v1"
    assert work["metadata"]["name"] == "dynamic-scoring-config-manifestwork"
    assert work["metadata"]["namespace"] == "c"
    [config_map] = work["spec"]["workload"]["manifests"]
    assert config_map["metadata"]["name"] == "dynamic-scoring-config"
    assert config_map["metadata"]["namespace"] == "agents"
    assert config_map["data"] == {"summaries": "[]"}


def test_summaries_are_complete() -> None:
    summaries = [ScorerSummary(name=name, score_name=name) for name in ("a", "b")]
    [config_map] = make_manifest_work("c", "agents", [*map(make_part, summaries)])["spec"]["workload"]["manifests"]
    assert config_map["data"]["summaries"] == dump_summaries(summaries)


def test_agent_may_read_only_objects_that_its_scorers_reference() -> None:
    references = [Reference(CaKind.Secret, "b"), Reference(CaKind.Secret, "a"), Reference(CaKind.ConfigMap, "ca")]
    part = ScorerPart("{}", frozenset(references), uses_account=True, size=0)
    _, account, role, binding = make_manifest_work("c", "agents", [part])["spec"]["workload"]["manifests"]
    assert [(rule["resources"], rule["resourceNames"], rule["verbs"]) for rule in role["rules"]] == [
        (["secrets"], ["a", "b"], ["get", "list", "watch"]),
        (["configmaps"], ["ca"], ["get", "list", "watch"]),
        (["serviceaccounts/token"], ["dynamic-scoring-agent-tokens"], ["create"]),
    ]
    assert (account["kind"], account["metadata"]["name"]) == ("ServiceAccount", "dynamic-scoring-agent-tokens")
    assert account["automountServiceAccountToken"] is False
    assert {each["metadata"]["namespace"] for each in (account, role, binding)} == {"agents"}
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", "name": "dynamic-scoring-agent-sa", "namespace": "agents"}
    ]


def test_applied_is_about_this_generation() -> None:
    work = {"metadata": {"generation": 2}}
    assert not is_applied(work)
    applied = {"type": "Applied", "status": "True", "observedGeneration": 1}
    assert not is_applied({**work, "status": {"conditions": [applied]}})
    assert is_applied({**work, "status": {"conditions": [{**applied, "observedGeneration": 2}]}})
    assert not is_applied({**work, "status": {"conditions": [{**applied, "observedGeneration": 2, "status": "False"}]}})
