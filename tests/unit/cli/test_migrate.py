"""`dsf migrate --check`: the report on an upstream installation, and the exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from dsf.api.types import UPSTREAM_FINALIZER
from dsf.cli.migrationcheck import Installation, MigrationReport, check
from tests.support.commandline import dsf
from tests.support.manifests import config

HOME = "open-cluster-management"
CONFIG = {
    "name": "n",
    "source": {
        "type": "Prometheus",
        "host": "http://prometheus.test:9090",
        "params": {"query": "up", "range": 60, "step": 10},
    },
    "scoring": {"path": "/scoring", "params": {"name": "cpu", "interval": 30}},
}
TOKEN = {"auth": {"tokenSecretRef": {"name": "thanos-token", "key": "token"}}}


def scorer(name: str = "s", namespace: str = HOME, *, synced: Any = CONFIG, **spec: Any) -> dict[str, Any]:
    """Return a scorer as upstream's manager writes it."""
    whole = {"description": "d", "configURL": "http://s.test:8000/config", "configSyncMode": "Full", **spec}
    status = {"healthStatus": "Active", **({"lastSyncedConfig": synced} if synced else {})}
    return {
        "apiVersion": "dynamic-scoring.open-cluster-management.io/v1alpha1",
        "kind": "DynamicScorer",
        "metadata": {"name": name, "namespace": namespace, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": whole,
        "status": status,
    }


def score(name: str, cluster: str = "c1", **status: Any) -> dict[str, Any]:
    return {
        "apiVersion": "cluster.open-cluster-management.io/v1alpha1",
        "kind": "AddOnPlacementScore",
        "metadata": {"name": name, "namespace": cluster},
        "status": {"scores": [{"name": "a", "value": 1}], **status},
    }


def check_installation(*documents: dict[str, Any], **values: Any) -> MigrationReport:
    installation = Installation()
    for document in documents:
        installation.add(document, "file.yaml")
    if values:
        installation.add({"hubSetting": {}, **values}, "values.yaml")
    return check(installation)


def lines(report: MigrationReport) -> list[str]:
    return [f"{each.severity}: {each.object}: {each.message}; {each.remedy}" for each in report.findings]


def test_sound_installation_has_no_findings() -> None:
    manifest = config(HOME, masks=[{"clusterName": "c2", "scoreName": "cpu"}])
    manifest["metadata"]["finalizers"] = [UPSTREAM_FINALIZER]
    report = check_installation(scorer(), manifest, score("cpu"))
    assert lines(report) == []
    assert not report.stops


@pytest.mark.parametrize(
    ("manifest", "words"),
    [
        (scorer(configSyncMode="None", source={"type": "Prometheus"}, scoring=CONFIG["scoring"]), "MissingQuery"),
        (scorer(scoring={"params": {"name": "n", "interval": 2**31}}), "is more than"),
        (scorer(configURL="http://user:canary@s.test/config"), "auth.basic"),
        (scorer(synced={**CONFIG, "source": {"host": "http://user:canary@p"}}), "auth.basic"),
        (scorer(source={"type": "prometheus"}), "'prometheus' is not one of"),
        ({**scorer(), "spec": {}}, "is required"),
        (scorer(namespace="team"), "namespace team, whose scorers the hub ignores"),
        (scorer(source=TOKEN), "TokenHostMismatch"),
        (scorer(source={**TOKEN, "host": "http://prometheus.test:9090"}), "[prometheus.test:9090]"),
        (scorer(synced=None, source={**TOKEN, "host": "http://p.test"}), "{name: thanos-token, hosts: [p.test]}"),
        (config(HOME, masks=[{"clusterName": "", "scoreName": "cpu"}]), "must not be empty"),
        (config("dynamic-scoring", masks=[{"clusterName": "c", "scoreName": "cpu"}]), "its masks are lost"),
    ],
)
def test_blocking_finding_is_reported_with_its_remedy(manifest: dict[str, Any], words: str) -> None:
    report = check_installation(manifest)
    assert report.stops
    blocking_lines = [line for line in lines(report) if line.startswith("stops: ")]
    assert any(words in line for line in blocking_lines), lines(report)
    assert all(finding.remedy for finding in report.findings)
    assert "canary" not in str(lines(report))


def test_second_scorer_of_a_score_name_stops() -> None:
    newer = scorer("b")
    newer["metadata"]["creationTimestamp"] = "2026-02-01T00:00:00Z"
    [line] = lines(check_installation(newer, scorer("a")))
    assert line.startswith(f"stops: DynamicScorer {HOME}/b: has the score name 'cpu' of {HOME}/a")


def test_values_release_tokens_and_accept_namespaces() -> None:
    manifest = scorer(namespace="team", source={**TOKEN, "host": "http://prometheus.test:9090"})
    released = [{"name": "thanos-token", "hosts": ["prometheus.test"]}]
    report = check_installation(
        manifest, hubSetting={"scorerNamespaces": ["team"]}, spokeSetting={"agent": {"tokenSecrets": released}}
    )
    assert lines(report) == []
    # A plain name lets the agent read the Secret but send it to no server.
    plain = check_installation(
        manifest, hubSetting={"scorerNamespaces": ["team"]}, spokeSetting={"agent": {"tokenSecrets": ["thanos-token"]}}
    )
    assert "lists it without this server" in lines(plain)[0]
    beside = check_installation(config("team"), hubSetting={"scorerNamespaces": ["team"]})
    assert beside.stops
    assert "no scorer beside it runs" in lines(beside)[0]


def test_values_of_several_files_are_merged_as_by_helm() -> None:
    installation = Installation()
    installation.add(scorer(namespace="team", source={**TOKEN, "host": "http://prometheus.test:9090"}), "file.yaml")
    installation.add({"hubSetting": {"scorerNamespaces": ["team"], "tokenHosts": ["a"]}}, "values.yaml")
    released = [{"name": "thanos-token", "hosts": ["prometheus.test"]}]
    later_values = {"spokeSetting": {"agent": {"tokenSecrets": released}}, "hubSetting": {"tokenHosts": []}}
    installation.add(later_values, "more.yaml")
    assert lines(check(installation)) == []
    installation.add({"hubSetting": {"scorerNamespaces": []}}, "last.yaml")
    assert "namespace team, whose scorers the hub ignores" in lines(check(installation))[0]


def test_stale_scores_are_listed_with_the_command_to_remove_them() -> None:
    masked = config(HOME, masks=[{"clusterName": "c2", "scoreName": "cpu"}])
    labelled = score("ours")
    labelled["metadata"]["labels"] = {"app.kubernetes.io/managed-by": "dynamic-scoring-framework"}
    report = check_installation(
        scorer(),
        masked,
        score("cpu"),
        score("cpu", "c2"),
        score("gone"),
        score("expiring", validUntil="2030-01-01T00:00:00Z"),
        labelled,
    )
    assert not report.stops
    assert [(each.object, each.severity, each.remedy) for each in report.findings] == [
        (
            f"AddOnPlacementScore {cluster}/{name}",
            "change",
            f"kubectl delete addonplacementscore -n {cluster} {name}, unless another controller writes it",
        )
        for cluster, name in (("c2", "cpu"), ("c1", "gone"))
    ]


def test_score_of_another_controller_is_reported_only_if_a_scorer_claims_its_name() -> None:
    usage, claimed, upstreams = score("resource-usage-score"), score("cpu"), score("old")
    for each, manager in ((usage, "collector"), (claimed, "collector"), (upstreams, "dynamic-scoring-addon")):
        each["metadata"]["managedFields"] = [{"manager": manager}]
    report = check_installation(scorer(), usage, claimed, upstreams)
    assert [(each.object, each.severity) for each in report.findings] == [
        ("AddOnPlacementScore c1/cpu", "stops"),
        ("AddOnPlacementScore c1/old", "change"),
    ]
    assert check_installation(scorer(), score("cpu", validUntil="2030-01-01T00:00:00Z")).stops


def test_images_of_upstream_in_the_values_are_reported() -> None:
    image = {"name": "registry.example/mirror/dynamic-scoring-addon"}
    report = check_installation(
        hubSetting={"resourceController": {"image": {"tag": "v0.1.0"}}}, spokeSetting={"agent": {"image": image}}
    )
    assert [each.severity for each in report.findings] == ["stops", "note"]
    assert "v0.1.0" in report.findings[1].message
    agent_image = {"name": "registry.example/dynamic-scoring-agent", "tag": "x"}
    assert lines(check_installation(spokeSetting={"agent": {"image": agent_image}})) == []


def test_command_reads_lists_and_values_and_ends_with_1_if_anything_stops(tmp_path: Path) -> None:
    manifest_list = {"apiVersion": "v1", "kind": "List", "items": [scorer("a"), scorer("b", namespace="team")]}
    manifests, values = tmp_path / "scorers.yaml", tmp_path / "values.yaml"
    manifests.write_text(yaml.safe_dump(manifest_list) + "---\n" + yaml.safe_dump(config(HOME)))
    values.write_text(yaml.safe_dump({"hubSetting": {"namespace": HOME}}))
    result = dsf("migrate", "--check", str(manifests), str(values))
    assert result.exit_code == 1
    assert "stops: DynamicScorer team/b: is in namespace team" in result.stdout
    report = json.loads(dsf("migrate", "--check", str(manifests), "-o", "json").stdout)
    assert (report["stops"], report["scorers"]) == (True, 2)
    assert report["findings"][0].keys() == {"severity", "object", "message", "remedy"}
    manifests.write_text(yaml.safe_dump(scorer()))
    assert dsf("migrate", "--check", str(manifests)).exit_code == 0


def test_fields_beside_and_below_document_separators_are_read(tmp_path: Path) -> None:
    manifests = tmp_path / "scorers.yaml"
    first, second = scorer("a", namespace="team"), scorer("b")
    # The kind is in the first line after the separator.
    text = "---\n" + yaml.safe_dump({"kind": first.pop("kind"), **first}, sort_keys=False)
    manifests.write_text(f"{text}--- {json.dumps(second)}\n--- # a comment\n{yaml.safe_dump(config(HOME))}")
    result = dsf("migrate", "--check", str(manifests))
    assert result.stdout.endswith("2 DynamicScorers checked: 1 finding stops something\n")


@pytest.mark.parametrize("arguments", [(), ("--check",), ("scorers.yaml",), ("--check", "absent.yaml")])
def test_wrong_usage_ends_with_2(arguments: tuple[str, ...]) -> None:
    assert dsf("migrate", *arguments).exit_code == 2


@pytest.mark.parametrize("text", ["- a\n", "a: [\n", "a: b\n", "kind: DynamicScorer\n"])
def test_file_that_is_no_manifest_ends_with_2_and_its_name(tmp_path: Path, text: str) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(text)
    result = dsf("migrate", "--check", str(file))
    assert (result.exit_code, str(file) in result.stderr) == (2, True)
