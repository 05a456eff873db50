"""Names by which the exporter is asked, which has no login."""

from __future__ import annotations

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from dsf.http.hosts import ScrapedHosts

app = FastAPI()


@app.get("/metrics")
@app.get("/healthz")
def get() -> str:
    return "got"


@pytest.mark.parametrize(
    ("host", "path", "status"),
    [
        ("10.1.2.3:8080", "/metrics", 200),
        ("[2001:db8::1]:8080", "/metrics", 200),
        ("localhost:8080", "/metrics", 200),
        ("exporter:8080", "/metrics", 200),
        ("dynamic-scoring-exporter.ocm.svc:8080", "/metrics", 200),
        ("dynamic-scoring-exporter.ocm.svc.cluster.local:8080", "/metrics", 200),
        ("Scores.example.com", "/metrics", 200),
        ("attacker.example.com:8080", "/metrics", 421),
        ("svc.example.com", "/metrics", 421),
        ("[::1", "/metrics", 421),
        ("attacker.example.com", "/healthz", 200),
    ],
)
def test_a_foreign_name_is_refused(host: str, path: str, status: int) -> None:
    with TestClient(ScrapedHosts(app, ["scores.example.com"])) as client:
        answer = client.get(path, headers={"Host": host})
    assert answer.status_code == status
    assert ("DSF_HOST_NAMES" in answer.text) == (status == 421)
