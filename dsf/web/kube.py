"""Requests of the page to the hub's API server: tokens, rights, DynamicScorers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

import dsf.log
from dsf.api.scorer import DynamicScorer
from dsf.errors import BackendError
from dsf.kube.resources import DYNAMIC_SCORERS
from dsf.kube.reviews import Reviews, require_token
from dsf.kube.session import Session
from dsf.process.turns import ClientTurns, client_of
from dsf.process.valuecache import ValueCache
from dsf.web.access import PageUser, Right
from dsf.web.objects import ScorerReader, parse_scorer

log = dsf.log.get(__name__)


class KubeAccess:
    """Tokens and rights of the page's users. Its methods block, and raise BackendError.

    Answers count for some seconds: programs send their token with every request, each request of a logged-in user needs
    that of the session, and every request of an open page needs rights.
    """

    def __init__(self, session: Session, namespace: str) -> None:
        """DynamicScorers are in `namespace`."""
        self._reviews = Reviews(session)
        self._namespace = namespace
        self._holders: ValueCache[str, PageUser] = ValueCache(10.0, 2000, turns=30)
        # Wrong tokens of one client take turns from no others.
        self._turns = ClientTurns(turns=8, share=4, present=20, seconds=1.0)
        self._rights: ValueCache[tuple[PageUser, Right], bool] = ValueCache(10.0, 2000, turns=16)

    def holder(self, token: str, client: str) -> PageUser:
        """Return the holder of a token that came from this address. Raises AccessError (401)."""
        require_token(token)

        def ask() -> PageUser:
            with self._turns.take(client_of(client)):
                user = self._reviews.review_token(token)
            extra = json.dumps(user.get("extra") or {}, sort_keys=True)
            return PageUser(
                user["username"], groups=tuple(user.get("groups") or ()), uid=user.get("uid") or "", extra=extra
            )

        return self._holders.get(hashlib.sha256(token.encode()).hexdigest(), ask)

    def allows(self, caller: PageUser, right: Right) -> bool:
        """True if a user has a right; see `dsf.web.access.Rights`."""
        verb, resource = right
        namespace = self._namespace if resource == DYNAMIC_SCORERS else ""
        user = {"username": caller.name, "groups": list(caller.groups), "uid": caller.uid}
        user["extra"] = json.loads(caller.extra)
        return self._rights.get((caller, right), lambda: self._reviews.allows(user, verb, resource, namespace))


def scorer_reader(session: Session, namespaces: Iterable[str]) -> ScorerReader:
    """DynamicScorers of the API server, kept for some seconds; none without the right to read them."""
    scorer_cache: ValueCache[tuple[str, str], DynamicScorer | None] = ValueCache(3.0, 1000)
    own_namespaces = tuple(dict.fromkeys(namespaces))

    def read(name: str, namespaces: Iterable[str]) -> DynamicScorer | None:
        for namespace in namespaces:
            try:
                return parse_scorer(session.request("GET", DYNAMIC_SCORERS.path(namespace, name)))
            except BackendError as error:
                log.debug("a DynamicScorer cannot be read", scorer=name, namespace=namespace, error=str(error))
        return None

    return lambda name, namespace: scorer_cache.get(
        (namespace, name), lambda: read(name, [namespace] if namespace else own_namespaces)
    )
