"""docs/optimization.md, command by command, on a real API server with OCM's placement controller.

And what the document leaves to a real fleet: the policy watcher on a managed cluster, whose API server is the hub's.
Only what OCM's agents carry between the two is carried by hand: the bound policy with its status, and the claim.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dsf.cli.main import app
from dsf.kube.resources import MANAGED_CLUSTERS
from dsf.kube.session import Session
from dsf.optimizer.selector import COMPLIANCE_CLAIM
from dsf.placements.kinds import PLACEMENT_BINDINGS
from dsf.settings import ENV_PREFIX
from dsf.up.httpcheck import make_http_check
from tests.e2e.world import MANIFESTS, ROOT, chosen
from tests.integration.policywatcher.managedcluster import ManagedCluster
from tests.support import document, programs
from tests.support.child import Child
from tests.support.controlplane import ControlPlane, find
from tests.support.controlplane_fixtures import programs_needed
from tests.support.policycrds import install_policy_crds
from tests.support.redisserver import free_port
from tests.support.wait import wait_for

DOCUMENT = ROOT / "docs" / "optimization.md"
SAMPLES = ROOT / "samples" / "optimization"


def set_compliance_claim(hub: Session, cluster: str, compliance: str | None) -> None:
    """Put the claim into the ManagedCluster, as OCM's registration agent does."""
    claims = [{"name": COMPLIANCE_CLAIM, "value": compliance}]
    hub.merge(MANAGED_CLUSTERS.path("", cluster, "status"), {"status": {"clusterClaims": claims}})


def environment(hub: ControlPlane) -> dict[str, str]:
    """Environment of a person who administers the hub."""
    variables = {key: value for key, value in os.environ.items() if not key.startswith(ENV_PREFIX)}
    return variables | {"KUBECONFIG": str(hub.kubeconfig), "KUBECACHEDIR": str(hub.dir / "kubectl-cache")}


@pytest.fixture(scope="module")
def plane(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """An API server with OCM's placement controller."""
    with programs_needed():
        placement = find("placement") / "placement"
    install_policy_crds(control_plane.session())
    controller = Child(
        [
            str(placement),
            "controller",
            f"--kubeconfig={control_plane.kubeconfig}",
            "--namespace=default",
            "--disable-leader-election",
            f"--listen=127.0.0.1:{free_port()}",
        ],
        tmp_path_factory.mktemp("controller") / "log",
    )
    yield control_plane
    controller.kill()


@pytest.fixture
def hub(plane: ControlPlane) -> Iterator[ControlPlane]:
    """A hub with only two clusters; objects that other tests have left are removed."""
    _delete_leftovers(plane)
    plane.kubectl("apply", "-f", str(MANIFESTS / "optimization.yaml"))
    for cluster in ("worker01", "worker02"):
        # As the policy watcher leaves it before anything is bound.
        set_compliance_claim(plane.session(), cluster, "empty")
    yield plane
    _delete_leftovers(plane)
    files = ("binding", "workloads", "policies", "scores")
    plane.kubectl("delete", "--ignore-not-found", *(f"--filename={SAMPLES / name}.yaml" for name in files))


def _delete_leftovers(plane: ControlPlane) -> None:
    plane.kubectl("delete", "placements,placementbindings,placementdecisions,managedclusters", "--all", "-A")


def test_documented_optimization_commands_work(hub: ControlPlane, tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "samples").symlink_to(ROOT / "samples")
    programs_on_path = (Path(sys.executable).parent, find("kubectl"), os.environ["PATH"], programs.find("curl").parent)
    path = os.pathsep.join(map(str, programs_on_path))
    variables = environment(hub) | {"PATH": path, "DSF_LISTEN_PORT": str(port)}
    problems: list[str] = []
    count = 0
    with contextlib.ExitStack() as stack:
        for command in document.parse_commands(DOCUMENT):
            if command.mark == "not run":
                continue
            count += 1
            if command.mark == "background":
                child = Child(["/bin/bash", "-c", f"exec {command.text}"], tmp_path / "background.log", variables)
                stack.callback(child.kill)
                wait_for(make_http_check(f"http://127.0.0.1:{port}/readyz"), 60, child.tail())
                continue
            code, printed = document.run(
                command, cwd=tmp_path, environment=variables, replace={"localhost:8338": f"localhost:{port}"}
            )
            print(f"$ {command.text}\n{printed}", end="")
            if code != 0 or not document.matches(command.expected_lines, printed):
                problems.append(f"{DOCUMENT.name}:{command.line}: exit code {code}\n$ {command.text}\n{printed}")
    assert not problems, "\n".join(problems)
    assert count > 20
    assert "<svg" in (tmp_path / "plan.svg").read_text()


def list_bound_policies(hub: Session, cluster: str) -> list[str]:
    """Return the policies that OCM's policy add-on would bring to a cluster."""
    bindings = hub.get(PLACEMENT_BINDINGS.path("default"))["items"]
    cluster_bindings = [binding for binding in bindings if cluster in chosen(hub, binding["placementRef"]["name"])]
    return [subject["name"] for binding in cluster_bindings for subject in binding["subjects"]]


def run_optimize(hub: ControlPlane, *arguments: str) -> None:
    """`dsf optimize` in this process."""
    changes = dict.fromkeys((name for name in os.environ if name.startswith(ENV_PREFIX)), None)
    variables = {**changes, "KUBECONFIG": str(hub.kubeconfig)}
    result = CliRunner().invoke(app, ["optimize", *arguments], prog_name="dsf", env=variables, catch_exceptions=False)
    assert result.exit_code == 0, result.output


def test_workloads_wait_for_the_policy_watcher_of_their_cluster(hub: ControlPlane, tmp_path: Path) -> None:
    hub.kubectl("apply", *(f"--filename={SAMPLES / name}.yaml" for name in ("binding", "workloads", "policies")))
    hub.kubectl("create", f"--filename={SAMPLES / 'scores.yaml'}")
    hub.kubectl("replace", "--subresource=status", f"--filename={SAMPLES / 'scores.yaml'}")
    for cluster in ("worker01", "worker02"):
        hub.kubectl("label", "managedcluster", cluster, f"cluster-name={cluster}")
    session = hub.session()
    managed = ManagedCluster(hub, session, tmp_path)

    def comply(file: str, policy: str) -> None:
        run_optimize(hub, "--file", str(SAMPLES / file))
        wait_for(lambda: list_bound_policies(session, "worker01") == [policy], 20, f"{policy} is bound")
        # The policy is delivered, and its compliance is still unknown.
        managed.policy(policy, None)
        managed.wait_claim("noncompliant")
        set_compliance_claim(session, "worker01", managed.claim())
        managed.policy(policy, "Compliant")
        assert chosen(session, "app01-placement") == []
        managed.wait_claim("compliant")
        set_compliance_claim(session, "worker01", managed.claim())
        wait_for(lambda: chosen(session, "app01-placement") == ["worker01"], 20, "the workload goes to its cluster")
        # The other cluster has not reported yet.
        assert chosen(session, "app02-placement") == []

    with managed.watcher(stable=1):
        managed.wait_claim("empty")
        comply("params-performance.json", "policy-enable-mig-3g-worker01")
        managed.policy("policy-enable-mig-3g-worker01", "NonCompliant")
        managed.wait_claim("noncompliant")
        set_compliance_claim(session, "worker01", managed.claim())
        wait_for(lambda: chosen(session, "app01-placement") == [], 20, "the cluster is not what it was")
        run_optimize(hub, "--reset", "default")
        managed.delete_policy("policy-enable-mig-3g-worker01")
        managed.wait_claim("empty")
        comply("params-power.json", "policy-enable-mig-2g-worker01")
