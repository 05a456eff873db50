"""OAuth2's client credentials: one token for all, renewed before its end and after a 401; bad servers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.auth.bed import Bed, TokenServer, asks_for, ref
from tests.support.httpserver import Handler, ScriptedServer, answer, hang
from tests.support.wait import wait_for


@pytest.fixture
def tokens(bed: Bed) -> Iterator[TokenServer]:
    """A server of tokens, and the client's secret."""
    given = TokenServer()
    bed.put("client", id="client", secret=given.secret)
    with given.server:
        yield given


@pytest.fixture
def source(tokens: TokenServer) -> Iterator[ScriptedServer]:
    """Takes the newest token only."""
    with ScriptedServer(asks_for("Authorization", lambda: f"Bearer {tokens.token}")) as running:
        yield running


def methods(tokens: TokenServer | ScriptedServer, **more: Any) -> dict[str, Any]:
    """The method with this server of tokens."""
    server = tokens.server if isinstance(tokens, TokenServer) else tokens
    return {
        "oauth2": {
            "tokenURL": f"{server.url}/token",
            "clientID": ref("client", "id"),
            "clientSecret": {"name": "client", "key": "secret"},
            **more,
        }
    }


@pytest.mark.parametrize("how", ["Basic", "Post"])
def test_one_token_for_all(bed: Bed, tokens: TokenServer, source: ScriptedServer, how: str) -> None:
    told = methods(tokens, clientAuthentication=how, scopes=["a", "b"], audience="metrics")
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(bed.fetch(source.url, told))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (found, tokens.given) == ([1] * 8, 1)
    (request,) = tokens.server.requests
    assert b"scope=a+b&audience=metrics" in request.body
    assert "Authorization: Bearer ***" in bed.shown


def test_renewed_before_its_end(bed: Bed, tokens: TokenServer, source: ScriptedServer) -> None:
    tokens.seconds = 2
    told = methods(tokens)

    def is_renewed() -> bool:
        # Not once is the source asked with an ended one.
        assert bed.fetch(source.url, told) == 1
        return tokens.given >= 3

    wait_for(is_renewed, 20, "a third token")
    assert source.requests[0].headers["Authorization"] == "Bearer token-1-of-server"


def test_a_good_token_outlives_its_server(bed: Bed, tokens: TokenServer, source: ScriptedServer) -> None:
    tokens.seconds = 30
    told = methods(tokens)
    assert bed.fetch(source.url, told) == 1
    tokens.server.script(answer("down", 503))
    assert bed.fetch(source.url, told) == 1


def test_after_a_401_it_is_got_anew_once(bed: Bed, tokens: TokenServer, source: ScriptedServer) -> None:
    told = methods(tokens)
    assert bed.fetch(source.url, told) == 1
    # The server of tokens starts anew and knows its old ones no more.
    tokens.given += 10
    assert bed.fetch(source.url, told) == 1
    assert len(tokens.server.requests) == 2
    source.script(answer("no such audience", 401))
    error = bed.failure(source.url, told)
    assert error.reason == "unauthorized"
    assert "no such audience; it was asked with a token that was got anew for it" in error.message
    assert len(tokens.server.requests) == 3


def test_another_secret_counts_at_once(bed: Bed, tokens: TokenServer, source: ScriptedServer) -> None:
    told = methods(tokens)
    bed.fetch(source.url, told)
    tokens.secret = "an0ther-secret"
    bed.put("client", secret=tokens.secret)
    assert bed.fetch(source.url, told) == 1
    assert tokens.given == 2


@pytest.mark.parametrize(
    ("server", "said"),
    [
        (
            answer("<html>log in</html>", Content_Type="text/html"),
            "the answer is not JSON; it starts with <html>",
        ),
        (answer({"error": "invalid_scope"}, 400), 'HTTP 400: {"error": "invalid_scope"}'),
        (answer({"token": "x"}), "the answer has no access_token"),
        (answer({"access_token": "two\nlines"}), "the answer has no access_token"),
        (answer({"access_token": "x", "token_type": "mac"}), "its token_type is not Bearer"),
        (answer([1]), "the answer has no access_token"),
        (answer(b"x" * 100_000), "more than the 65536 bytes allowed"),
        (answer("", 302, Location="http://127.0.0.1:1/"), "redirects are not followed"),
        (hang, "no complete answer"),
    ],
)
def test_a_server_that_gives_none(bed: Bed, server: Handler, said: str) -> None:
    bed.put("client", id="client", secret="s3cret-of-client")
    bed.seconds = 2 if server is hang else 30
    with ScriptedServer(server) as running, ScriptedServer(answer("never asked")) as source:
        error = bed.failure(source.url, methods(running))
        assert (error.reason, source.requests) == ("auth_failed", [])
    assert "no token from the OAuth2 server" in error.message
    assert said in error.message


def test_a_server_that_repeats_the_secret(bed: Bed, tokens: TokenServer, source: ScriptedServer) -> None:
    bed.put("client", secret="wr0ng-secret")
    error = bed.failure(source.url, methods(tokens))
    assert error.reason == "auth_failed"
    assert "HTTP 401" in error.message
    assert "wr0ng-secret" not in error.message


def test_a_secret_goes_to_a_server_of_tokens_that_it_is_released_for(bed: Bed, tokens: TokenServer) -> None:
    bed.put("client", usable_for="127.0.0.1:1", secret=tokens.secret, id="client")
    error = bed.failure("http://127.0.0.1:1", methods(tokens))
    assert error.reason == "secret_refused"
    assert tokens.server.requests == []
