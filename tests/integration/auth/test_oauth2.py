"""OAuth2's client credentials with servers that misbehave; `test_authserver.py` has a correct one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from dsf.auth import tokencache
from tests.support.authenticatedquery import SourceAccessHarness, TokenServer, make_secret_ref, require_header
from tests.support.httpserver import Exchange, Handler, ScriptedServer, answer, hang


@pytest.fixture
def tokens(bed: SourceAccessHarness) -> Iterator[TokenServer]:
    """A server of tokens, and the client's secret."""
    token_server = TokenServer()
    bed.put("client", id="client", secret=token_server.secret)
    with token_server.server:
        yield token_server


@pytest.fixture
def source(tokens: TokenServer) -> Iterator[ScriptedServer]:
    """Takes the newest token only."""
    with ScriptedServer(require_header("Authorization", lambda: f"Bearer {tokens.token}")) as running:
        yield running


def methods(tokens: TokenServer | ScriptedServer, **options: Any) -> dict[str, Any]:
    """Return the method with this server of tokens."""
    server = tokens.server if isinstance(tokens, TokenServer) else tokens
    return {
        "oauth2": {
            "tokenURL": f"{server.url}/token",
            "clientID": make_secret_ref("client", "id"),
            "clientSecret": {"name": "client", "key": "secret"},
            **options,
        }
    }


def test_valid_oauth2_token_is_used_while_its_server_fails(
    bed: SourceAccessHarness, tokens: TokenServer, source: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Renewed from the first moment on.
    monkeypatch.setattr(tokencache, "_RENEWAL_SHARE", 0.0)
    tokens.seconds = 30
    source_methods = methods(tokens)
    assert bed.fetch(source.url, source_methods) == 1
    tokens.server.script(answer("down", 503))
    assert bed.fetch(source.url, source_methods) == 1
    assert len(tokens.server.requests) == 2


def test_valid_oauth2_token_is_used_while_its_server_hangs(
    bed: SourceAccessHarness, tokens: TokenServer, source: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokencache, "_RENEWAL_SHARE", 0.0)
    monkeypatch.setattr(tokencache, "_MAX_RENEWAL_SECONDS", 1.0)
    tokens.seconds = 59
    source_methods = methods(tokens)
    assert bed.fetch(source.url, source_methods) == 1
    tokens.server.script(hang)
    assert bed.fetch(source.url, source_methods) == 1
    assert len(tokens.server.requests) == 2


@pytest.mark.parametrize(
    "seconds", [10**400, "9" * 400, float("nan"), None, -1], ids=["huge", "as text", "nan", "null", "negative"]
)
def test_invalid_token_lifetime_is_tolerated(bed: SourceAccessHarness, source: ScriptedServer, seconds: Any) -> None:
    bed.put("client", id="client", secret="s3cret-of-client")
    token_response = {"access_token": "token-0-of-server", "token_type": "Bearer", "expires_in": seconds}
    with ScriptedServer(answer(token_response)) as running:
        assert bed.fetch(source.url, methods(running)) == 1


@pytest.mark.parametrize("as_json", [True, False])
def test_renewed_token_echoed_by_the_source_is_not_shown(
    bed: SourceAccessHarness, tokens: TokenServer, as_json: bool
) -> None:
    source_methods = methods(tokens)

    def repeat(exchange: Exchange) -> None:
        authorization = exchange.request.headers["Authorization"]
        if authorization == "Bearer token-1-of-server":
            exchange.send(b"", 401)
        else:
            text = f"not a good token: {authorization}"
            exchange.send(json.dumps({"status": "error", "error": text}).encode() if as_json else text.encode())

    with ScriptedServer(repeat) as source:
        error = bed.failure(source.url, source_methods)
        assert [request.headers["Authorization"] for request in source.requests][1:] == ["Bearer token-2-of-server"]
    assert "token-2" not in error.message
    assert "token-1" not in error.message
    assert error.reason == "bad_answer"


def test_changed_client_secret_is_used_at_once(
    bed: SourceAccessHarness, tokens: TokenServer, source: ScriptedServer
) -> None:
    source_methods = methods(tokens)
    bed.fetch(source.url, source_methods)
    tokens.secret = "an0ther-secret"
    bed.put("client", secret=tokens.secret)
    assert bed.fetch(source.url, source_methods) == 1
    assert tokens.tokens_issued == 2


@pytest.mark.parametrize(
    ("server", "expected_message"),
    [
        (
            answer("<html>log in</html>", Content_Type="text/html"),
            "HTTP 200, not JSON: a response (text/html, 19 bytes) that is not shown",
        ),
        (answer({"error": "invalid_scope", "error_description": "no b"}, 400), "HTTP 400: invalid_scope: no b"),
        (answer("no", 503), "HTTP 503: a response ("),
        (answer({"token": "x"}), "the response has no access_token"),
        (answer({"access_token": "two\nlines"}), "the response has no access_token"),
        (answer({"access_token": "x", "token_type": "mac"}), "its token_type is not Bearer"),
        (answer([1]), "the response has no access_token"),
        (answer(b"x" * 100_000), "more than the 65536 bytes allowed"),
        (answer("", 302, Location="http://127.0.0.1:1/"), "redirects are not followed"),
        (hang, "no complete response"),
    ],
)
def test_oauth2_server_without_a_token_fails_as_auth_failed(
    bed: SourceAccessHarness, server: Handler, expected_message: str
) -> None:
    bed.put("client", id="client", secret="s3cret-of-client")
    with ScriptedServer(server) as running, ScriptedServer(answer("never asked")) as source:
        # Longer if the server was not called in that time, because the machine may be busy.
        for seconds in (2, 8, 30) if server is hang else (30,):
            bed.seconds = seconds
            error = bed.failure(source.url, methods(running))
            if running.requests:
                break
        assert (error.reason, source.requests) == ("auth_failed", [])
    assert "no token from the OAuth2 server" in error.message
    assert expected_message in error.message


@pytest.mark.parametrize("how", ["Basic", "Post"])
@pytest.mark.parametrize("as_error", [True, False])
def test_client_secret_echoed_in_any_encoding_is_not_shown(bed: SourceAccessHarness, how: str, as_error: bool) -> None:
    secret = "a/b+Zk93 =kd"
    bed.put("client", id="client", secret=secret)

    def repeat(exchange: Exchange) -> None:
        client_credentials = exchange.request.headers.get("Authorization", "") + exchange.request.body.decode()
        exchange.send(json.dumps({"error": client_credentials} if as_error else client_credentials).encode(), 401)

    with ScriptedServer(repeat) as running:
        # The id is no secret, so it must not be the reason for withholding the message.
        source_methods = methods(running, clientAuthentication=how, clientID={"value": "client"})
        error = bed.failure("http://127.0.0.1:1", source_methods)
        (request,) = running.requests
    basic_credentials = request.headers.get("Authorization", "Basic ").removeprefix("Basic ")
    forms = (secret, "a%2Fb%2BZk93%20%3Dkd", "a%2Fb%2BZk93+%3Dkd", "Zk93")
    assert [form for form in (*forms, basic_credentials) if form and form in error.message] == []
    assert "HTTP 401" in error.message


def test_query_parameter_echoed_by_the_source_is_not_shown(bed: SourceAccessHarness) -> None:
    bed.put("keys", token="k3y of a+b Zk93")

    def repeat(exchange: Exchange) -> None:
        exchange.send(exchange.http.path.encode(), 400)

    with ScriptedServer(repeat) as source:
        error = bed.failure(source.url, {"queryParameters": [{"name": "key", **make_secret_ref("keys")}]})
    assert (error.stage, "Zk93" in error.message) == ("fetch", False)


#: A new token, which cannot be masked yet.
NEW = "eyJuZXctdG9rZW4iOiJvZi1zZXJ2ZXIifQ"


@pytest.mark.parametrize(
    "server",
    [
        answer(f"access_token={NEW}&token_type=bearer", Content_Type="application/x-www-form-urlencoded"),
        answer(f'{{"access_token": "{NEW}"}}x'),
        answer({"access_token": NEW, "token_type": "Bearer"}, 201),
        answer({"access_token": NEW, "token_type": "Bearer"}, 400),
        answer({"error": "server_error", "access_token": NEW}, 500),
        answer({"error": NEW}, 202),
        answer({"token": NEW}),
    ],
)
def test_token_in_an_invalid_oauth2_response_is_not_shown(bed: SourceAccessHarness, server: Handler) -> None:
    bed.put("client", id="client", secret="s3cret-of-client")
    with ScriptedServer(server) as running:
        error = bed.failure("http://127.0.0.1:1", methods(running))
    assert error.reason == "auth_failed"
    assert NEW[:8] not in error.message


def test_client_secret_echoed_by_the_token_server_is_not_shown(
    bed: SourceAccessHarness, tokens: TokenServer, source: ScriptedServer
) -> None:
    bed.put("client", secret="wr0ng-secret")
    error = bed.failure(source.url, methods(tokens))
    assert error.reason == "auth_failed"
    assert "HTTP 401" in error.message
    assert "wr0ng-secret" not in error.message


def test_client_secret_is_withheld_from_an_unreleased_token_server(
    bed: SourceAccessHarness, tokens: TokenServer
) -> None:
    bed.put("client", usable_for="127.0.0.1:1", secret=tokens.secret, id="client")
    error = bed.failure("http://127.0.0.1:1", methods(tokens))
    assert error.reason == "secret_refused"
    assert tokens.server.requests == []
