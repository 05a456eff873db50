"""Login sessions, and protection of forms.

A session is the token of the login, in Redis under the digest of its cookie and encrypted with a key from the cookie,
which only the browser has. Therefore all replicas know it, a logout ends it, and each request checks the token again
(the API server's responses count for some seconds), so it ends with its token. Every visitor gets a cookie; the secret
of the forms is derived from it, so that a page of another site, which cannot read it, cannot send a form.
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

#: Behind HTTPS, browsers refuse a cookie with these prefixes from other hosts and from plain HTTP.
_COOKIE: Final = "dsf_page"
#: Seconds of a login.
LIFETIME: Final = 8 * 3600
#: In place of a cookie's digest: the key of what `Sessions.end_all` changes.
_EPOCH: Final = "epoch"


class Sessions:
    """Login sessions in Redis. Methods raise redis.RedisError."""

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client

    def open(self, token: str) -> str:
        """Open a session with a token that was just checked; returns the value of its cookie."""
        cookie = self.fresh()
        self._redis.set(_key(cookie), _seal(cookie, self._epoch()).encrypt(token.encode()), ex=LIFETIME)
        return cookie

    @staticmethod
    def fresh() -> str:
        """Return the value of a cookie without a login."""
        return secrets.token_urlsafe(32)

    def token(self, cookie: str) -> str:
        """Return the token of this cookie's session; empty without a session, or after its end."""
        sealed = self._redis.get(_key(cookie)) if cookie else None
        if sealed is None:
            return ""
        try:
            # Redis keeps it longer when its time goes backwards; nor is a session from the future one.
            return _seal(cookie, self._epoch()).decrypt(str(sealed), ttl=LIFETIME).decode()
        except InvalidToken:
            return ""

    def close(self, cookie: str) -> None:
        """End a session, if it exists."""
        self._redis.delete(_key(cookie))

    def end_all(self) -> None:
        """End all sessions: none can be read any more."""
        self._redis.set(keys.web_session(_EPOCH), secrets.token_urlsafe(16))

    def _epoch(self) -> str:
        return str(self._redis.get(keys.web_session(_EPOCH)) or "")


def _seal(cookie: str, epoch: str) -> Fernet:
    key = hmac.new(cookie.encode(), f"token {epoch}".encode(), hashlib.sha256).digest()
    return Fernet(base64.urlsafe_b64encode(key))


def _key(cookie: str) -> str:
    return keys.web_session(hashlib.sha256(cookie.encode()).hexdigest())


def cookie_of(request: Request) -> str:
    """Return the cookie of a request.

    Empty if missing, invalid, or there twice: another site may have set one of them.
    """
    name, values = _name(request), set()
    for line in request.headers.getlist("cookie"):
        for part in line.split(";"):
            key, _, value = part.strip().partition("=")
            if key == name:
                values.add(value)
    value = values.pop() if len(values) == 1 else ""
    # 32 bytes in base64, as `Sessions.fresh` makes them.
    return value if len(value) == 43 and value.replace("-", "").replace("_", "").isalnum() else ""


def set_cookie(request: Request, response: Response, value: str) -> None:
    """Set a cookie that scripts cannot read, and that other sites send with links only, never with forms."""
    response.set_cookie(
        _name(request),
        value,
        max_age=LIFETIME,
        path=_path(request),
        httponly=True,
        samesite="lax",
        secure=request.scope["scheme"] == "https",
    )


def delete_cookie(request: Request, response: Response) -> None:
    """Delete the cookie."""
    response.delete_cookie(_name(request), path=_path(request), secure=request.scope["scheme"] == "https")


def _name(request: Request) -> str:
    if request.scope["scheme"] != "https":
        return _COOKIE
    # The prefix `__Host-` is for the path / only.
    return ("__Host-" if _path(request) == "/" else "__Secure-") + _COOKIE


def _path(request: Request) -> str:
    return request.scope["dsf.root"] or "/"


def form_secret(cookie: str) -> str:
    """Return the secret that forms of this page must contain."""
    return hmac.new(cookie.encode(), b"form", hashlib.sha256).hexdigest()


def check_form(request: Request, form_token: str) -> None:
    """Raises AccessError (403) for a form that did not come from this page."""
    origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site", "same-origin")
    if origin is not None and not _is_same(origin, request.scope["dsf.host"]):
        raise AccessError(
            f"forms from {origin[:100]!r} are refused, because requests reach this page as "
            f"{request.scope['dsf.host'][:100]!r}: a proxy must pass on the Host header with its port, in nginx "
            "`proxy_set_header Host $http_host`",
            403,
        )
    if site not in ("same-origin", "none"):
        raise AccessError("forms from other sites are refused", 403)
    if not is_form(request, form_token):
        raise AccessError("this form is too old or not from this page: go back, reload the page and repeat", 403)


def is_form(request: Request, form_token: str) -> bool:
    """True if a form has the secret of the request's cookie."""
    cookie = cookie_of(request)
    return bool(cookie) and hmac.compare_digest(form_secret(cookie).encode(), form_token.encode())


def _is_same(origin: str, host: str) -> bool:
    """True if an origin is that of this Host header. Its scheme is not compared: a proxy may terminate TLS."""
    try:
        theirs, ours = urlsplit(origin), urlsplit(f"//{host}")
        usual = {"http": 80, "https": 443}.get(theirs.scheme)
        return (theirs.hostname, theirs.port or usual) == (ours.hostname, ours.port or usual)
    except ValueError:
        return False
