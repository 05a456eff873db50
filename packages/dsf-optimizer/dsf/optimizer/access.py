"""Authentication and authorization of the optimiser's callers.

The optimiser writes with its own rights, so callers need the rights to do the same manually. The setting
DSF_OPTIMIZER_AUTH selects one of these modes:

- `kubernetes` checks token and rights on the hub's API server.
- `token` accepts one token, which has all rights.
- `none` does not authenticate, for a service that only its user can reach.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import dsf.log
from dsf.errors import AccessError, SettingsError
from dsf.http.hosts import is_loopback
from dsf.kube.resources import ADDON_PLACEMENT_SCORES, DYNAMIC_SCORERS, PLACEMENTS, Resource
from dsf.kube.reviews import Reviews
from dsf.kube.session import Session
from dsf.placements.kinds import MANIFEST_WORK_REPLICA_SETS, PLACEMENT_BINDINGS, POLICIES
from dsf.process.clienttoken import TokenFile

log = dsf.log.get(__name__)


class GuardedAction(StrEnum):
    """Actions that need rights."""

    LIST_SCORES = "list scores"
    EXPLAIN_SCORER = "explain a scorer"
    PROPOSE = "propose a plan"
    APPLY = "apply a plan"
    RESET = "reset a plan"
    LIST_PLANS = "list plans"
    RESCORE = "score now"


@dataclass(frozen=True)
class Right:
    """A right on the API server, in one namespace (`in_namespace`) or in all."""

    verb: str
    resource: Resource
    in_namespace: bool = True


_READ: Final = (
    Right("get", MANIFEST_WORK_REPLICA_SETS),
    Right("get", POLICIES),
    Right("list", ADDON_PLACEMENT_SCORES, in_namespace=False),
)
_DELETE: Final = (Right("delete", PLACEMENTS), Right("delete", PLACEMENT_BINDINGS))

#: The rights that each action requires.
RIGHTS: Final[Mapping[GuardedAction, Sequence[Right]]] = {
    GuardedAction.LIST_SCORES: (Right("list", ADDON_PLACEMENT_SCORES),),
    GuardedAction.EXPLAIN_SCORER: (
        Right("list", DYNAMIC_SCORERS, in_namespace=False),
        Right("list", ADDON_PLACEMENT_SCORES, in_namespace=False),
    ),
    GuardedAction.PROPOSE: _READ,
    GuardedAction.APPLY: (*_READ, Right("create", PLACEMENTS), Right("create", PLACEMENT_BINDINGS), *_DELETE),
    GuardedAction.RESET: _DELETE,
    GuardedAction.LIST_PLANS: (Right("list", PLACEMENTS), Right("list", PLACEMENT_BINDINGS)),
    # Users with the right to change a scorer can also make it score by suspend and resume.
    GuardedAction.RESCORE: (Right("update", DYNAMIC_SCORERS),),
}


@dataclass(frozen=True)
class Caller:
    """The caller, as named by the API server."""

    name: str
    #: The `user` of a TokenReview.
    user: Mapping[str, Any] = field(default_factory=dict)


#: Caller of the current request; set by `middleware.AccessMiddleware`.
current_caller: ContextVar[Caller] = ContextVar("current_caller")

#: True if the current request is a tool call of an assistant; set by `mcp`.
by_tool: ContextVar[bool] = ContextVar("by_tool", default=False)


class CallerAccess:
    """Authenticates and authorizes callers. Its methods block, and raise BackendError if they cannot decide."""

    #: True if a token is required. Without a token, cross-site requests of web pages are refused.
    needs_token = True

    def authenticate(self, token: str | None, client: str) -> Caller:
        """Return the holder of this token, which came from a client's address. Raises AccessError (401, 429)."""
        if token is None:
            raise AccessError("no token; send `Authorization: Bearer TOKEN`", 401)
        return self._identify_holder(token, client)

    def authorize(self, caller: Caller, action: GuardedAction, namespace: str | None) -> None:
        """Raise AccessError (403) unless the caller may do this in the namespace, or in all namespaces if it is None.

        This base class allows everything.
        """

    def _identify_holder(self, token: str, client: str) -> Caller:
        raise NotImplementedError


class OpenAccess(CallerAccess):
    """Grants all rights to all callers."""

    needs_token = False

    def authenticate(self, token: str | None, client: str) -> Caller:
        """Return an anonymous caller, who has all rights; see `CallerAccess`."""
        return Caller("anonymous")


class TokenAccess(CallerAccess):
    """Grants all rights to callers with the configured token."""

    def __init__(self, file: Path) -> None:
        """Raises SettingsError if the file is unreadable."""
        self._file = TokenFile(file)
        self._file.read()

    def _identify_holder(self, token: str, client: str) -> Caller:
        self._file.check(token, client)
        return Caller("token")


class KubernetesAccess(CallerAccess):
    """Checks tokens and rights on the hub's API server."""

    def __init__(self, session: Session, scorer_namespace: str) -> None:
        """DynamicScorers are in `scorer_namespace`."""
        self._reviews = Reviews(session)
        self._scorer_namespace = scorer_namespace

    def _identify_holder(self, token: str, client: str) -> Caller:
        user = self._reviews.review_token(token)
        return Caller(user["username"], user)

    def authorize(self, caller: Caller, action: GuardedAction, namespace: str | None) -> None:
        """Check the rights by a SubjectAccessReview; see `CallerAccess`."""
        action_namespace = self._scorer_namespace if action is GuardedAction.RESCORE else namespace or ""
        for right in RIGHTS[action]:
            checked_namespace = action_namespace if right.in_namespace else ""
            if not self._reviews.allows(caller.user, right.verb, right.resource, checked_namespace):
                log.warning("caller refused", caller=caller.name, action=action.value, namespace=checked_namespace)
                scope_text = f"in namespace {checked_namespace}" if checked_namespace else "in all namespaces"
                raise AccessError(
                    f"{caller.name} may not {right.verb} {right.resource} {scope_text}; needed to {action}", 403
                )


def make_access(mode: str, host: str, token_file: Path | None, session: Session, scorer_namespace: str) -> CallerAccess:
    """Return access control by the settings. Raises SettingsError if the service would be open to other machines."""
    if mode == "token":
        if token_file is None:
            raise SettingsError("DSF_OPTIMIZER_AUTH is token, so DSF_CLIENT_TOKEN_FILE must name the token's file")
        return TokenAccess(token_file)
    if mode == "none":
        if not is_loopback(host):
            raise SettingsError(
                f"DSF_OPTIMIZER_AUTH is none and DSF_LISTEN_HOST is {host}: every client could move workloads; "
                f"use 127.0.0.1, or auth kubernetes or token"
            )
        return OpenAccess()
    return KubernetesAccess(session, scorer_namespace)
