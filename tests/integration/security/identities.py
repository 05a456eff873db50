"""A scorer that asks as the agent's own account: with its token, and with what clouds give for one. And the way to one
of its sources goes through a proxy that wants a password.

As a program this is the agent, whose account has tokens without a cluster:
`python -m tests.integration.security.identities`.
"""

from __future__ import annotations

import base64
import contextlib
import json
import ssl
from typing import Any, Final, NoReturn

from tests.support.httpserver import Exchange, Handler, ScriptedServer, answer

NAME: Final = "identities"
_POOL: Final = "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/fleet/providers/c1"
_ROLE: Final = "arn:aws:iam::123456789012:role/scoring"
#: Audience -> the token of the account for it.
ACCOUNT_TOKENS: Final = {
    "thanos": "canary-account-31f7c0aa",
    "api://AzureADTokenExchange": "canary-azure-assertion-bb02",
    f"https:{_POOL}": "canary-google-assertion-5c9e",
    "sts.amazonaws.com": "canary-amazon-assertion-e713",
}
CANARIES: Final = {
    **{f"account token for {audience}": token for audience, token in ACCOUNT_TOKENS.items()},
    "azure token": "canary-azure-token-0c44d1",
    "google federated token": "canary-google-federated-9b27",
    "amazon role key": "canary-amazon-role-key-a1f0",
    "amazon role session": "canary-amazon-role-session-66d8",
    "proxy password": "canary-proxy-password-f35b",
}
#: No address of this machine: agents ask it through their proxy.
_BEHIND_PROXY: Final = "http://192.0.2.1"


class Identities:
    """The servers to which such a scorer sends requests."""

    def __init__(self, stack: contextlib.ExitStack, series: Handler, tls: ssl.SSLContext) -> None:
        """Prepare the servers; `tls` is for those of tokens, because Azure's requires it."""
        bearers = {
            f"Bearer {token}"
            for token in (ACCOUNT_TOKENS["thanos"], CANARIES["azure token"], CANARIES["google federated token"])
        }

        def ask(exchange: Exchange) -> None:
            authorization = exchange.request.headers.get("Authorization", "")
            session = exchange.request.headers.get("X-Amz-Security-Token")
            signed = authorization.startswith("AWS4-HMAC-SHA256 ") and session == CANARIES["amazon role session"]
            (series if authorization in bearers or signed else answer("who are you?", 401))(exchange)

        user = base64.b64encode(f"agent:{CANARIES['proxy password']}".encode()).decode()

        def forward(exchange: Exchange) -> None:
            is_authorized = exchange.request.headers.get("Proxy-Authorization") == f"Basic {user}"
            (series if is_authorized and exchange.http.path.startswith(_BEHIND_PROXY) else answer("whose?", 407))(
                exchange
            )

        self._source = stack.enter_context(ScriptedServer(ask))
        self._proxy = stack.enter_context(ScriptedServer(forward))
        self._clouds = stack.enter_context(ScriptedServer(_give, tls=tls))

    @property
    def proxy(self) -> str:
        """Value of HTTP_PROXY."""
        return f"http://agent:{CANARIES['proxy password']}@127.0.0.1:{self._proxy.port}"

    def manifests(self, group: str, scorer: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the DynamicScorer, derived from a similar one, and the ScoringAuthentications that it names."""
        url = self._clouds.url
        auth_methods: dict[str, dict[str, Any]] = {
            "account": {"serviceAccountToken": {"audience": "thanos"}},
            "azure": {"azure": {"tenantID": "tenant", "clientID": "app", "authorityURL": url}},
            "google": {"gcp": {"audience": _POOL, "tokenURL": f"{url}/v1/token"}},
            "amazon": {"aws": {"region": "eu-west-1", "roleARN": _ROLE, "stsURL": url}},
        }
        common = {"allowedHosts": ["127.0.0.1"], "tls": {"caRef": {"name": "private-ca"}}}
        secrets_and_auths = [
            {
                "apiVersion": group,
                "kind": "ScoringAuthentication",
                "metadata": {"name": name},
                "spec": {**common, **methods},
            }
            for name, methods in auth_methods.items()
        ]
        source = {"type": "Prometheus", "params": {"query": "up", "range": 600, "step": 60}}
        ref = "authenticationRef"
        sources = [
            *(
                {"name": method_name, **source, "host": self._source.url, "auth": {ref: {"name": method_name}}}
                for method_name in auth_methods
            ),
            {"name": "proxied", **source, "host": _BEHIND_PROXY},
        ]
        spec = {name: value for name, value in scorer["spec"].items() if name != "source"}
        # Each cycle calls five servers, for which one second is too short on a busy machine.
        spec["scoring"] = {**spec["scoring"], "params": {"name": "identities-score", "interval": 5}}
        return [*secrets_and_auths, {**scorer, "metadata": {"name": NAME}, "spec": {**spec, "sources": sources}}]


def _give(exchange: Exchange) -> None:
    """Respond with a cloud's token to one of the account, and otherwise with the received data, as a careless server
    does.
    """
    body = exchange.request.body.decode()
    token_audience = next((audience for audience, token in ACCOUNT_TOKENS.items() if token in body), "")
    bearer = {"token_type": "Bearer", "expires_in": 3600}
    if token_audience.startswith("api:"):
        answer({**bearer, "access_token": CANARIES["azure token"]})(exchange)
    elif token_audience.startswith("https:"):
        kind = "urn:ietf:params:oauth:token-type:access_token"
        token_response = {**bearer, "access_token": CANARIES["google federated token"], "issued_token_type": kind}
        answer(token_response)(exchange)
    elif token_audience.startswith("sts."):
        key, session = CANARIES["amazon role key"], CANARIES["amazon role session"]
        exchange.send(
            (
                '<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">'
                "<AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>ASIAEXAMPLE</AccessKeyId>"
                f"<SecretAccessKey>{key}</SecretAccessKey><SessionToken>{session}</SessionToken>"
                "<Expiration>2999-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleWithWebIdentityResult>"
                "</AssumeRoleWithWebIdentityResponse>"
            ).encode(),
            Content_Type="text/xml",
        )
    else:
        exchange.send(json.dumps({"refused": body, "with": exchange.request.headers}).encode(), 400)


def _agent() -> NoReturn:
    from dsf.agent import secrets
    from dsf.auth.secrets import Token
    from dsf.process.launch import launch

    def account_token(_: object, audience: str, seconds: int, until: float) -> Token:
        return Token(ACCOUNT_TOKENS[audience], float(seconds))

    secrets.FileSecrets.request_account_token = account_token  # type: ignore[method-assign]
    launch("agent", "dsf.agent.main:run")


if __name__ == "__main__":
    _agent()
