"""Secrets that a ScoringAuthentication binds to servers: no label is needed, and no other server gets them."""

from __future__ import annotations

from typing import Any

import pytest

from dsf.api.summary import ScorerSummary
from dsf.cycle.stages import Cycle
from dsf.errors import CycleError
from tests.integration.http.test_proxies import Proxy
from tests.support.authenticatedquery import GOOD, SourceAccessHarness, TokenServer
from tests.support.httpserver import ScriptedServer, answer

TOKEN = {"tokenSecretRef": {"name": "s", "key": "token"}}


def fetch(bed: SourceAccessHarness, url: str, methods: dict[str, Any], *hosts: str, **access_fields: Any) -> str:
    """Return the reason of the failure, or `ok`; `access_fields` change the access of the source."""
    summary = bed.summary(url, methods).model_dump(by_alias=True, exclude_none=True, mode="json")
    summary["sourceAccess"] |= {"authentication": "bound", "allowedHosts": list(hosts), **access_fields}
    try:
        bed.stages.fetch(Cycle("one", "run", ScorerSummary.model_validate(summary), float("inf")))
    except CycleError as error:
        return error.reason
    return "ok"


def test_bound_secret_needs_no_label(bed: SourceAccessHarness) -> None:
    bed.put("s", usable_for="", token="t0ken")
    with ScriptedServer(GOOD) as server:
        assert fetch(bed, server.url, TOKEN, "127.0.0.1") == "ok"
        assert fetch(bed, server.url, TOKEN, f"127.0.0.1:{server.port}", "other.example") == "ok"
        assert len(server.requests) == 2


def test_unbound_server_gets_neither_secret_nor_header(bed: SourceAccessHarness) -> None:
    bed.put("s", token="t0ken")
    with ScriptedServer(GOOD) as server:
        assert fetch(bed, server.url, TOKEN, "other.example") == "secret_refused"
        # Plain headers are not sent either: the object's values are for its servers.
        assert fetch(bed, server.url, {"headers": [{"name": "X-A", "value": "b"}]}, "other.example") == "secret_refused"
        assert server.requests == []


def test_label_of_a_secret_overrides_the_binding(bed: SourceAccessHarness) -> None:
    bed.put("s", usable_for="elsewhere.example", token="t0ken")
    with ScriptedServer(GOOD) as server:
        assert fetch(bed, server.url, TOKEN, "127.0.0.1") == "secret_refused"
        assert server.requests == []


@pytest.mark.parametrize(("url", "tls"), [("http", {}), ("https", {"insecureSkipVerify": True})])
@pytest.mark.parametrize("methods", [TOKEN, {"headers": [{"name": "X-A", "secretRef": {"name": "s", "key": "token"}}]}])
def test_proxy_that_can_read_a_secret_must_be_released(
    bed: SourceAccessHarness, url: str, tls: dict[str, Any], methods: dict[str, Any]
) -> None:
    url = f"{url}://prom.test:1"
    bed.put("s", usable_for="prom.test", token="t0ken")
    with Proxy() as proxy:
        through = {"proxyURL": f"http://{proxy.address}", "tls": tls}
        assert fetch(bed, url, methods, "prom.test", **through) == "secret_refused"
        assert proxy.asked == []
        # The Secret's owner may release it for the proxy; if nobody does, the object may.
        for usable_for in (f"prom.test, {proxy.address}", ""):
            before = len(proxy.asked)
            bed.put("s", usable_for=usable_for, token="t0ken")
            assert fetch(bed, url, methods, "prom.test", **through) != "secret_refused"
            assert len(proxy.asked) > before


def test_proxy_that_can_read_a_client_secret_must_be_released(bed: SourceAccessHarness) -> None:
    secret = {"name": "s", "key": "token"}
    methods = {"oauth2": {"tokenURL": "http://sso.test:1/token", "clientID": {"value": "a"}, "clientSecret": secret}}
    with ScriptedServer(answer("no", 403)) as proxy:
        through = {"proxyURL": proxy.url}
        for usable_for, reason in (("", "secret_refused"), (f", 127.0.0.1:{proxy.port}", "auth_failed")):
            assert proxy.requests == []
            bed.put("s", usable_for=f"prom.test, sso.test{usable_for}", token="t0ken")
            assert fetch(bed, "https://prom.test:1", methods, "prom.test", **through) == reason
        assert len(proxy.requests) == 1


def test_proxy_that_sees_no_secret_needs_no_release(bed: SourceAccessHarness) -> None:
    bed.put("s", usable_for="prom.test", token="t0ken")
    with Proxy() as proxy:
        through = {"proxyURL": f"http://{proxy.address}"}
        assert fetch(bed, "https://prom.test:1", TOKEN, "prom.test", **through) != "secret_refused"
        assert proxy.asked[0].startswith("CONNECT prom.test:1")


def test_token_server_is_bound_by_its_url(bed: SourceAccessHarness) -> None:
    token_server = TokenServer()
    bed.put("client", usable_for="", secret=token_server.secret)
    with token_server.server, ScriptedServer(GOOD) as server:
        secret = {"name": "client", "key": "secret"}
        oauth2 = {
            "tokenURL": f"{token_server.server.url}/token",
            "clientID": {"value": "client"},
            "clientSecret": secret,
        }
        assert fetch(bed, server.url, {"oauth2": oauth2}, f"http://127.0.0.1:{server.port}") == "ok"
    assert token_server.tokens_issued == 1


def test_service_account_token_needs_a_cluster(bed: SourceAccessHarness) -> None:
    assert fetch(bed, "http://127.0.0.1:1", {"serviceAccountToken": {"audience": "a"}}, "127.0.0.1") == "secret_missing"
