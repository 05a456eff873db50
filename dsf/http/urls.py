"""URLs as they are sent, as requests makes them; of the same ones again and again only the parameters differ."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from urllib.parse import urlencode

import requests


@lru_cache(maxsize=1024)
def ready(url: str) -> str:
    """The URL with everything quoted that must be, and without its fragment, which is not sent.

    Raises requests.RequestException and ValueError for what is no URL.
    """
    prepared = requests.PreparedRequest()
    prepared.prepare_url(url, None)
    return str(prepared.url).partition("#")[0]


def with_params(url: str, params: Sequence[tuple[str, str | int]]) -> str:
    """The URL, which is ready, with these parameters after those that it has."""
    return f"{url}{'&' if '?' in url else '?'}{urlencode(params)}" if params else url
