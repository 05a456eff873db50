"""Login sessions, and protection of forms.

A session stores the token of the login in Redis, under the digest of the session's cookie. The token is encrypted with
a key derived from the cookie, which only the browser has. All replicas share the sessions, and a logout deletes one.
Each request checks the token again, so a session ends with its token. The API server's responses are cached for some
seconds.

Every visitor gets a cookie. The secret of the forms is derived from the cookie. A page of another site cannot read the
cookie, and therefore cannot send a valid form.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from typing import Final
from urllib.parse import urlsplit

import redis
from cryptography.fernet import Fernet, InvalidToken
from starlette.requests import Request
from starlette.responses import Response

from dsf import keys
from dsf.errors import AccessError

#: Name of the cookie, without the prefix that it has behind HTTPS.
_COOKIE_BASE_NAME: Final = "dsf_page"
#: Bytes of randomness in a cookie, and the characters of its value in base64.
_COOKIE_BYTES: Final = 32
_COOKIE_LENGTH: Final = 43
#: Seconds until a login expires.
LOGIN_SECONDS: Final = 8 * 3600
#: Name, in place of a cookie's digest, of the Redis key with the random value that `Sessions.end_all` changes. The
#: encryption keys of all sessions are derived from this value and the session's cookie.
_EPOCH_KEY: Final = "epoch"
#: Maximum characters of a header's value in an error text.
_MAX_QUOTED_LENGTH: Final = 100


class Sessions:
    """Opens, reads and ends login sessions, which are in Redis. Methods raise redis.RedisError."""

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client

    def open(self, token: str) -> str:
        """Open a session with a valid token, and return the value of the session's cookie."""
        cookie = self.create_cookie()
        encrypted_token = _make_cipher(cookie, self._read_epoch()).encrypt(token.encode())
        self._redis.set(_make_session_key(cookie), encrypted_token, ex=LOGIN_SECONDS)
        return cookie

    @staticmethod
    def create_cookie() -> str:
        """Return a random value for the cookie of a new visitor or session."""
        return secrets.token_urlsafe(_COOKIE_BYTES)

    def read_token(self, cookie: str) -> str:
        """Return the token of this cookie's session; empty if there is no session or it has expired."""
        encrypted_token = self._redis.get(_make_session_key(cookie)) if cookie else None
        if encrypted_token is None:
            return ""
        try:
            # Check the age here too, because Redis keeps a key for longer if its clock goes backwards. The check also
            # rejects a session from the future.
            return _make_cipher(cookie, self._read_epoch()).decrypt(str(encrypted_token), ttl=LOGIN_SECONDS).decode()
        except InvalidToken:
            return ""

    def end(self, cookie: str) -> None:
        """Delete the session of this cookie, if it exists."""
        self._redis.delete(_make_session_key(cookie))

    def end_all(self) -> None:
        """End all sessions. Their tokens can no longer be decrypted, because the new epoch changes all keys."""
        self._redis.set(keys.web_session(_EPOCH_KEY), secrets.token_urlsafe(16))

    def _read_epoch(self) -> str:
        return str(self._redis.get(keys.web_session(_EPOCH_KEY)) or "")


def _make_cipher(cookie: str, epoch: str) -> Fernet:
    """Return the cipher for the token of this cookie's session."""
    key = hmac.new(cookie.encode(), f"token {epoch}".encode(), hashlib.sha256).digest()
    return Fernet(base64.urlsafe_b64encode(key))


def _make_session_key(cookie: str) -> str:
    """Return the Redis key of this cookie's session."""
    return keys.web_session(hashlib.sha256(cookie.encode()).hexdigest())


def read_cookie(request: Request) -> str:
    """Return the value of the page's cookie in a request; empty if it is missing or invalid.

    The cookie is also invalid if the request has two different values, because another site may have set one of them.
    """
    name, values = _get_cookie_name(request), set()
    for line in request.headers.getlist("cookie"):
        for part in line.split(";"):
            key, _, value = part.strip().partition("=")
            if key == name:
                values.add(value)
    value = values.pop() if len(values) == 1 else ""
    is_valid = len(value) == _COOKIE_LENGTH and value.replace("-", "").replace("_", "").isalnum()
    return value if is_valid else ""


def set_cookie(request: Request, response: Response, value: str) -> None:
    """Set the page's cookie in a response.

    Scripts cannot read the cookie. Browsers send it when a user follows a link from another site, but not with a form
    of another site.
    """
    response.set_cookie(
        _get_cookie_name(request),
        value,
        max_age=LOGIN_SECONDS,
        path=_get_cookie_path(request),
        httponly=True,
        samesite="lax",
        secure=request.scope["scheme"] == "https",
    )


def delete_cookie(request: Request, response: Response) -> None:
    """Delete the page's cookie in the browser."""
    is_secure = request.scope["scheme"] == "https"
    response.delete_cookie(_get_cookie_name(request), path=_get_cookie_path(request), secure=is_secure)


def _get_cookie_name(request: Request) -> str:
    """Return the name of the cookie.

    Behind HTTPS, the name has a prefix with which browsers refuse the cookie from other hosts and from plain HTTP.
    Browsers accept the prefix `__Host-` for the path `/` only.
    """
    if request.scope["scheme"] != "https":
        return _COOKIE_BASE_NAME
    return ("__Host-" if _get_cookie_path(request) == "/" else "__Secure-") + _COOKIE_BASE_NAME


def _get_cookie_path(request: Request) -> str:
    return request.scope["dsf.root"] or "/"


def make_form_secret(cookie: str) -> str:
    """Return the secret that forms must contain, which is derived from the visitor's cookie."""
    return hmac.new(cookie.encode(), b"form", hashlib.sha256).hexdigest()


def check_form(request: Request, form_secret: str) -> None:
    """Raise AccessError (403) unless a form comes from this page. `form_secret` is the secret in the form."""
    origin, fetch_site = request.headers.get("origin"), request.headers.get("sec-fetch-site", "same-origin")
    if origin is not None and not _is_same_origin(origin, request.scope["dsf.host"]):
        raise AccessError(
            f"forms from {origin[:_MAX_QUOTED_LENGTH]!r} are refused, because requests reach this page as "
            f"{request.scope['dsf.host'][:_MAX_QUOTED_LENGTH]!r}: a proxy must pass on the Host header with its port, "
            "in nginx `proxy_set_header Host $http_host`",
            403,
        )
    if fetch_site not in ("same-origin", "none"):
        raise AccessError("forms from other sites are refused", 403)
    if not has_form_secret(request, form_secret):
        raise AccessError("this form is too old or not from this page: go back, reload the page and repeat", 403)


def has_form_secret(request: Request, form_secret: str) -> bool:
    """Return True if `form_secret` is the form secret of the request's cookie."""
    cookie = read_cookie(request)
    return bool(cookie) and hmac.compare_digest(make_form_secret(cookie).encode(), form_secret.encode())


def _is_same_origin(origin: str, host: str) -> bool:
    """Return True if an origin has the host and port of a Host header.

    The scheme is not compared, because a proxy may terminate TLS.
    """
    try:
        form_url, page_url = urlsplit(origin), urlsplit(f"//{host}")
        default_port = {"http": 80, "https": 443}.get(form_url.scheme)
        form_address = (form_url.hostname, form_url.port or default_port)
        return form_address == (page_url.hostname, page_url.port or default_port)
    except ValueError:
        return False
