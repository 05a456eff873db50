"""URLs quoted as requests does it; cached, because only the parameters differ between requests."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from urllib.parse import urlencode

import requests


@lru_cache(maxsize=1024)
def ready(url: str) -> str:
    """The URL quoted where needed, and without its fragment, which is not sent.

    Raises requests.RequestException and ValueError for an invalid URL.
    """
    prepared = requests.PreparedRequest()
    prepared.prepare_url(url, None)
    return str(prepared.url).partition("#")[0]


def with_params(url: str, params: Sequence[tuple[str, str | int]]) -> str:
    """A URL from `ready`, with these parameters appended."""
    return f"{url}{'&' if '?' in url else '?'}{urlencode(params)}" if params else url
