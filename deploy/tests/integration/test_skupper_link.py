"""deploy/skupper/link.sh against a real API server; in the place of Skupper's controller is a thread of this test.

A single API server stands for all clusters, under three contexts.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dsf.errors import BackendError, ObjectNotFoundError
from dsf.kube.resources import Resource
from dsf.kube.session import Session
from tests.support.child import run_program
from tests.support.controlplane import ControlPlane, find
from tests.support.controlplane_crds import create_crds, open_crd

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "deploy" / "skupper" / "link.sh"
_GROUP = ("skupper.io", "v2alpha1")
GRANTS = Resource(*_GROUP, "accessgrants", "AccessGrant")
TOKENS = Resource(*_GROUP, "accesstokens", "AccessToken")
SITES = Resource(*_GROUP, "sites", "Site")
LISTENERS = Resource(*_GROUP, "listeners", "Listener")
HUB, AGENTS = "open-cluster-management", "dynamic-scoring"
CA = "-----BEGIN CERTIFICATE-----\nMIIB\n+/==\n-----END CERTIFICATE-----\n"
CODE = "a/b&c"
URL = "https://192.0.2.7:9090/uid?x=1&y=2"


def _condition(kind: str) -> dict[str, Any]:
    now = "2026-11-27T00:00:00Z"
    return {"type": kind, "status": "True", "reason": "OK", "message": "OK", "lastTransitionTime": now}


@contextlib.contextmanager
def _skupper(session: Session) -> Iterator[None]:
    """Complete grants with the data for a link, and redeem tokens with the right code."""
    finished = threading.Event()

    def work() -> None:
        while not finished.wait(0.1):
            with contextlib.suppress(ObjectNotFoundError, BackendError):
                for grant in session.get(GRANTS.path(HUB))["items"]:
                    if "status" not in grant:
                        status = {"url": URL, "code": CODE, "ca": CA, "conditions": [_condition("Ready")]}
                        session.merge(f"{GRANTS.path(HUB, grant['metadata']['name'])}/status", {"status": status})
                for token in session.get(TOKENS.path(AGENTS))["items"]:
                    if "status" not in token and token["spec"]["code"] == CODE:
                        status = {"conditions": [_condition("Redeemed")]}
                        session.merge(f"{TOKENS.path(AGENTS, token['metadata']['name'])}/status", {"status": status})

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()


@pytest.fixture
def session(control_plane: ControlPlane) -> Iterator[Session]:
    """The API server with Skupper's kinds and both namespaces."""
    with contextlib.closing(control_plane.session()) as admin_session:
        kinds = (GRANTS, TOKENS, SITES, LISTENERS)
        create_crds(admin_session, [open_crd(kind.group, kind.version, kind.plural, kind.kind) for kind in kinds])
        for name in (HUB, AGENTS):
            control_plane.kubectl("create", "namespace", name, check=False)
        yield admin_session


def _link(plane: ControlPlane, folder: Path, *contexts: str) -> subprocess.CompletedProcess[str]:
    config = yaml.safe_load(plane.kubeconfig.read_text())
    (only,) = config["contexts"]
    config["contexts"] = [{**only, "name": name} for name in ("kind-hub", "kind-cluster1", "kind-cluster2")]
    (folder / "kubeconfig").write_text(yaml.safe_dump(config))
    path = os.pathsep.join([str(find("kubectl")), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "KUBECONFIG": str(folder / "kubeconfig"), "LINK_ACCESS": "nodeport"}
    return run_program([SCRIPT, *contexts], env=environment)


def test_link_script_links_all_clusters_at_once(control_plane: ControlPlane, session: Session, tmp_path: Path) -> None:
    with _skupper(session):
        # Twice: a used token is not redeemed again.
        for _ in range(2):
            process = _link(control_plane, tmp_path, "kind-hub", "kind-cluster1", "kind-cluster2")
            assert process.returncode == 0, process.stdout + process.stderr
    assert session.get(SITES.path(HUB, "hub"))["spec"]["linkAccess"] == "nodeport"
    assert session.get(GRANTS.path(HUB, "managed-clusters"))["spec"]["redemptionsAllowed"] == 2
    names = {site["metadata"]["name"] for site in session.get(SITES.path(AGENTS))["items"]}
    assert names == {"cluster1", "cluster2"}
    token = session.get(TOKENS.path(AGENTS, "hub"))
    assert token["spec"] == {"url": URL, "code": CODE, "ca": CA}
    assert session.get(LISTENERS.path(AGENTS, "dynamic-scoring-redis"))["spec"]["port"] == 6379


def test_link_script_reports_wrong_usage() -> None:
    process = run_program([SCRIPT, "kind-hub"])
    assert (process.returncode, "usage: " in process.stderr) == (2, True)
