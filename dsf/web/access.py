"""Authentication and authorization of the page's users.

`kubernetes` checks the login token on the hub's API server: `get dynamicscorers` is required to read, `update
dynamicscorers` to act, and `list placements` to see Placements. `proxy` trusts the headers of a proxy such as
oauth2-proxy and checks the user's rights on the API server, or by a list of groups. `token` is one token with all
rights. The others do not authenticate: `none` and `local` listen on this machine only, `none` and `open` are read-only,
`local` and `anyone` are not.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from starlette.requests import Request

from dsf.errors import AccessError, BackendError, SettingsError

Doing = Literal["look", "act", "placements"]
#: Seconds for which the API server's answers about tokens and rights are cached: what is revoked ends after that.
_REMEMBERED: Final = 10.0
_MOST_REMEMBERED: Final = 2000
#: Headers of oauth2-proxy and similar proxies: user, else email; groups.
_HEADERS: Final = tuple(
    tuple(f"{family}-{what}" for what in ("user", "email", "groups")) for family in ("x-auth-request", "x-forwarded")
)


@dataclass(frozen=True)
class PageUser:
    """The user of a request. `claimed`: the name is unverified."""

    name: str
    claimed: bool = False
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: dict[str, Any] = field(default_factory=dict, hash=False, compare=False)


#: The user of a request without headers.
_NOTHING: Final = PageUser("")


class Rights(Protocol):
    """The rights of a user."""

    def allows(self, caller: PageUser, doing: Doing) -> bool:
        """Whether the user has the right. Raises BackendError if this cannot be checked."""


class UserAccess(Protocol):
    """Authentication of users."""

    #: Whether users log in with a token.
    has_login: bool

    def login(self, token: str) -> PageUser:
        """The holder of this token. Raises AccessError (401); BackendError or SettingsError if this cannot be
        checked.
        """

    def recognise(self, request: Request) -> PageUser | None:
        """The user of this request by its headers; None if a login is required."""

    def allows(self, caller: PageUser, doing: Doing) -> bool:
        """See `Rights`."""


class Unauthenticated:
    """Without authentication: every client may read, and act if `acting`."""

    has_login = False

    def __init__(self, *, acting: bool) -> None:
        self._acting = acting

    def login(self, token: str) -> PageUser:
        """See `UserAccess`."""
        raise AccessError("there is no login here", 401)

    def recognise(self, request: Request) -> PageUser | None:
        """See `UserAccess`."""
        return PageUser("a user of this machine", claimed=True)

    def allows(self, caller: PageUser, doing: Doing) -> bool:
        """See `UserAccess`."""
        return doing != "act" or self._acting


class TokenFile:
    """The one token of DSF_CLIENT_TOKEN_FILE. The file is read at every check, so that the token can be changed."""

    def __init__(self, file: Path) -> None:
        """Raises SettingsError if it is unreadable."""
        self._file = file
        self._read()

    def check(self, token: str) -> None:
        """Raises AccessError (401) for another token, and SettingsError if the file is unreadable."""
        if not hmac.compare_digest(token.encode(), self._read().encode()):
            raise AccessError("this is not the token of DSF_CLIENT_TOKEN_FILE", 401)

    def _read(self) -> str:
        try:
            token = self._file.read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise SettingsError(f"DSF_CLIENT_TOKEN_FILE: cannot read {self._file}: {reason}") from None
        if not token:
            raise SettingsError(f"DSF_CLIENT_TOKEN_FILE: {self._file} is empty; it must contain the token")
        return token


class AllRights:
    """All users have all rights."""

    def allows(self, caller: PageUser, doing: Doing) -> bool:
        """See `Rights`."""
        return True


class LoginAccess:
    """Users log in with their token, which an external authority checks."""

    has_login = True

    def __init__(self, holder: Callable[[str], PageUser], rights: Rights) -> None:
        self._holder = holder
        self._rights = rights

    def login(self, token: str) -> PageUser:
        """See `UserAccess`."""
        return self._holder(token)

    def recognise(self, request: Request) -> PageUser | None:
        """See `UserAccess`."""
        return None

    def allows(self, caller: PageUser, doing: Doing) -> bool:
        """See `UserAccess`."""
        return self._rights.allows(caller, doing)


class ProxyAccess:
    """A trusted proxy authenticates the user."""

    has_login = False

    def __init__(self, rights: Rights) -> None:
        self._rights = rights

    def login(self, token: str) -> PageUser:
        """See `UserAccess`."""
        raise AccessError("the proxy in front of this page has the login", 401)

    def recognise(self, request: Request) -> PageUser | None:
        """See `UserAccess`. Raises AccessError (401) for a request that did not come through the proxy."""
        if not request.scope["dsf.trusted"]:
            raise AccessError("use the proxy in front of this page, which authenticates you", 401)
        callers = {_caller_of(request, headers) for headers in _HEADERS} - {_NOTHING}
        if len(callers) > 1:
            # A proxy overwrites the headers that it sets, but may pass other ones from its clients.
            raise AccessError(
                "X-Auth-Request-User, -Email and -Groups differ from X-Forwarded-User, -Email and -Groups: the proxy "
                "in front of this page must remove those that it does not set itself",
                401,
            )
        caller = next(iter(callers), _NOTHING)
        if not caller.name:
            raise AccessError("the proxy in front of this page did not name a user", 401)
        return caller

    def allows(self, caller: PageUser, doing: Doing) -> bool:
        """See `UserAccess`."""
        return self._rights.allows(caller, doing)


def _caller_of(request: Request, headers: Sequence[str]) -> PageUser:
    """The user that headers of one family name. Raises AccessError (401) for one that is there twice."""
    user, email, groups = (_only(request, header) for header in headers)
    return PageUser(user or email, groups=tuple(group.strip() for group in groups.split(",") if group.strip()))


def _only(request: Request, header: str) -> str:
    lines = request.headers.getlist(header)
    if len(lines) > 1:
        raise AccessError(
            f"the request has {len(lines)} lines {header}: the proxy in front of this page must replace what its "
            f"clients send, not add to it",
            401,
        )
    return lines[0].strip() if lines else ""


class ListedRights:
    """Users and groups that may act; all others may read."""

    def __init__(self, operators: Sequence[str]) -> None:
        self._operators = frozenset(operators)

    def allows(self, caller: PageUser, doing: Doing) -> bool:
        """See `Rights`."""
        return doing != "act" or not self._operators.isdisjoint({caller.name, *caller.groups})


class RememberedHolder:
    """Caches the holders of tokens for some seconds: programs send theirs with every request, and each request of a
    logged-in user needs that of the session. Thread-safe."""

    def __init__(self, holder: Callable[[str], PageUser]) -> None:
        self._holder = holder
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, PageUser]] = {}
        # Each check occupies a thread of the page, which has 40.
        self._turns = threading.BoundedSemaphore(8)

    def __call__(self, token: str) -> PageUser:
        """The holder. Raises AccessError (401) for an invalid token, and BackendError if it cannot be checked."""
        digest = hashlib.sha256(token.encode()).hexdigest()
        with self._lock:
            until, known = self._known.get(digest, (0.0, None))
        if known is not None and time.monotonic() < until:
            return known
        if not self._turns.acquire(blocking=False):
            raise BackendError("the hub's API server is checking too many tokens")
        try:
            caller = self._holder(token)
        finally:
            self._turns.release()
        with self._lock:
            if len(self._known) >= _MOST_REMEMBERED:
                self._known.clear()
            self._known[digest] = (time.monotonic() + _REMEMBERED, caller)
        return caller


class RememberedRights:
    """Caches the answers of `rights` for some seconds: every request of an open page needs them."""

    def __init__(self, rights: Rights) -> None:
        self._rights = rights
        self._lock = threading.Lock()
        self._known: dict[tuple[PageUser, str, Doing], tuple[float, bool]] = {}

    def allows(self, caller: PageUser, doing: Doing) -> bool:
        """See `Rights`."""
        # A token may have fewer rights than another one of the same user, as limited by `extra`.
        key = caller, json.dumps(caller.extra, sort_keys=True), doing
        with self._lock:
            until, known = self._known.get(key, (0.0, False))
        if time.monotonic() < until:
            return known
        allowed = self._rights.allows(caller, doing)
        with self._lock:
            if len(self._known) >= _MOST_REMEMBERED:
                self._known.clear()
            self._known[key] = (time.monotonic() + _REMEMBERED, allowed)
        return allowed
