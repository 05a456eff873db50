"""Login sessions, protection of forms, and limits on failed logins.

A session is in Redis under the digest of its cookie, without any token, so that all replicas know it and a logout ends
it. Every visitor gets a cookie; the secret of the forms is derived from it, so that a page of another site, which
cannot read it, cannot send a form.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

import redis
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from dsf import keys
from dsf.errors import AccessError
from dsf.web.access import Access, Caller
from dsf.web.guard import host_name

COOKIE: Final = "dsf_page"
#: Seconds of a login.
LIFETIME: Final = 8 * 3600
_LENGTH: Final = 43
#: Most failures of one token, and failed tokens of one address, within these seconds.
_TRIES: Final = 5
_WINDOW: Final = 60.0
#: Seconds between attempts of an address beyond that.
_PAUSE: Final = 1.0
#: Most tokens that are remembered as valid.
_MOST_GOOD: Final = 2000


class _Stored(BaseModel):
    model_config = ConfigDict(frozen=True)

    v: int = keys.SCHEMA_VERSION
    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: dict[str, list[str]] = {}


class Sessions:
    """Login sessions in Redis. Methods raise redis.RedisError."""

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client

    def open(self, caller: Caller) -> str:
        """Open a session; returns the value of its cookie."""
        cookie = self.fresh()
        stored = _Stored(name=caller.name, groups=caller.groups, uid=caller.uid, extra=caller.extra)
        self._redis.set(_key(cookie), stored.model_dump_json(), ex=LIFETIME)
        return cookie

    @staticmethod
    def fresh() -> str:
        """The value of a cookie without a login."""
        return secrets.token_urlsafe(32)

    def caller(self, cookie: str) -> Caller | None:
        """The user of this cookie's session; None without a session, or after its end."""
        text = self._redis.get(_key(cookie)) if cookie else None
        if text is None:
            return None
        try:
            found = _Stored.model_validate_json(str(text))
        except ValidationError:
            return None
        return Caller(found.name, groups=found.groups, uid=found.uid, extra=dict(found.extra))

    def close(self, cookie: str) -> None:
        """End a session, if it exists."""
        self._redis.delete(_key(cookie))


def _key(cookie: str) -> str:
    return keys.web_session(hashlib.sha256(cookie.encode()).hexdigest())


def cookie_of(request: Request) -> str:
    """The cookie of a request; empty if missing or invalid."""
    value = request.cookies.get(COOKIE, "")
    return value if len(value) == _LENGTH and value.replace("-", "").replace("_", "").isalnum() else ""


def set_cookie(request: Request, response: Response, value: str) -> None:
    """Set a cookie that scripts cannot read and other sites cannot send."""
    response.set_cookie(
        COOKIE,
        value,
        max_age=LIFETIME,
        path=request.scope["dsf.root"] or "/",
        httponly=True,
        samesite="strict",
        secure=request.scope["scheme"] == "https",
    )


def form_secret(cookie: str) -> str:
    """The secret that forms of this page must contain."""
    return hmac.new(cookie.encode(), b"form", hashlib.sha256).hexdigest()


def check_form(request: Request, given: str) -> None:
    """Raises AccessError (403) for a form that did not come from this page."""
    origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site", "same-origin")
    if origin is not None and host_name(origin.partition("//")[2]) != host_name(request.scope["dsf.host"]):
        raise AccessError(f"forms from {origin[:100]!r} are refused", 403)
    if site not in ("same-origin", "none"):
        raise AccessError("forms from other sites are refused", 403)
    cookie = cookie_of(request)
    if not cookie or not hmac.compare_digest(form_secret(cookie).encode(), given.encode()):
        raise AccessError("this form is too old or not from this page: go back, reload the page and repeat", 403)


class Tries:
    """Logins by token, with a limit on failures. Thread-safe; each process counts separately.

    Many users may share an address, as behind a port-forward: a failed token counts once for its address, a previously
    valid token is always checked, and another token at least once a second.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        #: Time, address and token digest of failures.
        self._failed: deque[tuple[float, str, str]] = deque(maxlen=1000)
        #: Digests of tokens that were valid at their last login, newest last.
        self._good: dict[str, None] = {}

    def login(self, access: Access, address: str, token: str) -> Caller:
        """The holder of a token. Raises AccessError (429) after too many failures, and the errors of `access`."""
        digest = hashlib.sha256(token.encode()).hexdigest()
        with self._lock:
            self._check(address, digest)
        try:
            caller = access.login(token)
        except AccessError as error:
            if error.status == 401:
                with self._lock:
                    self._good.pop(digest, None)
                    self._failed.append((self._clock(), address, digest))
            raise
        with self._lock:
            self._good.pop(digest, None)
            self._good[digest] = None
            if len(self._good) > _MOST_GOOD:
                del self._good[next(iter(self._good))]
        return caller

    def _check(self, address: str, digest: str) -> None:
        now = self._clock()
        while self._failed and self._failed[0][0] < now - _WINDOW:
            self._failed.popleft()
        if digest in self._good:
            return
        if sum(one == digest for _, _, one in self._failed) >= _TRIES:
            raise AccessError("this token has failed too often: wait a minute", 429)
        first: dict[str, float] = {}
        for at, place, one in self._failed:
            if place == address:
                first.setdefault(one, at)
        if digest not in first and len(first) >= _TRIES and max(first.values()) > now - _PAUSE:
            raise AccessError("too many logins from this address have failed: try again in a second", 429)
