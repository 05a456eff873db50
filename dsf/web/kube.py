"""Checks tokens and rights of users on the hub's API server, and reads DynamicScorers from it."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable
from typing import Final

import dsf.log
from dsf.api.scorer import DynamicScorer
from dsf.backends.kube_kinds import MAX_SPEC_BYTES, reduce_user_object
from dsf.errors import BackendError
from dsf.kube.reflector import drop_managed_fields
from dsf.kube.resources import DYNAMIC_SCORERS
from dsf.kube.reviews import Reviews, require_token
from dsf.kube.session import Session
from dsf.process.clientlimiter import ClientLimiter, find_client
from dsf.process.valuecache import ValueCache
from dsf.web.access import PageUser, Right
from dsf.web.objects import ScorerReader, parse_scorer

log = dsf.log.get(__name__)

#: Seconds for which holders of tokens and results of checks of rights are cached.
_CACHE_SECONDS: Final = 10.0
#: Maximum number of cached holders of tokens, and of cached results of checks of rights.
_MAX_CACHED: Final = 2000
#: Seconds for which DynamicScorers are cached.
_SCORER_CACHE_SECONDS: Final = 3.0
#: Maximum number of cached DynamicScorers.
_MAX_CACHED_SCORERS: Final = 200
#: Maximum bytes of a DynamicScorer in JSON, which takes up to 20 times as much memory once it is parsed.
_MAX_SCORER_BYTES: Final = 512 * 1024
#: Maximum seconds for reading a DynamicScorer from one namespace.
_SCORER_READ_TIMEOUT: Final = 30.0


class KubeAccess:
    """Checks tokens and rights of the page's users.

    The methods block. They raise BackendError if the API server cannot complete a check, or if too many checks run.
    Responses of the API server are cached for some seconds, because every request to the page needs a token and rights.
    """

    def __init__(self, session: Session, namespace: str) -> None:
        """Check rights on DynamicScorers in `namespace`."""
        self._reviews = Reviews(session)
        self._namespace = namespace
        self._holders: ValueCache[str, PageUser] = ValueCache(_CACHE_SECONDS, _MAX_CACHED, max_threads=30)
        # Each client has its own limit, so that invalid tokens of one client do not delay other clients.
        self._limiter = ClientLimiter(max_running=8, max_running_per_client=4, max_requests=20, seconds=1.0)
        self._rights: ValueCache[tuple[PageUser, Right], bool] = ValueCache(_CACHE_SECONDS, _MAX_CACHED, max_threads=16)

    def identify_holder(self, token: str, client: str) -> PageUser:
        """Return the holder of a token; see `dsf.web.access.TokenReviewer`.

        `client` is the address of a client or the name of its session. Raises AccessError (401) for an invalid token.
        """
        require_token(token)

        def review_token() -> PageUser:
            with self._limiter.limit(find_client(client)):
                user = self._reviews.review_token(token)
            extra = json.dumps(user.get("extra") or {}, sort_keys=True)
            return PageUser(
                user["username"], groups=tuple(user.get("groups") or ()), uid=user.get("uid") or "", extra=extra
            )

        return self._holders.get(hashlib.sha256(token.encode()).hexdigest(), review_token)

    def allows(self, caller: PageUser, right: Right) -> bool:
        """Return True if the caller has a right; see `dsf.web.access.RightsChecker`."""
        verb, resource = right
        namespace = self._namespace if resource == DYNAMIC_SCORERS else ""
        user = {"username": caller.name, "groups": list(caller.groups), "uid": caller.uid}
        user["extra"] = json.loads(caller.extra)
        return self._rights.get((caller, right), lambda: self._reviews.allows(user, verb, resource, namespace))


def make_scorer_reader(session: Session, namespaces: Iterable[str]) -> ScorerReader:
    """Return a function that reads DynamicScorers from the API server and caches them for some seconds.

    The function returns None if the API server cannot be read, or if the DynamicScorer is missing, forbidden, too large
    or invalid. For a name without a namespace, the function searches `namespaces` in their order.
    """
    scorer_cache: ValueCache[tuple[str, str], DynamicScorer | None] = ValueCache(
        _SCORER_CACHE_SECONDS, _MAX_CACHED_SCORERS
    )
    default_namespaces = tuple(dict.fromkeys(namespaces))

    def read_scorer(name: str, candidate_namespaces: Iterable[str]) -> DynamicScorer | None:
        for namespace in candidate_namespaces:
            try:
                manifest, _ = session.read(
                    DYNAMIC_SCORERS.path(namespace, name),
                    {},
                    max_bytes=_MAX_SCORER_BYTES,
                    deadline=time.monotonic() + _SCORER_READ_TIMEOUT,
                )
                # Apply the hub's limit: the hub does not run a scorer with a larger spec.
                return parse_scorer(reduce_user_object(drop_managed_fields(manifest), MAX_SPEC_BYTES))
            except BackendError as error:
                log.debug("a DynamicScorer cannot be read", scorer=name, namespace=namespace, error=str(error))
        return None

    return lambda name, namespace: scorer_cache.get(
        (namespace, name), lambda: read_scorer(name, [namespace] if namespace else default_namespaces)
    )
