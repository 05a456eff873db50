"""OAuth2's client credentials against Authlib's server, with signed tokens that the source checks by itself."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import requests

from tests.integration.auth.authserver import CLIENT, SECRET, AuthServer
from tests.support.authenticatedquery import SourceAccessHarness, make_secret_ref
from tests.support.tlsca import TestCa


class OAuthSetup(NamedTuple):
    """An agent, and the server."""

    bed: SourceAccessHarness
    server: AuthServer
    ca: TestCa

    def methods(self, **options: Any) -> dict[str, Any]:
        """Return the method with this server of tokens."""
        return {
            "oauth2": {
                "tokenURL": f"{self.server.http.url}/token",
                "clientID": make_secret_ref("client", "id"),
                "clientSecret": {"name": "client", "key": "secret"},
                "scopes": ["read"],
                **options,
            }
        }

    def fetch(self, **options: Any) -> int:
        """Return the number of series."""
        return self.bed.fetch(self.server.http.url, self.methods(**options), _TLS)

    def failure(self, **options: Any) -> tuple[str, str]:
        """Return reason and message of the failed request, after checking that they contain neither the secret nor a
        token.
        """
        error = self.bed.failure(self.server.http.url, self.methods(**options), _TLS)
        for secret in (SECRET, *self.server.issued_tokens):
            assert secret not in error.message
        return error.reason, error.message

    def revoke(self, token: str) -> None:
        """Revoke a token as described in RFC 7009, with a different client library."""
        response = requests.post(
            f"{self.server.http.url}/revoke", {"token": token}, auth=(CLIENT, SECRET.replace("%", "%25")),
            verify=str(self.ca.cert), timeout=300,
        )  # fmt: skip
        assert response.status_code == 200, response.text


_TLS = {"caRef": {"kind": "Secret", "name": "ca"}}


@pytest.fixture
def world(bed: SourceAccessHarness, ca: TestCa, local: ssl.SSLContext) -> Iterator[OAuthSetup]:
    """A server with a certificate of a private CA, and the credentials of its client."""
    bed.put("ca", ca_crt=ca.cert.read_bytes())
    bed.put("client", id=CLIENT, secret=SECRET)
    server = AuthServer(local)
    with server.http:
        yield OAuthSetup(bed, server, ca)


@pytest.mark.parametrize("how", ["Basic", "Post"])
def test_concurrent_fetches_share_one_token(world: OAuthSetup, how: str) -> None:
    series_counts: list[int] = []
    options: dict[str, Any] = {"clientAuthentication": how, "scopes": ["read", "write"], "audience": "metrics"}
    threads = [threading.Thread(target=lambda: series_counts.append(world.fetch(**options))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (series_counts, len(world.server.issued_tokens)) == ([1] * 8, 1)
    assert world.server.answers == [200] * 8
    (token_request,) = [request.body for request in world.server.http.requests if request.path == "/token"]
    assert b"scope=read+write&audience=metrics" in token_request
    assert "Authorization: Bearer ***" in world.bed.display_lines


def test_token_is_renewed_before_its_end(world: OAuthSetup, later: Callable[[float], None]) -> None:
    world.server.seconds = 100
    for seconds, expected_tokens in ((0, 1), (79, 1), (81, 2)):
        later(seconds)
        assert (world.fetch(), len(world.server.issued_tokens)) == (1, expected_tokens)


def test_wrong_client_secret_is_reported_and_its_correction_is_used_at_once(world: OAuthSetup) -> None:
    world.bed.put("client", secret="wr0ng of:the&cl%ient")
    reason, message = world.failure()
    assert (reason, world.server.issued_tokens, world.server.answers) == ("auth_failed", [], [])
    assert "no token from the OAuth2 server" in message
    assert "HTTP 401" in message
    assert "invalid_client" in message
    assert "wr0ng" not in message
    # The right one takes effect at once.
    world.bed.put("client", secret=SECRET)
    assert world.fetch() == 1


def test_scope_refused_by_the_token_server_fails_as_auth_failed(world: OAuthSetup) -> None:
    reason, message = world.failure(scopes=["read", "admin"])
    assert (reason, world.server.issued_tokens) == ("auth_failed", [])
    assert "HTTP 400" in message
    assert "invalid_scope" in message


def test_scope_refused_by_the_source_fails_as_unauthorized(world: OAuthSetup) -> None:
    reason, message = world.failure(scopes=["write"])
    assert reason == "unauthorized"
    assert "HTTP 403" in message
    assert "insufficient_scope" in message
    # A new token would have the same scope, so the agent requests none.
    assert (len(world.server.issued_tokens), world.server.answers) == (1, [403])


def test_revoked_token_is_renewed_once(world: OAuthSetup) -> None:
    assert world.fetch() == 1
    world.revoke(world.server.issued_tokens[0])
    assert world.fetch() == 1
    assert (len(world.server.issued_tokens), world.server.answers) == (2, [200, 401, 200])
    # The source takes no token of this client any more.
    world.server.takes_none = True
    reason, message = world.failure()
    assert (reason, len(world.server.issued_tokens), world.server.answers[3:]) == ("unauthorized", 3, [401, 401])
    assert 'error="invalid_token", error_description="The token was revoked"' in message
    assert "it was asked with a token that was got anew for it" in message


@pytest.mark.parametrize("ahead", [7200, -7200])
def test_clock_difference_of_the_token_server_is_reported(world: OAuthSetup, ahead: int) -> None:
    """A token that is not valid yet, or has expired, by the source's own clock."""
    world.server.ahead = ahead
    reason, message = world.failure()
    assert (reason, world.server.answers) == ("unauthorized", [401, 401])
    assert 'error="invalid_token"' in message
    assert "is the server's clock right?" in message
    # The source's is right.
    assert "that of who asks" not in message


@pytest.mark.parametrize(("ahead", "direction"), [(7200, "ahead of"), (-7200, "behind")])
def test_clock_difference_of_the_source_is_reported(world: OAuthSetup, ahead: int, direction: str) -> None:
    world.server.source_ahead = ahead
    reason, message = world.failure()
    assert (reason, world.server.answers) == ("unauthorized", [401, 401])
    assert f"s {direction} that of who asks, so tokens and signatures may not count" in message
    # It recovers without any other action.
    world.server.source_ahead = 0.0
    assert world.fetch() == 1
