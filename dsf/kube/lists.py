"""Requests for callers without a work queue: retries while the API server is overloaded, and lists in pages."""

from __future__ import annotations

import contextlib
import time
from http import HTTPStatus
from typing import Any, Final

from dsf.errors import ObjectNotFoundError
from dsf.kube.resources import Resource
from dsf.kube.session import ApiServerError, ExpiredError, Session

#: Attempts for a list whose continue token expires between pages.
_LIST_ATTEMPTS: Final = 3
#: Seconds for which a request is retried while the API server is overloaded.
_RETRY_SECONDS: Final = 10.0
#: Seconds between two attempts if the response has no Retry-After.
_DEFAULT_PAUSE_SECONDS: Final = 1.0


def list_objects(
    session: Session, resource: Resource, namespace: str = "", *, labels: str = "", name: str = ""
) -> list[dict[str, Any]]:
    """Return all objects of one or all namespaces, selected by labels and by name. Raises BackendError.

    Returns an empty list if the API server does not serve the kind.
    """
    query = {"limit": "500"} | ({"labelSelector": labels} if labels else {})
    if name:
        query["fieldSelector"] = f"metadata.name={name}"
    try:
        for _ in range(_LIST_ATTEMPTS - 1):
            with contextlib.suppress(ExpiredError):
                return _list_pages(session, resource.path(namespace), query)
        return _list_pages(session, resource.path(namespace), query)
    except ObjectNotFoundError:
        return []


def _list_pages(session: Session, path: str, query: dict[str, str]) -> list[dict[str, Any]]:
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
    """Make a request as `Session.request` does, and retry it after status 429: the server has not processed it."""
    deadline = time.monotonic() + _RETRY_SECONDS
    while True:
        try:
            return session.request(method, path, **options)
        except ApiServerError as error:
            pause = error.retry_after or _DEFAULT_PAUSE_SECONDS
            if error.status != HTTPStatus.TOO_MANY_REQUESTS or time.monotonic() + pause > deadline:
                raise
        time.sleep(pause)
