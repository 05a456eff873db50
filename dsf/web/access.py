"""Authentication and authorization of the page's users.

The setting DSF_WEB_AUTH selects one of these modes:

- `kubernetes` checks the login token on the hub's API server. Reading requires `READ_RIGHT`, acting `ACT_RIGHT`, and
  pages may require other rights.
- `proxy` trusts the headers of a proxy such as oauth2-proxy. It checks the user's rights on the API server, or by a
  list of users and groups.
- `token` accepts one token, which has all rights.
- `none`, `local`, `open` and `anyone` do not authenticate. `none` and `local` listen on this machine only. `none` and
  `open` are read-only; `local` and `anyone` allow actions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from starlette.requests import Request

from dsf.errors import AccessError
from dsf.kube.resources import DYNAMIC_SCORERS, Resource


class Right(NamedTuple):
    """A right on the hub's API server.

    A right on DynamicScorers applies to the hub's namespace, a right on another resource to all namespaces.
    """

    verb: str
    resource: Resource

    def __str__(self) -> str:
        return f"{self.verb} {self.resource.plural}"


#: The right to read.
READ_RIGHT: Final = Right("get", DYNAMIC_SCORERS)
#: The right to act.
ACT_RIGHT: Final = Right("update", DYNAMIC_SCORERS)
#: Headers by which oauth2-proxy and similar proxies name a user: for each prefix those of user, email and groups.
_USER_HEADERS: Final = tuple(
    tuple(f"{prefix}-{field}" for field in ("user", "email", "groups")) for prefix in ("x-auth-request", "x-forwarded")
)


@dataclass(frozen=True)
class PageUser:
    """The user of a request. `claimed` is True if the name is unverified."""

    name: str
    claimed: bool = False
    groups: tuple[str, ...] = ()
    uid: str = ""
    #: The extra attributes that the API server returns for a token, as JSON. They are part of the user, because two
    #: tokens of the same user may have different rights.
    extra: str = "{}"


#: Returns the holder of a token. The second argument is the client: an address or the name of a session. Raises
#: AccessError for an unknown token (401) or after too many unknown tokens of the client (429). Raises BackendError or
#: SettingsError if the token cannot be checked.
TokenReviewer = Callable[[str, str], PageUser]
#: Returns True if a user has a right. Raises BackendError if this cannot be checked.
RightsChecker = Callable[[PageUser, Right], bool]


@dataclass(frozen=True)
class UserAccess:
    """The functions that authenticate users and check their rights."""

    allows: RightsChecker
    #: Returns the user of a request by its headers; None if a login is required. Raises AccessError (401) if the
    #: headers are invalid.
    find_user: Callable[[Request], PageUser | None] = lambda _: None
    #: Returns the holder of the token with which a user logs in; None if there is no login.
    login: TokenReviewer | None = None
    #: True if every client is accepted without authentication.
    is_open: bool = False


def allow_everyone(*, acting: bool) -> UserAccess:
    """Return access without authentication. Every client may read, and may act if `acting` is True."""
    anonymous_user = PageUser("a user of this machine", claimed=True)
    return UserAccess(lambda _, right: right != ACT_RIGHT or acting, lambda _: anonymous_user, is_open=True)


def trust_proxy(rights: RightsChecker) -> UserAccess:
    """Return access for users whom a trusted proxy authenticates."""
    return UserAccess(rights, _read_proxy_user)


def _read_proxy_user(request: Request) -> PageUser:
    """Return the user that the proxy's headers name. Raises AccessError (401) unless they name exactly one."""
    if not request.scope["dsf.trusted"]:
        raise AccessError("use the proxy in front of this page, which authenticates you", 401)
    users = {_read_user(request, headers) for headers in _USER_HEADERS} - {PageUser("")}
    # Refuse contradictory headers, because a proxy overwrites the headers that it sets, but may pass on other headers
    # of its clients.
    if len(users) > 1:
        raise AccessError(
            "X-Auth-Request-User, -Email and -Groups differ from X-Forwarded-User, -Email and -Groups: the proxy "
            "in front of this page must remove those that it does not set itself",
            401,
        )
    user = next(iter(users), None)
    if user is None or not user.name:
        raise AccessError("the proxy in front of this page did not name a user", 401)
    return user


def _read_user(request: Request, headers: Sequence[str]) -> PageUser:
    """Return the user named by the headers of user, email and groups. The email is used if the user is empty.

    Raises AccessError (401) if a header occurs twice.
    """
    user, email, groups = (_read_single_header(request, header) for header in headers)
    return PageUser(user or email, groups=tuple(group.strip() for group in groups.split(",") if group.strip()))


def _read_single_header(request: Request, header: str) -> str:
    lines = request.headers.getlist(header)
    if len(lines) > 1:
        raise AccessError(
            f"the request has {len(lines)} lines {header}: the proxy in front of this page must replace what its "
            f"clients send, not add to it",
            401,
        )
    return lines[0].strip() if lines else ""


def allow_operators(operators: Sequence[str]) -> RightsChecker:
    """Return rights by which all users may read, and the users and groups in `operators` may act."""
    names = frozenset(operators)
    return lambda user, right: right != ACT_RIGHT or not names.isdisjoint({user.name, *user.groups})
