"""The program against a real API server, with the rights of its manifest and no others."""

from __future__ import annotations

import contextlib
import importlib
import json
import signal
import sys
import time
from pathlib import Path

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml
from kubernetes import client, config

from dsf.kube.resources import SECRETS
from dsf.kube.session import Session
from dsf.placements.kinds import POLICIES
from tests.integration.policywatcher.kinds import CLAIMS, install, uninstall
from tests.integration.policywatcher.managedcluster import CLAIM, MANIFEST, SAMPLE, ManagedCluster
from tests.support.apirelay import ApiServerRelay
from tests.support.child import Child
from tests.support.controlplane import ControlPlane
from tests.support.httpserver import ScriptedServer, hang
from tests.support.wait import wait_for


def says(child: Child, text: str) -> None:
    wait_for(lambda: text in child.tail(), 10, f"the watcher says {text!r}")


def test_missing_claim_is_created_and_follows_the_policies(cluster: ManagedCluster) -> None:
    with cluster.watcher(stable=2):
        cluster.wait_claim("empty")
        cluster.policy("one", None)
        cluster.wait_claim("noncompliant")
        cluster.policy("two", "Compliant")
        started = time.monotonic()
        cluster.policy("one", "Compliant")
        cluster.wait_claim("compliant")
        # At the first poll after the stable time, which began at the first poll after the change.
        assert time.monotonic() - started >= 2
        cluster.policy("two", "NonCompliant")
        cluster.wait_claim("noncompliant")
        cluster.delete_policy("one")
        cluster.delete_policy("two")
        cluster.wait_claim("empty")


def test_deleted_or_changed_claim_is_repaired(cluster: ManagedCluster) -> None:
    cluster.policy("one", "Compliant")
    with cluster.watcher(stable=0.5):
        cluster.wait_claim("compliant")
        cluster.delete_claim()
        cluster.wait_claim("compliant")
        cluster.set_claim("mine")
        cluster.wait_claim("compliant")
    labels = cluster.session.get(CLAIMS.path(name=CLAIM))["metadata"]["labels"]
    assert labels == {"whose": "a-person"}


def test_api_errors_keep_the_claim(cluster: ManagedCluster) -> None:
    cluster.policy("one", "Compliant")
    cluster.set_claim("empty")
    # Long enough for the outage to begin before it is over.
    stable = 20
    with cluster.watcher(stable=stable, interval=0.5) as child:
        says(child, "policies are compliant")
        cluster.forbid("RoleBinding")
        says(child, "cannot list policies")
        assert "apply the Roles of manifests/deployment.yaml" in child.tail()
        assert cluster.claim() == "empty"
        restored = time.monotonic()
        cluster.apply_manifest()
        says(child, "the API server answers again")
        wait_for(lambda: "claim set from=empty to=compliant" in child.tail(), 30, "the claim is set")
        assert cluster.claim() == "compliant"
        # The time during the outage did not count.
        assert time.monotonic() - restored >= stable
        assert child.log.read_text().count("cannot list policies") == 1


def test_watcher_permissions_are_minimal(cluster: ManagedCluster) -> None:
    may, name = cluster.may, cluster.name
    assert may("list", POLICIES, namespace=name)
    assert all(may(verb, CLAIMS, CLAIM) for verb in ("get", "create", "patch"))
    assert not may("list", POLICIES, namespace="default")
    assert not any(may(verb, POLICIES, namespace=name) for verb in ("create", "patch", "update", "delete"))
    assert not any(may(verb, CLAIMS) for verb in ("get", "list", "create", "patch", "update", "delete"))
    assert not may("delete", CLAIMS, CLAIM)
    assert not may("get", CLAIMS, "id.k8s.io")
    assert not may("get", SECRETS, namespace=name)


def test_manifest_is_valid() -> None:
    documents = list(yaml.safe_load_all(MANIFEST.read_text().replace("${CLUSTER_NAME}", "cluster1")))
    for document in documents:
        kubernetes_validate.validate(document, "1.36", strict=True)
    deployment = documents[-1]
    environment = {
        variable["name"]: variable["value"]
        for variable in deployment["spec"]["template"]["spec"]["containers"][0]["env"]
    }
    assert environment == {
        "WATCH_NAMESPACE": "cluster1",
        "TARGET_CLAIM_NAME": CLAIM,
        "POLL_INTERVAL_SEC": "30",
        "STABLE_DURATION_SEC": "120",
    }


def test_watcher_reads_policies_page_by_page_and_detects_replacements(
    cluster: ManagedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(SAMPLE))
    program = importlib.import_module("policywatcher.cluster")
    monkeypatch.setattr(program, "_PAGE", 2)
    configuration = client.Configuration()
    config.load_kube_config(str(cluster.kubeconfig), client_configuration=configuration)
    with contextlib.closing(program.Cluster(configuration, cluster.name, CLAIM)) as watched_cluster:
        for number in range(4):
            cluster.policy(f"policy-{number}", "Compliant")
        assert watched_cluster.compliance().compliance == "compliant"
        # As users replace one, between two polls.
        before = watched_cluster.compliance()
        assert (watched_cluster.compliance() == before, len(before.policies)) == (True, 4)
        cluster.delete_policy("policy-3")
        cluster.policy("policy-3", "Compliant")
        assert watched_cluster.compliance().policies != before.policies
        cluster.policy("policy-4", "NonCompliant")
        assert watched_cluster.compliance().compliance == "noncompliant"
        assert watched_cluster.claim() is None
        cluster.forbid("ClusterRoleBinding")
        with pytest.raises(program.ClusterError, match="cannot read ClusterClaim"):
            watched_cluster.claim()


def test_watcher_ends_at_once_while_the_api_server_hangs(tmp_path: Path) -> None:
    with ScriptedServer(hang) as server:
        kubeconfig = tmp_path / "kubeconfig"
        cluster, context = {"server": server.url}, {"cluster": "c", "user": "u"}
        kubeconfig.write_text(
            json.dumps(
                {
                    "clusters": [{"name": "c", "cluster": cluster}],
                    "users": [{"name": "u", "user": {"token": "t"}}],
                    "contexts": [{"name": "x", "context": context}],
                    "current-context": "x",
                }
            )
        )
        environment = {"PYTHONPATH": str(SAMPLE), "KUBECONFIG": str(kubeconfig)}
        child = Child([sys.executable, "-m", "policywatcher"], tmp_path / "log", environment, inherit=False)
        try:
            wait_for(lambda: server.requests, 30, "the watcher asks")
            child.signal(signal.SIGTERM)
            assert child.wait() == 0
            assert "Traceback" not in child.tail()
            assert "ended" in child.tail()
        finally:
            child.kill()


@pytest.mark.parametrize(
    ("variables", "expected_message"),
    [({}, "run in a pod or set KUBECONFIG"), ({"POLL_INTERVAL_SEC": "x"}, "allowed is a number of seconds")],
)
def test_watcher_reports_why_it_cannot_start(tmp_path: Path, variables: dict[str, str], expected_message: str) -> None:
    environment = {"PYTHONPATH": str(SAMPLE), "KUBECONFIG": str(tmp_path / "none"), "HOME": str(tmp_path), **variables}
    child = Child([sys.executable, "-m", "policywatcher"], tmp_path / "log", environment, inherit=False)
    assert child.wait() == 2
    assert expected_message in child.tail()
    assert "Traceback" not in child.tail()


def test_watcher_waits_for_missing_kinds_and_survives_a_killed_server(
    control_plane: ControlPlane, session: Session, tmp_path: Path
) -> None:
    uninstall(session)
    cluster = ManagedCluster(control_plane, session, tmp_path, kinds=False)
    with ApiServerRelay(control_plane, cluster.kubeconfig) as relay:
        cluster.kubeconfig = relay.kubeconfig
        with cluster.watcher(stable=3600) as child:
            says(child, "install its CRD (for policies, OCM's policy add-on)")
            install(session)
            cluster.wait_claim("empty", 20)
            relay.cut()
            says(child, "the API server cannot be reached")
            relay.restore()
            cluster.policy("one", "NonCompliant")
            cluster.wait_claim("noncompliant")
