"""What the page asks the hub's API server: tokens, rights, DynamicScorers."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

import dsf.log
from dsf.api.scorer import DynamicScorer
from dsf.errors import AccessError, BackendError
from dsf.kube.patience import request_with_retry
from dsf.kube.resources import ACCESS_REVIEWS, DYNAMIC_SCORERS, PLACEMENTS, TOKEN_REVIEWS, Resource
from dsf.kube.session import Session
from dsf.web.access import Doing, PageUser
from dsf.web.objects import parsed

log = dsf.log.get(__name__)

#: The right that each action requires; Placements in all namespaces.
_RIGHTS: Final[Mapping[Doing, tuple[str, Resource]]] = {
    "look": ("get", DYNAMIC_SCORERS),
    "act": ("update", DYNAMIC_SCORERS),
    "placements": ("list", PLACEMENTS),
}


class KubeAccess:
    """TokenReview and SubjectAccessReview. Its methods block, and raise BackendError."""

    def __init__(self, session: Session, namespace: str) -> None:
        """DynamicScorers are in `namespace`."""
        self._session = session
        self._namespace = namespace

    def holder(self, token: str) -> PageUser:
        """The holder of a token. Raises AccessError (401)."""
        status = self._review(TOKEN_REVIEWS, {"token": token})
        if not status.get("authenticated"):
            raise AccessError("the hub's API server does not know this token, or it has expired", 401)
        user = status.get("user") or {}
        name = user.get("username") or ""
        if not name:
            raise AccessError("the hub's API server does not say whose token this is", 401)
        groups = tuple(user.get("groups") or ())
        return PageUser(name, groups=groups, uid=user.get("uid") or "", extra=user.get("extra") or {})

    def allows(self, caller: PageUser, doing: Doing) -> bool:
        """See `dsf.web.access.Rights`."""
        verb, resource = _RIGHTS[doing]
        spec = {
            "user": caller.name,
            "groups": list(caller.groups),
            "resourceAttributes": {
                "namespace": self._namespace if resource is DYNAMIC_SCORERS else "",
                "verb": verb,
                "group": resource.group,
                "resource": resource.plural,
            },
        }
        if caller.uid:
            spec["uid"] = caller.uid
        if caller.extra:
            spec["extra"] = caller.extra
        return bool(self._review(ACCESS_REVIEWS, spec).get("allowed"))

    def _review(self, resource: Resource, spec: Mapping[str, Any]) -> dict[str, Any]:
        body = {"apiVersion": resource.api_version, "kind": resource.kind, "spec": spec}
        return request_with_retry(self._session, "POST", resource.path(), body=body).get("status") or {}


class ScorerCache:
    """DynamicScorers of the API server, cached for some seconds; none without the right to read them."""

    def __init__(self, session: Session, namespaces: Iterable[str]) -> None:
        self._session = session
        self._namespaces = tuple(dict.fromkeys(namespaces))
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str], tuple[float, DynamicScorer | None]] = {}

    def scorer(self, name: str, namespace: str = "") -> DynamicScorer | None:
        """See the protocol."""
        key = namespace, name
        with self._lock:
            until, scorer = self._known.get(key, (0.0, None))
        if time.monotonic() < until:
            return scorer
        scorer = self._read(name, [namespace] if namespace else self._namespaces)
        with self._lock:
            if len(self._known) > 1000:
                self._known.clear()
            self._known[key] = (time.monotonic() + 3.0, scorer)
        return scorer

    def _read(self, name: str, namespaces: Iterable[str]) -> DynamicScorer | None:
        for namespace in namespaces:
            try:
                return parsed(self._session.request("GET", DYNAMIC_SCORERS.path(namespace, name)))
            except BackendError as error:
                log.debug("a DynamicScorer cannot be read", scorer=name, namespace=namespace, error=str(error))
        return None
