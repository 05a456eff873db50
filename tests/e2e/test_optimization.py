"""docs/optimization.md, command by command, on a real API server with OCM's placement controller."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsf.demo.stack import http_ready
from dsf.kube.resources import MANAGED_CLUSTERS
from dsf.optimizer.selector import COMPLIANCE_CLAIM
from dsf.settings import ENV_PREFIX
from tests.e2e import document
from tests.e2e.world import MANIFESTS, ROOT
from tests.support.child import Child
from tests.support.controlplane import ControlPlane, ControlPlaneMissingError, find
from tests.support.controlplane_fixtures import found
from tests.support.policycrds import install_policy_crds
from tests.support.redisserver import free_port
from tests.support.wait import wait_for

pytestmark = [pytest.mark.xdist_group("e2e-optimization"), pytest.mark.timeout(180)]

DOCUMENT = ROOT / "docs" / "optimization.md"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[ControlPlane]:
    """A hub with two clusters and OCM's placement controller."""
    with contextlib.ExitStack() as stack:
        plane = found()
        try:
            placement = find("placement") / "placement"
        except ControlPlaneMissingError as error:
            if os.environ.get("CI", "").lower() == "true":
                pytest.fail(str(error), pytrace=False)
            pytest.skip(str(error))
        stack.enter_context(plane)
        install_policy_crds(plane.session())
        plane.kubectl("apply", "-f", str(MANIFESTS / "optimization.yaml"))
        for cluster in ("worker01", "worker02"):
            # As the policy watcher leaves it before anything is bound.
            claims = [{"name": COMPLIANCE_CLAIM, "value": "empty"}]
            plane.session().merge(MANAGED_CLUSTERS.path("", cluster, "status"), {"status": {"clusterClaims": claims}})
        controller = Child(
            [
                str(placement),
                "controller",
                f"--kubeconfig={plane.kubeconfig}",
                "--namespace=default",
                "--disable-leader-election",
                f"--listen=127.0.0.1:{free_port()}",
            ],
            tmp_path / "placement.log",
        )
        stack.callback(controller.kill)
        yield plane


def test_the_document_can_be_followed(hub: ControlPlane, tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "samples").symlink_to(ROOT / "samples")
    path = os.pathsep.join([str(Path(sys.executable).parent), str(find("kubectl")), os.environ["PATH"]])
    environment = {key: value for key, value in os.environ.items() if not key.startswith(ENV_PREFIX)} | {
        "PATH": path,
        "KUBECONFIG": str(hub.kubeconfig),
        "KUBECACHEDIR": str(hub.dir / "kubectl-cache"),
        "DSF_OPTIMIZER_PORT": str(port),
    }
    problems: list[str] = []
    count = 0
    with contextlib.ExitStack() as stack:
        for command in document.commands(DOCUMENT):
            if command.mark == "not run":
                continue
            count += 1
            if command.mark == "background":
                child = Child(["/bin/bash", "-c", f"exec {command.text}"], tmp_path / "background.log", environment)
                stack.callback(child.kill)
                wait_for(http_ready(f"http://127.0.0.1:{port}/readyz"), 60, child.tail())
                continue
            code, printed = document.run(
                command, cwd=tmp_path, environment=environment, replace={"localhost:8338": f"localhost:{port}"}
            )
            print(f"$ {command.text}\n{printed}", end="")
            if code != 0 or not document.matches(command.wanted, printed):
                problems.append(f"{DOCUMENT.name}:{command.line}: exit code {code}\n$ {command.text}\n{printed}")
    assert not problems, "\n".join(problems)
    assert count > 20
    assert "<svg" in (tmp_path / "plan.svg").read_text()
