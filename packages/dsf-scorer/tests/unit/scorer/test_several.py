"""Several scorers in one service, behind prefixes, and inside other applications."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from starlette.testclient import TestClient

from dsf.scorer import ScorerApp

from .apps import TWO, mean_scorer, metric


def make_app(**values: Any) -> ScorerApp:
    return ScorerApp(
        mean_scorer(name="a", score_name="a", path="/a"), mean_scorer(name="b", score_name="b", path="/b/c"), **values
    )


def test_several_scorers_under_prefixes() -> None:
    with TestClient(make_app()) as client:
        assert client.get("/a/config").json()["scoring"]["path"] == "/a/scoring"
        assert client.get("/b/c/config").json()["scoring"]["params"]["name"] == "b"
        assert client.post("/b/c/scoring", json=TWO).status_code == 200
        assert client.get("/config").status_code == 404
        assert client.get("/healthz").status_code == 200
        assert metric(client, 'dynamic_scoring_api_requests_total{ds_score_name="b",status="200"}') == 1
        operations = [
            operation["operationId"]
            for path in client.get("/openapi.json").json()["paths"].values()
            for operation in path.values()
        ]
        assert len(operations) == len(set(operations))


def test_prefix_applies_to_all_scorers() -> None:
    with TestClient(make_app(prefix="/scorers/")) as client:
        config = client.get("/scorers/a/config").json()
        assert config["scoring"]["path"] == "/scorers/a/scoring"
        assert client.post("/scorers/a/scoring", json=TWO).status_code == 200
        assert client.get("/healthz").status_code == 200


def test_config_path_includes_the_prefix_of_a_proxy() -> None:
    with TestClient(make_app(), root_path="/outside") as client:
        assert client.get("/a/config").json()["scoring"]["path"] == "/outside/a/scoring"


def test_mounted_in_another_application() -> None:
    outer = FastAPI()
    outer.mount("/inner", make_app())
    with TestClient(outer) as client:
        assert client.get("/inner/a/config").json()["scoring"]["path"] == "/inner/a/scoring"
        assert client.post("/inner/a/scoring", json=TWO).status_code == 200


def test_custom_endpoints_are_served() -> None:
    app = make_app()

    @app.api.get("/extra")
    def extra() -> str:
        return "more"

    with TestClient(app) as client:
        assert client.get("/extra").json() == "more"
