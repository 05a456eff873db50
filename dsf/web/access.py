"""Who looks at the page, and who may act on it.

`kubernetes` lets the hub's API server judge: a token is shown at the login, `get dynamicscorers` is needed to look,
`update dynamicscorers` to act, and `list placements` to see Placements. `proxy` believes the headers of a trusted proxy
such as oauth2-proxy, and asks the API server, or a list of groups, what that person may do. `token` knows one token
that may do everything. `open` and `none` know nobody: with `none` the page listens on this machine only, with `open`
nobody may act.
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
#: Seconds for which an answer of the API server about rights is taken for granted.
_REMEMBERED: Final = 10.0
_MOST_REMEMBERED: Final = 2000
#: Headers of oauth2-proxy and its like: the first is whose a request is, else the second; the third has their groups.
_HEADERS: Final = tuple(
    tuple(f"{family}-{what}" for what in ("user", "email", "groups")) for family in ("x-auth-request", "x-forwarded")
)


@dataclass(frozen=True)
class Caller:
    """Who asks. `claimed`: nobody has checked the name."""

    name: str
    claimed: bool = False
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: dict[str, Any] = field(default_factory=dict, hash=False, compare=False)


#: What no header says.
_NOTHING: Final = Caller("")


class Rights(Protocol):
    """What somebody may do."""

    def allows(self, caller: Caller, doing: Doing) -> bool:
        """Whether they may. Raises BackendError when that cannot be known."""


class Access(Protocol):
    """How the page knows people."""

    #: Whether they log in with a token.
    has_login: bool

    def login(self, token: str) -> Caller:
        """Who holds this token. Raises AccessError (401); BackendError or SettingsError when that cannot be known."""

    def recognise(self, request: Request) -> Caller | None:
        """Who sends this request, as far as it says itself; None where a login is needed."""

    def allows(self, caller: Caller, doing: Doing) -> bool:
        """See `Rights`."""


class NobodyKnown:
    """Everybody who reaches the page may look, and act where that was said."""

    has_login = False

    def __init__(self, *, acting: bool) -> None:
        self._acting = acting

    def login(self, token: str) -> Caller:
        """See `Access`."""
        raise AccessError("there is no login here", 401)

    def recognise(self, request: Request) -> Caller | None:
        """See `Access`."""
        return Caller("somebody on this machine", claimed=True)

    def allows(self, caller: Caller, doing: Doing) -> bool:
        """See `Access`."""
        return doing != "act" or self._acting


class TokenAccess:
    """Whoever holds the one token may do everything."""

    has_login = True

    def __init__(self, file: Path) -> None:
        """The file is read at every login. Raises SettingsError when it cannot be."""
        self._file = file
        self._read()

    def login(self, token: str) -> Caller:
        """See `Access`."""
        if not hmac.compare_digest(token.encode(), self._read().encode()):
            raise AccessError("this is not the token of the page", 401)
        return Caller("token", uid=_digest(token))

    def recognise(self, request: Request) -> Caller | None:
        """See `Access`."""
        return None

    def allows(self, caller: Caller, doing: Doing) -> bool:
        """See `Access`. With another token in the file no login with the earlier one counts any more."""
        try:
            return hmac.compare_digest(caller.uid, _digest(self._read()))
        except SettingsError as error:
            raise BackendError(str(error)) from None

    def _read(self) -> str:
        try:
            token = self._file.read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise SettingsError(f"DSF_WEB_TOKEN_FILE: cannot read {self._file}: {reason}") from None
        if not token:
            raise SettingsError(f"DSF_WEB_TOKEN_FILE: {self._file} is empty; it has to hold the token")
        return token


class LoginAccess:
    """People log in with a token of theirs; somebody else says who holds it and what they may do."""

    has_login = True

    def __init__(self, holder: Callable[[str], Caller], rights: Rights) -> None:
        self._holder = holder
        self._rights = rights

    def login(self, token: str) -> Caller:
        """See `Access`."""
        return self._holder(token)

    def recognise(self, request: Request) -> Caller | None:
        """See `Access`."""
        return None

    def allows(self, caller: Caller, doing: Doing) -> bool:
        """See `Access`."""
        return self._rights.allows(caller, doing)


class ProxyAccess:
    """A trusted proxy says who it is."""

    has_login = False

    def __init__(self, rights: Rights) -> None:
        self._rights = rights

    def login(self, token: str) -> Caller:
        """See `Access`."""
        raise AccessError("the proxy in front of this page has the login", 401)

    def recognise(self, request: Request) -> Caller | None:
        """See `Access`. Raises AccessError (401) for a request that did not come through the proxy."""
        if not request.scope["dsf.trusted"]:
            raise AccessError("come through the proxy in front of this page: it knows who you are", 401)
        said = {_said(request, headers) for headers in _HEADERS} - {_NOTHING}
        if len(said) > 1:
            # A proxy writes over the headers that it sends, and may let those of its visitors pass that it does not.
            raise AccessError(
                "X-Auth-Request-User, -Email and -Groups say something else than X-Forwarded-User, -Email and -Groups: "
                "the proxy in front of this page has to remove those that it does not write itself",
                401,
            )
        caller = next(iter(said), _NOTHING)
        if not caller.name:
            raise AccessError("the proxy in front of this page does not say who you are", 401)
        return caller

    def allows(self, caller: Caller, doing: Doing) -> bool:
        """See `Access`."""
        return self._rights.allows(caller, doing)


def _said(request: Request, headers: Sequence[str]) -> Caller:
    """Whom headers of one family name."""
    user, email, groups = (request.headers.get(header, "").strip() for header in headers)
    return Caller(user or email, groups=tuple(one.strip() for one in groups.split(",") if one.strip()))


class ListedRights:
    """Users and groups that may act; all others may look."""

    def __init__(self, operators: Sequence[str]) -> None:
        self._operators = frozenset(operators)

    def allows(self, caller: Caller, doing: Doing) -> bool:
        """See `Rights`."""
        return doing != "act" or not self._operators.isdisjoint({caller.name, *caller.groups})


class RememberedRights:
    """Asks `rights` again after some seconds only: each open page asks at each request."""

    def __init__(self, rights: Rights) -> None:
        self._rights = rights
        self._lock = threading.Lock()
        self._known: dict[tuple[Caller, str, Doing], tuple[float, bool]] = {}

    def allows(self, caller: Caller, doing: Doing) -> bool:
        """See `Rights`."""
        # A token may be good for less than another one of the same user: what limits it is in `extra`.
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


def _digest(token: str) -> str:
    """What a login keeps of the page's own token."""
    return hashlib.sha256(f"page\0{token}".encode()).hexdigest()
