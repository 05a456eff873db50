"""`deploy/optimizer/optimizer.yaml`: its account has the required rights, and no more than documented."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from dsf.errors import UnknownScorerError
from dsf.kube.session import ForbiddenError
from dsf.optimizer.access import GuardedAction, KubernetesAccess
from dsf.optimizer.backend import ManifestClient

from .bed import POWER, OptimizerHarness

ROOT = Path(__file__).resolve().parents[5]


def manifests() -> dict[str, dict[str, Any]]:
    text = (ROOT / "deploy" / "optimizer" / "optimizer.yaml").read_text()
    return {manifest["kind"]: manifest for manifest in yaml.safe_load_all(text)}


def test_account_of_the_manifest_has_sufficient_rights(bed: OptimizerHarness) -> None:
    kubeconfig = bed.plane.service_account(bed.namespace, "optimizer", manifests()["ClusterRole"]["rules"])
    session = bed.plane.session(kubeconfig)
    service = bed.service(ManifestClient(session))
    assert service.apply(bed.params()).objective_value == 115
    assert service.apply(bed.params(POWER)).objective_value == 170
    assert service.apply(bed.params(targetWorkloads=[])).coverage == "NothingToPlace"
    service.apply(bed.params())
    assert service.plans(bed.namespace).items[0].complete
    assert service.list_scores(bed.clusters[0]).items
    with pytest.raises(UnknownScorerError):
        service.explain_scorer("nobody")
    assert len(service.reset(bed.namespace).deleted) == 6
    access = KubernetesAccess(session, bed.namespace)
    caller = access.authenticate(json.loads(kubeconfig.read_text())["users"][0]["user"]["token"], "")
    assert caller.name == f"system:serviceaccount:{bed.namespace}:optimizer"
    access.authorize(caller, GuardedAction.LIST_PLANS, None)
    with pytest.raises(ForbiddenError):
        session.get("/api/v1/secrets")


def test_deployment_runs_the_command_and_requires_tokens() -> None:
    objects_by_kind = manifests()
    (container,) = objects_by_kind["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert container["args"] == ["optimizer", "--host", "::", "--auth", "kubernetes"]
    account = objects_by_kind["ServiceAccount"]["metadata"]
    (subject,) = objects_by_kind["ClusterRoleBinding"]["subjects"]
    assert (subject["name"], subject["namespace"]) == (account["name"], account["namespace"])
    assert objects_by_kind["Deployment"]["spec"]["template"]["spec"]["serviceAccountName"] == account["name"]
    labels = objects_by_kind["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert objects_by_kind["Service"]["spec"]["selector"].items() <= labels.items()
    assert objects_by_kind["Service"]["spec"]["ports"][0]["port"] == container["ports"][0]["containerPort"] == 8338
