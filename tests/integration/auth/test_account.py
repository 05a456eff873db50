"""Tokens of the agent's own account, from a scripted API server, for responses that real ones do not give on demand."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from kubernetes import client

from dsf.agent.kube import KubeSecrets
from dsf.agent.secrets import Release
from dsf.auth.secrets import SecretError
from dsf.kube.session import Session
from dsf.settings import Settings
from tests.support.httpserver import ScriptedServer, answer


def test_account_token_lifetime_is_set_by_the_api_server(settings_factory: Callable[..., Settings]) -> None:
    def token_request(**spec: object) -> dict[str, object]:
        return {"spec": spec, "status": {"token": "t0ken", "expirationTimestamp": "2001-01-01T00:00:00Z"}}

    with ScriptedServer(answer(token_request(expirationSeconds=600), 201)) as server:
        configuration = client.Configuration()
        configuration.host = server.url
        session = Session(configuration)
        secrets = KubeSecrets(session, "agents", Release(settings_factory()))
        try:
            # As with --service-account-max-token-expiration.
            assert secrets.request_account_token("thanos", 86_400, math.inf) == ("t0ken", 600.0)
            assert server.requests[0].json()["spec"] == {"audiences": ["thanos"], "expirationSeconds": 86_400}
            for strange in (
                token_request(),
                token_request(expirationSeconds="soon"),
                token_request(expirationSeconds=None),
                {"spec": {}},
            ):
                server.script(answer(strange, 201))
                with pytest.raises(SecretError, match="the response of the API server is not valid") as caught:
                    secrets.request_account_token("thanos", 600, math.inf)
                assert "t0ken" not in str(caught.value)
        finally:
            session.close()
