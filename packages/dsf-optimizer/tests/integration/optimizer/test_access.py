"""Authorization over HTTP: a real API server decides on tokens and rights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from dsf.errors import AccessError
from dsf.kube.resources import PLACEMENTS
from dsf.optimizer.access import CallerAccess, GuardedAction, KubernetesAccess, OpenAccess, TokenAccess
from dsf.optimizer.app import make_app
from dsf.optimizer.backend import ManifestClient
from dsf.placements.kinds import MANIFEST_WORK_REPLICA_SETS, PLACEMENT_BINDINGS, POLICIES
from tests.support.redisserver import free_port

from .bed import PERFORMANCE, OptimizerHarness

READ = [
    {"apiGroups": ["work.open-cluster-management.io"], "resources": ["manifestworkreplicasets"], "verbs": ["get"]},
    {"apiGroups": [POLICIES.group], "resources": ["policies"], "verbs": ["get"]},
    {"apiGroups": ["cluster.open-cluster-management.io"], "resources": ["addonplacementscores"], "verbs": ["list"]},
]
WRITE = [
    {"apiGroups": [PLACEMENTS.group], "resources": ["placements"], "verbs": ["create", "delete"]},
    {"apiGroups": [PLACEMENT_BINDINGS.group], "resources": ["placementbindings"], "verbs": ["create", "delete"]},
]


def token_of(kubeconfig: Path) -> str:
    return json.loads(kubeconfig.read_text())["users"][0]["user"]["token"]


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def client(bed: OptimizerHarness, access: CallerAccess, host: str = "localhost") -> TestClient:
    return TestClient(make_app(bed.service(access=access)), base_url=f"http://{host}", raise_server_exceptions=False)


def test_hub_checks_tokens_and_rights(bed: OptimizerHarness) -> None:
    reader = bearer(token_of(bed.plane.service_account(bed.namespace, "reader", READ)))
    writer = bearer(token_of(bed.plane.service_account(bed.namespace, "writer", READ + WRITE)))
    nobody = bearer(token_of(bed.plane.service_account(bed.namespace, "nobody", [])))
    http = client(bed, KubernetesAccess(bed.session, bed.namespace), "optimizer.test")
    body, dry = bed.body(), bed.body(dryRun=True)

    response = http.post("/optimize", json=body)
    assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")
    assert response.headers["content-type"] == "application/problem+json"
    assert "no token; send" in response.json()["detail"]
    response = http.post("/optimize", json=body, headers=bearer("made-up"))
    assert (response.status_code, response.json()["title"]) == (401, "Unauthorized")
    assert "made-up" not in response.text

    response = http.post("/optimize", json=dry, headers=nobody)
    assert response.status_code == 403
    assert response.json()["detail"] == (
        f"system:serviceaccount:{bed.namespace}:nobody may not get {MANIFEST_WORK_REPLICA_SETS} in namespace "
        f"{bed.namespace}; needed to propose a plan"
    )
    assert http.post("/optimize", json=dry, headers=reader).json()["objective_value"] == 115
    response = http.post("/optimize", json=body, headers=reader)
    assert response.status_code == 403
    assert "may not create placements" in response.json()["detail"]
    assert bed.objects() == {}
    assert http.post("/optimize", json=body, headers=writer).json()["applied"] is True
    assert http.post("/reset", json={"namespace": bed.namespace}, headers=reader).status_code == 403
    assert http.get("/addonplacementscores", headers=nobody).status_code == 403
    score_objects = http.get("/addonplacementscores", params={"namespace": bed.clusters[0]}, headers=reader).json()[
        "items"
    ]
    assert {score_object["metadata"]["namespace"] for score_object in score_objects} == {bed.clusters[0]}
    # They have no rights elsewhere: the rights are checked in the namespace of the plan.
    assert http.get("/plans", headers=writer).status_code == 403
    assert http.post("/reset", json={"namespace": bed.namespace}, headers=writer).status_code == 200
    # Probes and the description of the API are for everybody.
    for path in ("/healthz", "/readyz", "/openapi.json", "/docs", "/docs/swagger-ui.css"):
        assert http.get(path).status_code == 200


def test_rescoring_requires_the_right_to_change_scorers(bed: OptimizerHarness) -> None:
    access = KubernetesAccess(bed.session, bed.namespace)
    group = "dynamic-scoring.open-cluster-management.io"
    rules = [{"apiGroups": [group], "resources": ["dynamicscorers"], "verbs": ["update"]}]
    may = access.authenticate(token_of(bed.plane.service_account(bed.namespace, "may", rules)), "")
    may_not = access.authenticate(token_of(bed.plane.service_account(bed.namespace, "may-not", READ)), "")
    access.authorize(may, GuardedAction.RESCORE, None)
    with pytest.raises(AccessError, match=f"may not update dynamicscorers.{group} in namespace {bed.namespace}"):
        access.authorize(may_not, GuardedAction.RESCORE, None)


def test_static_token_follows_its_file(bed: OptimizerHarness, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("the-first-token-of-all\n")
    http = client(bed, TokenAccess(file), "optimizer.test")
    assert http.get("/plans").status_code == 401
    assert http.get("/plans", headers=bearer("wrong")).status_code == 401
    assert http.get("/plans", headers=bearer("the-first-token-of-all")).status_code == 200
    file.write_text("the-second-token-of-all\n")
    assert http.get("/plans", headers=bearer("the-first-token-of-all")).status_code == 401
    assert http.get("/plans", headers=bearer("the-second-token-of-all")).status_code == 200
    file.unlink()
    response = http.get("/plans", headers=bearer("the-second-token-of-all"))
    assert (response.status_code, "cannot read" in response.json()["detail"]) == (503, True)


def test_web_pages_are_refused_by_a_service_without_tokens(bed: OptimizerHarness) -> None:
    for host in ("localhost", "127.0.0.1:8338", "[::1]:8338"):
        assert client(bed, OpenAccess(), host).get("/plans").status_code == 200
    # A foreign name that resolves to this machine.
    for path in ("/reset", "/mcp"):
        response = client(bed, OpenAccess(), "attacker.test").post(path, json={"namespace": bed.namespace})
        assert (response.status_code, "localhost only" in response.json()["detail"]) == (403, True)
    http = client(bed, OpenAccess())
    for origin in ("https://attacker.test", "null", "http://[bad", "localhost"):
        for path in ("/reset", "/mcp"):
            response = http.post(path, json={"namespace": bed.namespace}, headers={"Origin": origin})
            assert (response.status_code, "web page" in response.json()["detail"]) == (403, True)
    own_origin = {"Origin": "http://localhost:8338"}
    assert http.post("/reset", json={"namespace": bed.namespace}, headers=own_origin).status_code == 200


def test_http_api_returns_plans_and_errors(bed: OptimizerHarness) -> None:
    http = client(bed, OpenAccess())
    report = http.post("/optimize", json=bed.body(dryRun=True)).json()
    assert report["status"] == "Optimal"
    assert report["output_yaml"].count("\nkind: Placement\n") == 4
    assert report["output_yaml"].count("\nkind: PlacementBinding\n") == 2
    body = bed.body()
    body["preference"]["addonPlacementScore"] = body["preference"].pop("addOnPlacementScore")
    assert http.post("/optimize", json=body).json()["objective_value"] == 115
    assert [plan["namespace"] for plan in http.get("/plans", params={"namespace": bed.namespace}).json()["items"]] == [
        bed.namespace
    ]
    for invalid_fields, text in (
        ({"dryrun": True}, "body.dryrun: Extra inputs are not permitted"),
        ({"preference": None}, "either preference or preferences is required"),
        ({"namespace": "../../etc"}, "body.namespace: String should match pattern"),
        ({"targetWorkloads": [{"name": "no-such"}]}, "no-such does not exist"),
        ({"preference": {"addOnPlacementScore": "s", "scoreDimensionFormat": "${pod}"}}, "has ${pod}, which an app"),
        ({"clusters": bed.body()["clusters"] * 2}, "named more than once"),
        ({"preference": {"addOnPlacementScore": PERFORMANCE, "weight": -1}}, "no weight is above zero"),
    ):
        response = http.post("/optimize", json=bed.body() | invalid_fields)
        assert response.status_code == 422
        assert text in response.json()["detail"], response.text
    # An invalid namespace does not select all namespaces.
    for path in ("/plans", "/addonplacementscores"):
        for name in ("", "..", "a/b", "UPPER"):
            response = http.get(path, params={"namespace": name})
            assert (response.status_code, "query.namespace: String should" in response.json()["detail"]) == (422, True)
        assert http.get(path).status_code == 200
    response = http.post("/optimize", json=bed.body(planId="0123456789abcdef"))
    assert response.status_code == 409
    assert http.get("/scorers/nobody").status_code == 404
    unknown_score = http.post(
        "/optimize", json=bed.body(preference={"addOnPlacementScore": "no-such-score"}, dryRun=True)
    )
    assert {workload["reason"] for workload in unknown_score.json()["unplaced"]} == {"no_score"}
    assert http.get("/addonplacementscores", params={"namespace": "nowhere"}).json() == {"items": []}
    names = {
        score_object["metadata"]["name"]
        for score_object in http.get("/addonplacementscores", params={"namespace": bed.clusters[1]}).json()["items"]
    }
    assert PERFORMANCE in names


def test_unreachable_hub_is_reported_with_status_502(bed: OptimizerHarness, tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(bed.plane.kubeconfig.read_text().replace(bed.plane.url, f"https://127.0.0.1:{free_port()}"))
    service = bed.service(ManifestClient(bed.plane.session(kubeconfig)), access=OpenAccess())
    http = TestClient(make_app(service), base_url="http://localhost")
    for response in (http.get("/readyz"), http.post("/optimize", json=bed.body()), http.get("/plans")):
        assert (response.status_code, response.json()["title"]) == (502, "The hub cannot be used")
    assert http.get("/healthz").status_code == 200
