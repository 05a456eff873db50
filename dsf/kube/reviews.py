"""Authenticates and authorizes users of services by reviews of the hub's API server."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from dsf.errors import AccessError
from dsf.kube.lists import request_with_retry
from dsf.kube.resources import ACCESS_REVIEWS, TOKEN_REVIEWS, Resource
from dsf.kube.session import Session

#: Token of a ServiceAccount or of OpenID Connect: three base64url parts, the first two of which are JSON objects.
_JWT_PATTERN: Final = re.compile(r"eyJ[\w-]+\.eyJ[\w-]+\.[\w-]+", re.ASCII)
#: Token of OpenShift, as printed by `oc whoami -t`.
_OPENSHIFT_TOKEN_PATTERN: Final = re.compile(r"sha256~[\w-]{43}", re.ASCII)


def require_token(token: str) -> None:
    """Raise AccessError (401) for a text that is not a token, so that only tokens are sent to the API server."""
    if not (_JWT_PATTERN.fullmatch(token) or _OPENSHIFT_TOKEN_PATTERN.fullmatch(token)):
        raise AccessError(
            "this is no token of a ServiceAccount or of a login; make one with `kubectl create token ACCOUNT`", 401
        )


class Reviews:
    """Sends TokenReviews and SubjectAccessReviews. Methods block, and raise BackendError."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def review_token(self, token: str) -> dict[str, Any]:
        """Return the user of a token: `username`, `uid`, `groups` and `extra`. Raises AccessError (401)."""
        require_token(token)
        status = self._review(TOKEN_REVIEWS, {"token": token})
        if not status.get("authenticated"):
            raise AccessError("the hub's API server does not know this token, or it has expired", 401)
        user: dict[str, Any] = status.get("user") or {}
        if not user.get("username"):
            raise AccessError("the hub's API server does not say whose token this is", 401)
        return user

    def allows(self, user: Mapping[str, Any], verb: str, resource: Resource, namespace: str) -> bool:
        """True if a user of `review_token` may use the verb on the resource in a namespace; "" stands for all."""
        spec = {
            "user": user["username"],
            **{key: user[key] for key in ("uid", "groups", "extra") if user.get(key)},
            "resourceAttributes": {
                "namespace": namespace,
                "verb": verb,
                "group": resource.group,
                "resource": resource.plural,
            },
        }
        return bool(self._review(ACCESS_REVIEWS, spec).get("allowed"))

    def _review(self, resource: Resource, spec: Mapping[str, Any]) -> dict[str, Any]:
        body = {"apiVersion": resource.api_version, "kind": resource.kind, "spec": spec}
        return request_with_retry(self._session, "POST", resource.path(), body=body).get("status") or {}
