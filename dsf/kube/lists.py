"""Requests for callers without a work queue: repeated while the API server is busy; all objects of a kind, in pages."""

from __future__ import annotations

import contextlib
import time
from http import HTTPStatus
from typing import Any, Final

from dsf.errors import ObjectNotFoundError
from dsf.kube.resources import Resource
from dsf.kube.session import ApiServerError, ExpiredError, Session

#: Attempts for a list whose continue token expires between pages.
_ATTEMPTS: Final = 3
#: Seconds for which a request is repeated while the API server is overloaded, and seconds between two attempts without
#: a Retry-After.
_BUSY: Final = 10.0
_PAUSE: Final = 1.0


def objects(
    session: Session, resource: Resource, namespace: str = "", *, labels: str = "", name: str = ""
) -> list[dict[str, Any]]:
    """All objects of one or all namespaces, by label selector and by name.

    A kind that the API server does not have has no objects. Raises BackendError.
    """
    query = {"limit": "500"} | ({"labelSelector": labels} if labels else {})
    if name:
        query["fieldSelector"] = f"metadata.name={name}"
    try:
        for _ in range(_ATTEMPTS - 1):
            with contextlib.suppress(ExpiredError):
                return _pages(session, resource.path(namespace), query)
        return _pages(session, resource.path(namespace), query)
    except ObjectNotFoundError:
        return []


def _pages(session: Session, path: str, query: dict[str, str]) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    continue_token = ""
    while True:
        page = request_with_retry(
            session, "GET", path, query=query | ({"continue": continue_token} if continue_token else {})
        )
        items += page.get("items") or ()
        continue_token = (page.get("metadata") or {}).get("continue") or ""
        if not continue_token:
            return items


def request_with_retry(session: Session, method: str, path: str, **options: Any) -> dict[str, Any]:
    """See `Session.request`. A request answered with 429 was not processed, so it can be sent again."""
    deadline = time.monotonic() + _BUSY
    while True:
        try:
            return session.request(method, path, **options)
        except ApiServerError as error:
            pause = error.retry_after or _PAUSE
            if error.status != HTTPStatus.TOO_MANY_REQUESTS or time.monotonic() + pause > deadline:
                raise
        time.sleep(pause)
