"""OAuth2 client credentials with token servers that misbehave; `test_authserver.py` has a correct token server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from dsf.auth import tokencache
from tests.support.authenticatedquery import SourceAccessHarness, TokenServer, make_secret_ref, require_header
from tests.support.httpserver import Exchange, Handler, ScriptedServer, answer, hang


@pytest.fixture
def token_server(bed: SourceAccessHarness) -> Iterator[TokenServer]:
    """Yield a token server that is running, and whose client id and client secret are in the Secret `client`."""
    server = TokenServer()
    bed.put("client", id="client", secret=server.secret)
    with server.server:
        yield server


@pytest.fixture
def source(token_server: TokenServer) -> Iterator[ScriptedServer]:
    """Yield a source that accepts only the newest token."""
    with ScriptedServer(require_header("Authorization", lambda: f"Bearer {token_server.token}")) as server:
        yield server


def make_methods(token_server: TokenServer | ScriptedServer, **options: Any) -> dict[str, Any]:
    """Return the methods of authentication: OAuth2 with this token server. `options` are more fields of `oauth2`."""
    server = token_server.server if isinstance(token_server, TokenServer) else token_server
    return {
        "oauth2": {
            "tokenURL": f"{server.url}/token",
            "clientID": make_secret_ref("client", "id"),
            "clientSecret": {"name": "client", "key": "secret"},
            **options,
        }
    }


def test_valid_oauth2_token_is_used_while_its_server_fails(
    bed: SourceAccessHarness, token_server: TokenServer, source: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The token is due for renewal at once, because its lifetime is shorter than the renewal margin of 60 s.
    monkeypatch.setattr(tokencache, "_RENEWAL_SHARE", 0.0)
    token_server.seconds = 30
    source_methods = make_methods(token_server)
    assert bed.fetch(source.url, source_methods) == 1
    token_server.server.script(answer("down", 503))
    assert bed.fetch(source.url, source_methods) == 1
    assert len(token_server.server.requests) == 2


def test_valid_oauth2_token_is_used_while_its_server_hangs(
    bed: SourceAccessHarness, token_server: TokenServer, source: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The token is due for renewal at once, because its lifetime is shorter than the renewal margin of 60 s.
    monkeypatch.setattr(tokencache, "_RENEWAL_SHARE", 0.0)
    monkeypatch.setattr(tokencache, "_MAX_RENEWAL_SECONDS", 1.0)
    token_server.seconds = 59
    source_methods = make_methods(token_server)
    assert bed.fetch(source.url, source_methods) == 1
    token_server.server.script(hang)
    assert bed.fetch(source.url, source_methods) == 1
    assert len(token_server.server.requests) == 2


@pytest.mark.parametrize(
    "lifetime", [10**400, "9" * 400, float("nan"), None, -1], ids=["huge", "as text", "nan", "null", "negative"]
)
def test_invalid_token_lifetime_is_tolerated(bed: SourceAccessHarness, source: ScriptedServer, lifetime: Any) -> None:
    bed.put("client", id="client", secret="s3cret-of-client")
    token_response = {"access_token": "token-0-of-server", "token_type": "Bearer", "expires_in": lifetime}
    with ScriptedServer(answer(token_response)) as oauth2_server:
        assert bed.fetch(source.url, make_methods(oauth2_server)) == 1


@pytest.mark.parametrize("as_json", [True, False])
def test_renewed_token_echoed_by_the_source_is_not_shown(
    bed: SourceAccessHarness, token_server: TokenServer, as_json: bool
) -> None:
    source_methods = make_methods(token_server)

    def reject_first_and_echo_second_token(exchange: Exchange) -> None:
        authorization = exchange.request.headers["Authorization"]
        if authorization == "Bearer token-1-of-server":
            exchange.send(b"", 401)
        else:
            text = f"not a good token: {authorization}"
            exchange.send(json.dumps({"status": "error", "error": text}).encode() if as_json else text.encode())

    with ScriptedServer(reject_first_and_echo_second_token) as source:
        error = bed.failure(source.url, source_methods)
        assert [request.headers["Authorization"] for request in source.requests][1:] == ["Bearer token-2-of-server"]
    assert "token-2" not in error.message
    assert "token-1" not in error.message
    assert error.reason == "bad_answer"


def test_changed_client_secret_is_used_at_once(
    bed: SourceAccessHarness, token_server: TokenServer, source: ScriptedServer
) -> None:
    source_methods = make_methods(token_server)
    bed.fetch(source.url, source_methods)
    token_server.secret = "an0ther-secret"
    bed.put("client", secret=token_server.secret)
    assert bed.fetch(source.url, source_methods) == 1
    assert token_server.tokens_issued == 2


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
    with ScriptedServer(server) as oauth2_server, ScriptedServer(answer("no request arrives here")) as source:
        # Retry with more seconds if the request did not reach the token server in time: the machine may be busy.
        for seconds in (2, 8, 30) if server is hang else (30,):
            bed.seconds = seconds
            error = bed.failure(source.url, make_methods(oauth2_server))
            if oauth2_server.requests:
                break
        assert (error.reason, source.requests) == ("auth_failed", [])
    assert "no token from the OAuth2 server" in error.message
    assert expected_message in error.message


@pytest.mark.parametrize("client_authentication", ["Basic", "Post"])
@pytest.mark.parametrize("in_error_field", [True, False])
def test_client_secret_echoed_in_any_encoding_is_not_shown(
    bed: SourceAccessHarness, client_authentication: str, in_error_field: bool
) -> None:
    secret = "a/b+Zk93 =kd"
    bed.put("client", id="client", secret=secret)

    def echo_client_credentials(exchange: Exchange) -> None:
        client_credentials = exchange.request.headers.get("Authorization", "") + exchange.request.body.decode()
        body = {"error": client_credentials} if in_error_field else client_credentials
        exchange.send(json.dumps(body).encode(), 401)

    with ScriptedServer(echo_client_credentials) as oauth2_server:
        # The client id is a plain value here, because an echoed id from a Secret would hide the message, too.
        source_methods = make_methods(
            oauth2_server, clientAuthentication=client_authentication, clientID={"value": "client"}
        )
        error = bed.failure("http://127.0.0.1:1", source_methods)
        (request,) = oauth2_server.requests
    basic_credentials = request.headers.get("Authorization", "Basic ").removeprefix("Basic ")
    # Both kinds of URL encoding, and a part of the secret that no encoding changes.
    encoded_secrets = (secret, "a%2Fb%2BZk93%20%3Dkd", "a%2Fb%2BZk93+%3Dkd", "Zk93", basic_credentials)
    assert [text for text in encoded_secrets if text and text in error.message] == []
    assert "HTTP 401" in error.message


def test_query_parameter_echoed_by_the_source_is_not_shown(bed: SourceAccessHarness) -> None:
    bed.put("keys", token="k3y of a+b Zk93")

    def echo_path(exchange: Exchange) -> None:
        exchange.send(exchange.http.path.encode(), 400)

    with ScriptedServer(echo_path) as source:
        error = bed.failure(source.url, {"queryParameters": [{"name": "key", **make_secret_ref("keys")}]})
    assert (error.stage, "Zk93" in error.message) == ("fetch", False)


#: A token that the agent has not seen before, so that it cannot be masked as a known secret.
NEW_TOKEN = "eyJuZXctdG9rZW4iOiJvZi1zZXJ2ZXIifQ"


@pytest.mark.parametrize(
    "server",
    [
        answer(f"access_token={NEW_TOKEN}&token_type=bearer", Content_Type="application/x-www-form-urlencoded"),
        answer(f'{{"access_token": "{NEW_TOKEN}"}}x'),
        answer({"access_token": NEW_TOKEN, "token_type": "Bearer"}, 201),
        answer({"access_token": NEW_TOKEN, "token_type": "Bearer"}, 400),
        answer({"error": "server_error", "access_token": NEW_TOKEN}, 500),
        answer({"error": NEW_TOKEN}, 202),
        answer({"token": NEW_TOKEN}),
    ],
)
def test_token_in_an_invalid_oauth2_response_is_not_shown(bed: SourceAccessHarness, server: Handler) -> None:
    bed.put("client", id="client", secret="s3cret-of-client")
    with ScriptedServer(server) as oauth2_server:
        error = bed.failure("http://127.0.0.1:1", make_methods(oauth2_server))
    assert error.reason == "auth_failed"
    assert NEW_TOKEN[:8] not in error.message


def test_client_secret_echoed_by_the_token_server_is_not_shown(
    bed: SourceAccessHarness, token_server: TokenServer, source: ScriptedServer
) -> None:
    bed.put("client", secret="wr0ng-secret")
    error = bed.failure(source.url, make_methods(token_server))
    assert error.reason == "auth_failed"
    assert "HTTP 401" in error.message
    assert "wr0ng-secret" not in error.message


def test_client_secret_is_withheld_from_an_unreleased_token_server(
    bed: SourceAccessHarness, token_server: TokenServer
) -> None:
    bed.put("client", usable_for="127.0.0.1:1", secret=token_server.secret, id="client")
    error = bed.failure("http://127.0.0.1:1", make_methods(token_server))
    assert error.reason == "secret_refused"
    assert token_server.server.requests == []
