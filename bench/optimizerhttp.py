"""Measures a request to the optimiser over HTTP with a real API server, for `bench.optimizer`.

The problem is the same as for the solver alone, written as objects.
"""

from __future__ import annotations

import contextlib
import re
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import requests

from dsf.kube.resources import ADDON_PLACEMENT_SCORES, MANAGED_CLUSTER_SETS, MANAGED_CLUSTERS, Resource
from dsf.kube.session import Session
from dsf.optimizer.model import PlanInput
from dsf.placements.kinds import (
    MANAGED_CLUSTER_SET_BINDINGS,
    MANIFEST_WORK_REPLICA_SETS,
    POLICIES,
)
from tests.support.child import Child
from tests.support.controlplane import ControlPlane
from tests.support.planproblems import make_sized_problem
from tests.support.policycrds import install_policy_crds
from tests.support.wait import wait_for

_NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
_LABEL = "cluster-name"
_SCORE = "score"
_NAMESPACE = "default"
_WRITERS = 8


def measure(size: str, seconds: float, rounds: int = 5) -> dict[str, Any]:
    """Return the seconds of a dry run, of applying the plan, and of applying it again without changes.

    Raises ControlPlaneMissingError without the programs of the API server.
    """
    problem = make_sized_problem(size)
    with ControlPlane() as plane, tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        session = plane.session()
        install_policy_crds(session)
        body = _write(session, problem) | {"timeLimit": seconds}
        command = [sys.executable, "-m", "dsf.cli", "optimizer", "--auth", "none", "--port", "0"]
        log = Path(folder) / "log"
        settings = {"DSF_KUBECONFIG": str(plane.kubeconfig), "DSF_LOG_FORMAT": "json"}
        child = Child(command, log, settings)
        stack.callback(child.kill)
        port = wait_for(lambda: re.search(r'"port": ?(\d+)', child.tail()), 60, "the optimizer listens").group(1)
        http = stack.enter_context(requests.Session())
        url = f"http://127.0.0.1:{port}"
        wait_for(lambda: _is_ready(http, url), 30, child.tail())
        _post(http, url, body | {"dryRun": True})
        dry = [_post(http, url, body | {"dryRun": True}) for _ in range(rounds)]
        applied, _ = _post(http, url, body)
        # Applied twice, because the second plan has `kept` places.
        _post(http, url, body)
        again = [_post(http, url, body)[0] for _ in range(rounds)]
    return {
        "dry_run_seconds": statistics.median(dry_seconds for dry_seconds, _ in dry),
        "solver_seconds": statistics.median(report["seconds"] for _, report in dry),
        "apply_seconds": applied,
        "objects": len(dry[0][1]["changes"]),
        "apply_again_seconds": statistics.median(again),
        "gap": dry[0][1]["gap"],
    }


def _post(http: requests.Session, url: str, body: dict[str, Any]) -> tuple[float, dict[str, Any]]:
    started = time.perf_counter()
    response = http.post(f"{url}/optimize", json=body, timeout=300)
    seconds = time.perf_counter() - started
    if response.status_code != 200:
        raise RuntimeError(response.text)
    return seconds, response.json()


def _is_ready(http: requests.Session, url: str) -> bool:
    try:
        return http.get(f"{url}/readyz", timeout=2).status_code == 200
    except requests.ConnectionError:
        return False


def _write(session: Session, problem: PlanInput) -> dict[str, Any]:
    """Write all objects of a problem, and return the request for its plan."""
    objects: list[tuple[str, dict[str, Any], dict[str, Any] | None]] = []

    def add(resource: Resource, namespace: str, name: str, content: dict[str, Any], **labels: str) -> None:
        manifest = {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {"name": name, "labels": labels} | ({"namespace": namespace} if namespace else {}),
        } | content
        # The API server drops the status of a new object.
        status = {"status": content["status"]} if "status" in content else None
        objects.append((resource.path(namespace), manifest, status))

    select_all = {"selectorType": "LabelSelector", "labelSelector": {}}
    add(MANAGED_CLUSTER_SETS, "", "global", {"spec": {"clusterSelector": select_all}})
    add(MANAGED_CLUSTER_SET_BINDINGS, _NAMESPACE, "global", {"spec": {"clusterSet": "global"}})
    for cluster in problem.clusters:
        session.create(_NAMESPACES.path(), {"metadata": {"name": cluster.name}})
        claims = [{"name": "policy-watcher-claim", "value": "empty"}]
        content = {"spec": {"hubAcceptsClient": True}, "status": {"clusterClaims": claims}}
        add(MANAGED_CLUSTERS, "", cluster.name, content, **{_LABEL: cluster.name})
        (table,) = cluster.scores
        items = [{"name": name, "value": value} for name, value in table.items.items()]
        add(ADDON_PLACEMENT_SCORES, cluster.name, _SCORE, {"status": {"scores": items}})
        for configuration in cluster.configurations:
            ((kind, amount),) = configuration.supply.items()
            labels = {
                "resource-supply-kind": kind,
                "resource-supply-amount": str(amount),
                "resource-supply-device": configuration.device,
            }
            content = {"spec": {"disabled": False, "policy-templates": []}}
            add(POLICIES, _NAMESPACE, f"{cluster.name}-{configuration.name}", content, **labels)
    for workload in problem.workloads:
        ((kind, amount),) = workload.request.items()
        labels = {"app": workload.app, "resource-request-kind": kind, "resource-request-amount": str(amount)}
        template = {"workload": {"manifests": []}}
        spec = {"placementRefs": [{"name": f"{workload.name}-placement"}], "manifestWorkTemplate": template}
        add(MANIFEST_WORK_REPLICA_SETS, _NAMESPACE, workload.name, {"spec": spec}, **labels)
    with ThreadPoolExecutor(_WRITERS) as threads:
        list(threads.map(lambda item: _create(session, *item), objects))
    return {
        "namespace": _NAMESPACE,
        "clusters": [
            {
                "name": cluster.name,
                "availablePolicies": [
                    {"name": f"{cluster.name}-{configuration.name}"} for configuration in cluster.configurations
                ],
            }
            for cluster in problem.clusters
        ],
        "targetWorkloads": [{"name": workload.name} for workload in problem.workloads],
        "preference": {"addOnPlacementScore": _SCORE},
    }


def _create(session: Session, path: str, manifest: dict[str, Any], status: dict[str, Any] | None) -> None:
    session.create(path, manifest)
    if status is not None:
        session.merge(f"{path}/{manifest['metadata']['name']}/status", status)
