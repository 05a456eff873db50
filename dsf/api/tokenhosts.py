"""Lists of servers to which a token may be sent.

The owner of a token writes such a list, not the author of a DynamicScorer. An entry is `host` (any port, http or
https), `host:port` (http or https) or `https://host[:port]` (exactly this server).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from dsf.api.urls import base_url, origin
from dsf.text import shown_url

_SEPARATORS = re.compile(r"[,\s]+")


#: Scheme, host and port of one server; None stands for any.
_Host = tuple[str | None, str, int | None]


class TokenHosts:
    """The servers of one list."""

    def __init__(self, entries: Iterable[str] = ()) -> None:
        """Raises ValueError naming an invalid entry."""
        self._entries: frozenset[_Host] = frozenset(_parse(entry) for entry in entries)

    @classmethod
    def split(cls, text: str) -> TokenHosts:
        """Parse entries separated by commas or blanks. Raises ValueError."""
        return cls(entry for entry in _SEPARATORS.split(text) if entry)

    def __bool__(self) -> bool:
        return bool(self._entries)

    def allow(self, url: str) -> bool:
        """Whether a token may be sent to `url`; never to an invalid URL."""
        try:
            scheme, host, port = origin(url)
        except ValueError:
            return False
        return not self._entries.isdisjoint({(None, host, None), (None, host, port), (scheme, host, port)})


NO_HOSTS: Final = TokenHosts()


def _parse(entry: str) -> _Host:
    url = entry if "://" in entry else f"http://{entry}"
    try:
        if base_url(url) != url:
            raise ValueError
        scheme, host, port = origin(url)
    except ValueError:
        msg = f"{shown_url(entry)!r} is not a server of the form host, host:port or https://host[:port]"
        raise ValueError(msg) from None
    if "://" in entry:
        return scheme, host, port
    # The part after the brackets of an IPv6 address, or a whole name.
    return None, host, port if ":" in entry.rpartition("]")[2] else None
