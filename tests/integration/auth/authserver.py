"""An OAuth2 server and a resource server of Authlib, which decides on requests and responses."""

from __future__ import annotations

import json
import time
from typing import Any
from urllib.parse import parse_qsl

from authlib.oauth2 import OAuth2Error, ResourceProtector
from authlib.oauth2.rfc6749 import AuthorizationServer, ClientMixin, OAuth2Request, TokenMixin
from authlib.oauth2.rfc6749.grants import ClientCredentialsGrant
from authlib.oauth2.rfc6749.requests import BasicOAuth2Payload
from authlib.oauth2.rfc6750 import InvalidTokenError
from authlib.oauth2.rfc7009 import RevocationEndpoint
from authlib.oauth2.rfc9068 import JWTBearerTokenGenerator, JWTBearerTokenValidator
from joserfc.jwk import KeySet, RSAKey

from tests.support.authenticatedquery import GOOD
from tests.support.httpserver import Exchange, ScriptedServer, with_clock_offset

#: With characters that mean something in URLs, forms and headers.
CLIENT, SECRET = "agents of/fleet+1", "s3cret of:the&cl%ient+/="
ISSUER, AUDIENCE = "https://sso.test", "thanos"


class _Client(ClientMixin):
    def get_client_id(self) -> str:
        return CLIENT

    def get_allowed_scope(self, scope: str | None) -> str:
        return scope or ""

    def check_client_secret(self, client_secret: str) -> bool:
        return client_secret == SECRET

    def check_endpoint_auth_method(self, method: str, endpoint: str) -> bool:
        return method != "none"

    def check_grant_type(self, grant_type: str) -> bool:
        return grant_type == "client_credentials"


class _Grant(ClientCredentialsGrant):
    TOKEN_ENDPOINT_AUTH_METHODS = ("client_secret_basic", "client_secret_post")


class _Request(OAuth2Request):
    @property
    def form(self) -> Any:
        return self.payload.data


class _Given(TokenMixin):
    def __init__(self, value: str) -> None:
        self.value = value

    def check_client(self, client: object) -> bool:
        return isinstance(client, _Client)


class AuthServer(AuthorizationServer):  # type: ignore[misc]
    """Tokens at `/token` and their revocation at `/revoke`; all other paths belong to the source, which requires the
    scope `read`.

    Tokens are signed (RFC 9068), so that the source checks their times by its own clock.
    """

    def __init__(self, tls: Any) -> None:
        super().__init__(scopes_supported=["read", "write"])
        self.key = RSAKey.generate_key(2048, {"kid": "1"})
        #: Seconds that a token is good; how far the clock of who gives them is ahead, and that of the source.
        self.seconds, self.ahead, self.source_ahead = 3600, 0.0, 0.0
        self.issued_tokens: list[str] = []
        self.revoked: set[str] = set()
        #: Whether every token counts as revoked.
        self.takes_none = False
        #: The status of the source's responses.
        self.answers: list[int] = []
        self.register_grant(_Grant)
        self.register_token_generator("default", _Generator(self))
        self.register_endpoint(_Revocation)
        self._protector = ResourceProtector()
        self._protector.register_token_validator(_Validator(self))
        self.http = ScriptedServer(self._source, tls=tls, token=self._token, revoke=self._revoke)

    # --- storage and server, which Authlib leaves to us --------------------------------------------------------------

    def query_client(self, client_id: str) -> _Client | None:
        """Return the only client."""
        return _Client() if client_id == CLIENT else None

    def save_token(self, token: dict[str, Any], request: OAuth2Request) -> None:
        """Keep it."""
        self.issued_tokens.append(token["access_token"])

    def send_signal(self, name: str, *_: object, **__: object) -> None:
        """The test has no listeners for signals."""

    def create_oauth2_request(self, request: Exchange) -> OAuth2Request:
        """As Authlib sees it."""
        oauth2_request = _Request(
            request.request.method, f"{ISSUER}{request.request.path}", headers=request.request.headers
        )
        oauth2_request.payload = BasicOAuth2Payload(dict(parse_qsl(request.request.body.decode())))
        return oauth2_request

    def handle_response(self, status: int, body: Any, headers: Any) -> tuple[int, Any, Any]:
        """Return the response unchanged; the caller sends it."""
        return status, body, headers

    # --- over HTTP ---------------------------------------------------------------------------------------------------

    def _token(self, exchange: Exchange) -> None:
        _send(exchange, *self.create_token_response(exchange))

    def _revoke(self, exchange: Exchange) -> None:
        _send(exchange, *self.create_endpoint_response("revocation", exchange))

    def _source(self, exchange: Exchange) -> None:
        with_clock_offset(self.source_ahead, self._protected)(exchange)

    def _protected(self, exchange: Exchange) -> None:
        try:
            self._protector.validate_request(["read"], self.create_oauth2_request(exchange))
        except OAuth2Error as error:
            self.answers.append(error.status_code)
            status, body, headers = error()
            # RFC 6750 requires only the header; many servers send no body.
            _send(exchange, status, "" if status == 401 else body, headers)
            return
        self.answers.append(200)
        GOOD(exchange)


class _Generator(JWTBearerTokenGenerator):  # type: ignore[misc]
    def __init__(self, server: AuthServer) -> None:
        super().__init__(ISSUER, expires_generator=lambda *_: server.seconds)
        self._server = server

    def get_jwks(self) -> Any:
        return KeySet([self._server.key])

    def get_audiences(self, client: object, user: object, scope: str) -> str:
        return AUDIENCE

    def get_extra_claims(self, *_: object, **__: object) -> dict[str, int]:
        now = int(time.time() + self._server.ahead)
        return {"iat": now, "nbf": now, "exp": now + self._server.seconds}


class _Validator(JWTBearerTokenValidator):  # type: ignore[misc]
    def __init__(self, server: AuthServer) -> None:
        super().__init__(ISSUER, AUDIENCE, realm="source")
        self._server = server

    def get_jwks(self) -> Any:
        return KeySet([self._server.key])

    def authenticate_token(self, token_string: str) -> Any:
        if self._server.takes_none or token_string in self._server.revoked:
            raise InvalidTokenError("The token was revoked", realm=self.realm)
        token = super().authenticate_token(token_string)
        # Authlib uses the machine's clock; moving the times in the token has the same effect.
        for name in ("iat", "nbf", "exp"):
            token[name] -= int(self._server.source_ahead)
        return token


class _Revocation(RevocationEndpoint):  # type: ignore[misc]
    def query_token(self, token_string: str, token_type_hint: str | None) -> _Given | None:
        return _Given(token_string) if token_string in self.server.issued_tokens else None

    def revoke_token(self, token: _Given, request: OAuth2Request) -> None:
        self.server.revoked.add(token.value)


def _send(exchange: Exchange, status: int, body: Any, headers: Any) -> None:
    data = body if isinstance(body, str) else json.dumps(dict(body))
    names = {name.replace("-", "_"): value for name, value in headers}
    exchange.send(data.encode(), status, **names)
