"""Checks of HTTP servers on this machine. Importing this module loads no HTTP client, so that programs start sooner."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def make_http_check(url: str) -> Callable[[], bool]:
    """Return a function that is True if the URL on this machine responds with 200."""
    return lambda: fetch_http(url) is not None


def fetch_http(url: str) -> bytes | None:
    """Return the body of a successful response of a server on this machine, or None.

    Ignores proxies of the environment.
    """
    from http.client import HTTPException

    try:
        # Read to the end, because servers log an early disconnect as an error.
        with _make_opener().open(url, timeout=2) as response:
            body: bytes = response.read()
            return body
    except (OSError, HTTPException):
        return None


@functools.cache
def _make_opener() -> Any:
    from urllib.request import ProxyHandler, build_opener

    return build_opener(ProxyHandler({}))
