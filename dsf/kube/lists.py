"""All objects of a kind, read in pages."""

from __future__ import annotations

from typing import Any, Final

from dsf.errors import ObjectNotFoundError
from dsf.kube.patience import request_with_retry
from dsf.kube.resources import Resource
from dsf.kube.session import ExpiredError, Session

#: Attempts for a list whose continue token expires between pages.
_ATTEMPTS: Final = 3


def objects(
    session: Session, resource: Resource, namespace: str = "", *, labels: str = "", name: str = ""
) -> list[dict[str, Any]]:
    """All objects of one or all namespaces, by label selector and by name.

    A kind that the API server does not have has no objects. Raises BackendError.
    """
    query = {"limit": "500"} | ({"labelSelector": labels} if labels else {})
    if name:
        query["fieldSelector"] = f"metadata.name={name}"
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return _pages(session, resource.path(namespace), query)
        except ObjectNotFoundError:
            return []
        except ExpiredError:
            if attempt == _ATTEMPTS:
                raise
    raise AssertionError("unreachable")


def _pages(session: Session, path: str, query: dict[str, str]) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    more = ""
    while True:
        page = request_with_retry(session, "GET", path, query=query | ({"continue": more} if more else {}))
        items += page.get("items") or ()
        more = (page.get("metadata") or {}).get("continue") or ""
        if not more:
            return items
