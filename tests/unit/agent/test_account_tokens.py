"""Tokens of the account without rights, and audiences that are refused."""

from __future__ import annotations

import base64
import json
import math
from typing import Any, cast

import pytest

from dsf.agent.kube import KubeSecrets, parse_issuer_and_audiences
from dsf.agent.secrets import Release
from dsf.auth.secrets import SecretError
from dsf.kube.session import Session
from dsf.settings import Settings


def jwt(**claims: object) -> str:
    payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"header.{payload}.signature"


class ApiServer:
    """Creates tokens instead of a session."""

    def __init__(self, token: str) -> None:
        self.token = token
        self.paths: list[str] = []

    def get_bearer_token(self) -> str:
        return self.token

    def request(self, method: str, path: str, **_: Any) -> dict[str, Any]:
        self.paths.append(f"{method} {path}")
        return {"status": {"token": "t"}, "spec": {"expirationSeconds": 600}}


def secrets(server: ApiServer) -> KubeSecrets:
    return KubeSecrets(cast("Session", server), "agents", Release(Settings(role="agent", cluster="c")))


OWN = jwt(iss="https://issuer.example.com", aud=["https://api.example.com", "k3s"])


@pytest.mark.parametrize(
    "audience",
    [
        "https://issuer.example.com",
        "https://api.example.com",
        "k3s",
        "https://kubernetes.default.svc",
        "https://kubernetes.default.svc.cluster.local",
        "kubernetes.default.svc",
        "kubernetes",
    ],
)
def test_token_for_the_api_server_is_refused(audience: str) -> None:
    server = ApiServer(OWN)
    with pytest.raises(SecretError, match="audience of this cluster's API server") as raised:
        secrets(server).request_account_token(audience, 600, math.inf)
    assert raised.value.reason == "secret_refused"
    assert server.paths == []


def test_token_for_another_server_is_of_the_account_without_rights() -> None:
    server = ApiServer(OWN)
    assert secrets(server).request_account_token("thanos", 600, math.inf).value == "t"
    assert server.paths == [
        "POST /api/v1/namespaces/agents/serviceaccounts/dynamic-scoring-agent-tokens/token",
    ]


@pytest.mark.parametrize(
    ("token", "audiences"),
    [
        (OWN, {"https://issuer.example.com", "https://api.example.com", "k3s"}),
        (jwt(aud="one"), {"one"}),
        (jwt(iss=7, aud=[8, "two"]), {"two"}),
        (jwt(), set()),
        ("", set()),
        ("a.b.c", set()),
        ("sha256~opaque", set()),
        (f"a.{base64.urlsafe_b64encode(b'[1]').decode()}.c", set()),
    ],
)
def test_audiences_of_a_token(token: str, audiences: set[str]) -> None:
    assert parse_issuer_and_audiences(token) == audiences
