"""Servers that imitate those of the clouds and check the signature of the ServiceAccount's token."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs

import pytest
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import RSAKey

from dsf.api.types import AGENT_ACCOUNT, AGENT_NAMESPACE
from dsf.auth.secrets import Token
from tests.support import amazon
from tests.support.authenticatedquery import SourceAccessHarness
from tests.support.httpserver import Exchange, Handler, ScriptedServer, answer

# As in docs/sources.md, for the users' clouds.
ACCOUNT = f"system:serviceaccount:{AGENT_NAMESPACE}:{AGENT_ACCOUNT}"
POOL = "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/fleet/providers/cluster1"
ROLE = "arn:aws:iam::123456789012:role/scoring"
KEY_OF = "scoring@fleet.iam.gserviceaccount.com"
AWS_KEY = ("ASIAEXAMPLE", amazon.KEY, "sessi0n-of-role")


class Cluster:
    """The part of a managed cluster's API server that signs tokens of ServiceAccounts."""

    def __init__(self) -> None:
        self.key = RSAKey.generate_key(2048)
        self.issued_tokens: list[str] = []
        #: Seconds by which the cluster's clock is ahead.
        self.ahead = 0

    def token(self, audience: str, seconds: int, until: float = 0.0) -> Token:
        """Return a new token."""
        now = int(time.time()) + self.ahead
        times = {"iat": now, "nbf": now, "exp": now + seconds}
        claims = {"iss": "https://cluster1", "sub": ACCOUNT, "aud": [audience], **times}
        self.issued_tokens.append(jwt.encode({"alg": "RS256"}, claims, self.key))
        return Token(self.issued_tokens[-1], float(seconds))

    def is_valid_token(self, token: str, audience: str) -> bool:
        """True if this is a token of the agent's account for this audience, with a valid signature."""
        try:
            claims = jwt.decode(token, self.key).claims
            jwt.JWTClaimsRegistry().validate(claims)
        except (JoseError, ValueError):
            return False
        return bool(claims["sub"] == ACCOUNT and claims["aud"] == [audience])


class Clouds:
    """The servers of all three clouds. Tokens are named by their number."""

    def __init__(self, cluster: Cluster, context: Any) -> None:
        self.cluster = cluster
        self.tokens_issued = 0
        self.seconds = 3600
        self.server = ScriptedServer(self.give, tls=context)

    @property
    def token(self) -> str:
        """The newest token."""
        return f"cl0ud-token-{self.tokens_issued}"

    def give(self, exchange: Exchange) -> None:
        """Respond with a token to a request with a valid one."""
        form = {name: values[0] for name, values in parse_qs(exchange.request.body.decode()).items()}
        path = exchange.request.path
        if path == "/tenant/oauth2/v2.0/token":
            token_response = self._azure(form)
        elif path == "/key/token":
            token_response = self._google_key(form)
        elif path == "/v1/token":
            token_response = self._google(form)
        elif path == "/v1/projects/-/serviceAccounts/scoring@fleet.iam.gserviceaccount.com:generateAccessToken":
            token_response = self._impersonated(exchange)
        elif form.get("Action") == "AssumeRoleWithWebIdentity" and exchange.request.headers.get("Accept") == "text/xml":
            token_response = self._amazon(form)
        else:
            token_response = None
        if token_response is None:
            # As a careless server: the response contains everything that was sent.
            exchange.send(exchange.request.body + str(exchange.request.headers).encode(), 400)
        elif isinstance(token_response, bytes):
            exchange.send(token_response, Content_Type="text/xml")
        else:
            answer(token_response)(exchange)

    def _azure(self, form: dict[str, str]) -> Any:
        expected_form = {
            "grant_type": "client_credentials",
            "client_assertion_type": "urn:ietf:params:oauth:client-assertion-type:jwt-bearer",
            "client_id": "app",
            "scope": "https://prometheus.monitor.azure.com/.default",
        }
        is_valid = self.cluster.is_valid_token(form.get("client_assertion", ""), "api://AzureADTokenExchange")
        if not is_valid or not expected_form.items() <= form.items():
            return None
        self.tokens_issued += 1
        return {"token_type": "Bearer", "access_token": self.token, "expires_in": self.seconds}

    def _google(self, form: dict[str, str]) -> Any:
        expected_form = {"grant_type": "urn:ietf:params:oauth:grant-type:token-exchange", "audience": POOL}
        is_valid = self.cluster.is_valid_token(form.get("subject_token", ""), f"https:{POOL}")
        if not is_valid or not expected_form.items() <= form.items():
            return None
        self.tokens_issued += 1
        kind = "urn:ietf:params:oauth:token-type:access_token"
        token_type = {"issued_token_type": kind, "token_type": "Bearer", "expires_in": self.seconds}
        return {"access_token": self.token, **token_type}

    def _google_key(self, form: dict[str, str]) -> Any:
        try:
            claims = jwt.decode(form["assertion"], self.cluster.key).claims
            jwt.JWTClaimsRegistry().validate(claims)
        except (JoseError, ValueError):
            return None
        if (claims["iss"], claims["aud"]) != (KEY_OF, "https://oauth2.googleapis.com/token"):
            return None
        self.tokens_issued += 1
        return {"access_token": self.token, "token_type": "Bearer", "expires_in": self.seconds}

    def _impersonated(self, exchange: Exchange) -> Any:
        scopes = exchange.request.json()["scope"]
        if exchange.request.headers.get("Authorization") != f"Bearer {self.token}" or len(scopes) != 1:
            return None
        self.tokens_issued += 1
        ends = datetime.now(UTC) + timedelta(seconds=self.seconds)
        return {"accessToken": self.token, "expireTime": ends.strftime("%Y-%m-%dT%H:%M:%SZ")}

    def _amazon(self, form: dict[str, str]) -> Any:
        is_valid = self.cluster.is_valid_token(form.get("WebIdentityToken", ""), "sts.amazonaws.com")
        if not is_valid or form["RoleArn"] != ROLE:
            return None
        self.tokens_issued += 1
        key, secret, session = AWS_KEY
        ends = (datetime.now(UTC) + timedelta(seconds=self.seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")
        return (
            '<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">'
            f"<AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>{key}</AccessKeyId>"
            f"<SecretAccessKey>{secret}</SecretAccessKey><SessionToken>{session}</SessionToken>"
            f"<Expiration>{ends}</Expiration></Credentials></AssumeRoleWithWebIdentityResult>"
            "</AssumeRoleWithWebIdentityResponse>"
        ).encode()


class AgentAndClouds(NamedTuple):
    """An agent, and the servers of the clouds at one address."""

    bed: SourceAccessHarness
    clouds: Clouds
    tls: dict[str, Any]

    def methods(self, cloud: str, url: str = "", **options: Any) -> dict[str, Any]:
        """Return the method of a cloud; `url` is the server for tokens."""
        url = url or self.clouds.server.url
        methods_by_cloud: dict[str, dict[str, Any]] = {
            "azure": {"tenantID": "tenant", "clientID": "app", "authorityURL": url},
            "gcp": {"audience": POOL, "tokenURL": f"{url}/v1/token", "credentialsURL": url},
            "aws": {"region": "eu-west-1", "roleARN": ROLE, "stsURL": url},
        }
        return {cloud: {**methods_by_cloud[cloud], **options}}


POD = {"aws": {"region": "eu-west-1", "podIdentity": True}}
#: Token for EKS's agent on each node, which EKS puts into a pod.
POD_TOKEN = "p0d-token-of-eks"


def as_pod(monkeypatch: pytest.MonkeyPatch, server: ScriptedServer, file: Path) -> None:
    """Set the environment variables of a pod with an association in EKS."""
    file.write_text(f"{POD_TOKEN}\n")
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{server.url}/v1/credentials")
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(file))


def serve_pod_keys(clouds: Clouds) -> Handler:
    """Return a handler that imitates EKS's agent on the node."""

    def give(exchange: Exchange) -> None:
        if exchange.request.headers.get("Authorization") != POD_TOKEN:
            exchange.send(json.dumps(exchange.request.headers).encode(), 400)
            return
        clouds.tokens_issued += 1
        key, secret, session = AWS_KEY
        ends = (datetime.now(UTC) + timedelta(seconds=clouds.seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")
        answer({"AccessKeyId": key, "SecretAccessKey": secret, "Token": session, "Expiration": ends})(exchange)

    return give
