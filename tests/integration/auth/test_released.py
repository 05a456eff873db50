"""Secrets that a ScoringAuthentication binds to servers: no label is needed, and no other server gets them."""

from __future__ import annotations

from typing import Any

from dsf.api.summary import ScorerSummary
from dsf.cycle.cycle import Cycle
from dsf.errors import CycleError
from tests.integration.auth.bed import GOOD, Bed, TokenServer
from tests.support.httpserver import ScriptedServer

TOKEN = {"tokenSecretRef": {"name": "s", "key": "token"}}


def fetch(bed: Bed, url: str, methods: dict[str, Any], *hosts: str) -> str:
    """The reason why there is no answer, or `ok`."""
    told = bed.summary(url, methods).model_dump(by_alias=True, exclude_none=True, mode="json")
    told["sourceAccess"] |= {"authentication": "bound", "allowedHosts": list(hosts)}
    try:
        bed.stages.fetch(Cycle("one", "run", ScorerSummary.model_validate(told), float("inf")))
    except CycleError as error:
        return error.reason
    return "ok"


def test_what_is_bound_needs_no_label(bed: Bed) -> None:
    bed.put("s", usable_for="", token="t0ken")
    with ScriptedServer(GOOD) as server:
        assert fetch(bed, server.url, TOKEN, "127.0.0.1") == "ok"
        assert fetch(bed, server.url, TOKEN, f"127.0.0.1:{server.port}", "other.example") == "ok"
        assert len(server.requests) == 2


def test_a_server_that_is_not_bound_gets_nothing(bed: Bed) -> None:
    bed.put("s", token="t0ken")
    with ScriptedServer(GOOD) as server:
        assert fetch(bed, server.url, TOKEN, "other.example") == "secret_refused"
        # Nor a plain header: what the object says is for its servers.
        assert fetch(bed, server.url, {"headers": [{"name": "X-A", "value": "b"}]}, "other.example") == "secret_refused"
        assert server.requests == []


def test_a_secret_with_a_list_of_its_own_has_the_last_word(bed: Bed) -> None:
    bed.put("s", usable_for="elsewhere.example", token="t0ken")
    with ScriptedServer(GOOD) as server:
        assert fetch(bed, server.url, TOKEN, "127.0.0.1") == "secret_refused"
        assert server.requests == []


def test_the_server_of_tokens_is_bound_by_its_url(bed: Bed) -> None:
    given = TokenServer()
    bed.put("client", usable_for="", secret=given.secret)
    with given.server, ScriptedServer(GOOD) as server:
        secret = {"name": "client", "key": "secret"}
        oauth2 = {"tokenURL": f"{given.server.url}/token", "clientID": {"value": "client"}, "clientSecret": secret}
        assert fetch(bed, server.url, {"oauth2": oauth2}, f"http://127.0.0.1:{server.port}") == "ok"
    assert given.given == 1


def test_a_token_of_the_account_needs_a_cluster(bed: Bed) -> None:
    assert fetch(bed, "http://127.0.0.1:1", {"serviceAccountToken": {"audience": "a"}}, "127.0.0.1") == "secret_missing"
