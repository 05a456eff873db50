"""Authentication and authorization of the page's users.

`kubernetes` checks the login token on the hub's API server: `LOOK` is required to read, `ACT` to act, and pages may
require other rights. `proxy` trusts the headers of a proxy such as
oauth2-proxy and checks the user's rights on the API server, or by a list of groups. `token` is one token with all
rights. The others do not authenticate: `none` and `local` listen on this machine only, `none` and `open` are read-only,
`local` and `anyone` are not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from starlette.requests import Request

from dsf.errors import AccessError
from dsf.kube.resources import DYNAMIC_SCORERS, Resource


class Right(NamedTuple):
    """A right on the hub's API server: on the DynamicScorers of the hub's namespace, or on a kind in all namespaces."""

    verb: str
    resource: Resource

    def __str__(self) -> str:
        return f"{self.verb} {self.resource.plural}"


LOOK: Final = Right("get", DYNAMIC_SCORERS)
ACT: Final = Right("update", DYNAMIC_SCORERS)
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
    #: JSON of what else the API server says of a token: it may have fewer rights than another one of its user.
    extra: str = "{}"


#: The holder of a token that came from a client: an address, or the name of a session. Raises AccessError for an
#: unknown one (401) or after too many of them (429); BackendError or SettingsError if this cannot be checked.
Holder = Callable[[str, str], PageUser]
#: Whether a user has a right. Raises BackendError if this cannot be checked.
Rights = Callable[[PageUser, Right], bool]


@dataclass(frozen=True)
class UserAccess:
    """Authentication of users, and their rights."""

    allows: Rights
    #: The user of a request by its headers; None if a login is required. Raises AccessError (401).
    recognise: Callable[[Request], PageUser | None] = lambda _: None
    #: The holder of the token that users log in with; None without a login.
    login: Holder | None = None
    #: Whether every client is taken for a user.
    is_open: bool = False


def without_users(*, acting: bool) -> UserAccess:
    """Without authentication: every client may read, and act if `acting`."""
    anybody = PageUser("a user of this machine", claimed=True)
    return UserAccess(lambda _, right: right != ACT or acting, lambda _: anybody, is_open=True)


def behind_proxy(rights: Rights) -> UserAccess:
    """Return a trusted proxy authenticates the user."""
    return UserAccess(rights, _by_headers)


def _by_headers(request: Request) -> PageUser:
    if not request.scope["dsf.trusted"]:
        raise AccessError("use the proxy in front of this page, which authenticates you", 401)
    callers = {_caller_of(request, headers) for headers in _HEADERS} - {PageUser("")}
    if len(callers) > 1:
        # A proxy overwrites the headers that it sets, but may pass other ones from its clients.
        raise AccessError(
            "X-Auth-Request-User, -Email and -Groups differ from X-Forwarded-User, -Email and -Groups: the proxy "
            "in front of this page must remove those that it does not set itself",
            401,
        )
    caller = next(iter(callers), None)
    if caller is None or not caller.name:
        raise AccessError("the proxy in front of this page did not name a user", 401)
    return caller


def _caller_of(request: Request, headers: Sequence[str]) -> PageUser:
    """Return the user that headers of one family name. Raises AccessError (401) for one that is there twice."""
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


def listed(operators: Sequence[str]) -> Rights:
    """Return the rights by which these users and groups may act, and all others may read."""
    names = frozenset(operators)
    return lambda caller, right: right != ACT or not names.isdisjoint({caller.name, *caller.groups})
