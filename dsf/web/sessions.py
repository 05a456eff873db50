"""Who is logged in, and whether a form came from this page.

A session is in Redis under the digest of its cookie, without any token, so that all replicas know it and a logout ends
it. Everybody gets a cookie; the secret of the forms is derived from it, so that a page of somebody else, which cannot
read it, can send no form.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from collections import deque
from typing import Final
from urllib.parse import urlsplit

import redis
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from dsf import keys
from dsf.errors import AccessError
from dsf.web.access import Caller
from dsf.web.guard import host_name

COOKIE: Final = "dsf_page"
#: Seconds of a login.
LIFETIME: Final = 8 * 3600
_LENGTH: Final = 43
#: Failed logins of one address, and of all together, within so many seconds.
_TRIES: Final = 5
_ALL_TRIES: Final = 50
_WINDOW: Final = 60.0


class _Stored(BaseModel):
    model_config = ConfigDict(frozen=True)

    v: int = keys.SCHEMA_VERSION
    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: dict[str, list[str]] = {}


class Sessions:
    """Methods raise redis.RedisError when Redis cannot be reached."""

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client

    def open(self, caller: Caller) -> str:
        """A new session; the value of its cookie."""
        cookie = self.fresh()
        stored = _Stored(name=caller.name, groups=caller.groups, uid=caller.uid, extra=caller.extra)
        self._redis.set(_key(cookie), stored.model_dump_json(), ex=LIFETIME)
        return cookie

    @staticmethod
    def fresh() -> str:
        """The value of a cookie of somebody who has not logged in."""
        return secrets.token_urlsafe(32)

    def caller(self, cookie: str) -> Caller | None:
        """Who logged in with this cookie; None when nobody did, or it is over."""
        text = self._redis.get(_key(cookie)) if cookie else None
        if text is None:
            return None
        try:
            found = _Stored.model_validate_json(str(text))
        except ValidationError:
            return None
        return Caller(found.name, groups=found.groups, uid=found.uid, extra=dict(found.extra))

    def close(self, cookie: str) -> None:
        """End a session, if it is one."""
        self._redis.delete(_key(cookie))


def _key(cookie: str) -> str:
    return keys.web_session(hashlib.sha256(cookie.encode()).hexdigest())


def cookie_of(request: Request) -> str:
    """The cookie of a request; empty for none, or what is none of ours."""
    value = request.cookies.get(COOKIE, "")
    return value if len(value) == _LENGTH and value.replace("-", "").replace("_", "").isalnum() else ""


def set_cookie(request: Request, response: Response, value: str) -> None:
    """Give the browser a cookie that scripts cannot read and other sites cannot send."""
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
    """What a form of this page must carry."""
    return hmac.new(cookie.encode(), b"form", hashlib.sha256).hexdigest()


def check_form(request: Request, given: str) -> None:
    """Raises AccessError (403) for a form that did not come from this page."""
    origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site", "same-origin")
    if origin is not None and host_name(urlsplit(origin).netloc) != host_name(request.scope["dsf.host"]):
        raise AccessError(f"forms of {origin[:100]!r} are not taken", 403)
    if site not in ("same-origin", "none"):
        raise AccessError("forms of other sites are not taken", 403)
    cookie = cookie_of(request)
    if not cookie or not hmac.compare_digest(form_secret(cookie).encode(), given.encode()):
        raise AccessError("this form is too old, or none of this page: go back, load the page again and repeat", 403)


class Tries:
    """Counts failed logins. Thread-safe; each process counts for itself."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failed: deque[tuple[float, str]] = deque(maxlen=1000)

    def check(self, address: str) -> None:
        """Raises AccessError (429) for an address with too many failed logins."""
        with self._lock:
            while self._failed and self._failed[0][0] < time.monotonic() - _WINDOW:
                self._failed.popleft()
            if sum(one == address for _, one in self._failed) >= _TRIES or len(self._failed) >= _ALL_TRIES:
                raise AccessError("too many logins have failed: wait a minute", 429)

    def note(self, address: str) -> None:
        """A login failed."""
        with self._lock:
            self._failed.append((time.monotonic(), address))
