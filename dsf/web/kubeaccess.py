"""Token review and authorization by the hub's API server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dsf.errors import AccessError
from dsf.kube.patience import request_with_retry
from dsf.kube.resources import ACCESS_REVIEWS, DYNAMIC_SCORERS, PLACEMENTS, TOKEN_REVIEWS, Resource
from dsf.kube.session import Session
from dsf.web.access import Doing, PageUser

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
