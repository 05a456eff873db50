"""Reads lists in pages, and retries requests while the API server is overloaded, for callers without a work queue."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from typing import Any, Final

from dsf.errors import ObjectNotFoundError
from dsf.kube.resources import Resource
from dsf.kube.session import ApiServerError, ExpiredError, Session, TooLargeError

#: Maximum bytes of one page of a list. The parsed page takes up to 20 times its bytes.
MAX_PAGE_BYTES: Final = 8 * 1024 * 1024
#: Maximum seconds for a page.
_PAGE_SECONDS: Final = 30.0
#: Maximum attempts for a list whose continue token expires between pages.
_MAX_LIST_ATTEMPTS: Final = 3
#: Maximum seconds for which a request is retried while the API server is overloaded.
_RETRY_SECONDS: Final = 10.0
#: Seconds between two attempts if the response has no Retry-After.
_DEFAULT_PAUSE_SECONDS: Final = 1.0


def list_objects(
    session: Session, resource: Resource, namespace: str = "", *, labels: str = "", name: str = ""
) -> list[dict[str, Any]]:
    """Return all objects of one or all namespaces, selected by labels and by name. Raises BackendError.

    Returns an empty list if the API server does not serve the kind.
    """
    for _ in range(_MAX_LIST_ATTEMPTS - 1):
        with contextlib.suppress(ExpiredError):
            return list(iterate_objects(session, resource, namespace, labels=labels, name=name))
    return list(iterate_objects(session, resource, namespace, labels=labels, name=name))


def iterate_objects(
    session: Session, resource: Resource, namespace: str = "", *, labels: str = "", name: str = ""
) -> Iterator[dict[str, Any]]:
    """Yield the objects of `list_objects`, with only one page at a time in memory.

    Raises BackendError, also ExpiredError if the continue token expires while the caller processes a page.
    """
    query = {"labelSelector": labels} if labels else {}
    if name:
        query["fieldSelector"] = f"metadata.name={name}"
    path = resource.path(namespace)

    def read(query: dict[str, str], max_bytes: int) -> dict[str, Any]:
        return _retry(lambda: read_page(session, path, query, max_bytes))

    with contextlib.suppress(ObjectNotFoundError):
        for page in iterate_pages(read, query):
            yield from page.get("items") or ()


def iterate_pages(
    read: Callable[[dict[str, str], int], dict[str, Any]], query: Mapping[str, str], page_size: int = 500
) -> Iterator[dict[str, Any]]:
    """Yield the pages of a list. `read` gets the query of a page and its maximum bytes, and returns the page.

    Reduces the page size if a page exceeds the maximum bytes. Raises the errors of `read`.
    """
    page_query = dict(query)
    while True:
        page_query["limit"] = str(page_size)
        # Allow more for a single object, whose size the API server itself limits.
        max_bytes = MAX_PAGE_BYTES if page_size > 1 else 2 * MAX_PAGE_BYTES
        try:
            page = read(page_query, max_bytes)
        except TooLargeError:
            if page_size == 1:
                raise
            page_size = max(page_size // 8, 1)
            continue
        yield page
        continue_token = (page.get("metadata") or {}).get("continue")
        if not continue_token:
            return
        page_query["continue"] = continue_token


def read_page(session: Session, path: str, query: Mapping[str, str], max_bytes: int) -> dict[str, Any]:
    """Return one page of a list. Raises TooLargeError beyond `max_bytes`, and BackendError."""
    page, _ = session.read(path, query, max_bytes=max_bytes, deadline=time.monotonic() + _PAGE_SECONDS)
    return page


def request_with_retry(session: Session, method: str, path: str, **options: Any) -> dict[str, Any]:
    """Send a request like `Session.request`, and retry it after status 429, because the server has not processed it."""
    return _retry(lambda: session.request(method, path, **options))


def _retry(request: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Call `request`, again while it raises status 429, for at most `_RETRY_SECONDS`."""
    deadline = time.monotonic() + _RETRY_SECONDS
    while True:
        try:
            return request()
        except ApiServerError as error:
            pause_seconds = error.retry_after or _DEFAULT_PAUSE_SECONDS
            if error.status != HTTPStatus.TOO_MANY_REQUESTS or time.monotonic() + pause_seconds > deadline:
                raise
        time.sleep(pause_seconds)
