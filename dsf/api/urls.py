"""Validation, comparison and joining of URLs of scoring APIs and sources, and lists of servers for tokens.

The check is strict, because tokens are sent to these URLs. Two programs that parse an unusual URL differently (with a
backslash, a blank, or user information before an `@`) may send a token to different hosts.

The owner of a token writes the list of servers to which it may be sent, not the author of a DynamicScorer. An entry is
`host` (any port, http or https), `host:port` (http or https) or `https://host[:port]` (exactly this server).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple
from urllib.parse import quote

from dsf.text import has_user, shorten_url

# Both cases are spelled out: IGNORECASE matches a long s (U+017F) with `s` and the Kelvin sign with `k`.
_URL_PATTERN = re.compile(
    r"""(?P<scheme>[hH][tT][tT][pP][sS]?)://
        (?P<host>\[[0-9a-fA-F:.]+\]|[a-zA-Z0-9._-]+)
        (?::(?P<port>[0-9]{1,5}))?
        (?P<path>/[^\s\\?\#\x00-\x1f\x7f]*)?
        (?P<query>\?[^\s\\\#\x00-\x1f\x7f]*)?""",
    re.VERBOSE,
)
#: Remedy for user information in a URL.
USER_REFUSED: Final = "Take them out of the URL and name a Secret that has them with auth.basic (docs/sources.md#basic)"
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
# Characters allowed in a path: RFC 3986 pchar, the slash, and % of existing escapes.
_PATH_SAFE: Final = "/:@!$&'()*+,;=~%"


class Origin(NamedTuple):
    """The server of a URL. Two URLs of the same server have equal origins."""

    scheme: str
    host: str
    port: int


def find_url_problem(url: str, form: str) -> str:
    """Return the reason why a text does not have the form `form`, such as "a URL of the form https://host"."""
    if has_user(url):
        return f"{shorten_url(url)!r} has a user name or a password. {USER_REFUSED}"
    return f"{shorten_url(url)!r} is not {form}"


def is_valid_url(url: str) -> bool:
    """Return True if `url` is http or https with a host, and unambiguous."""
    try:
        parse_origin(url)
    except ValueError:
        return False
    return True


def parse_origin(url: str) -> Origin:
    """Return the origin of `url`. Raises ValueError if the URL is invalid."""
    match = _match(url)
    scheme = match["scheme"].lower()
    port = int(match["port"]) if match["port"] else _DEFAULT_PORTS[scheme]
    return Origin(scheme, match["host"].lower(), port)


def get_base_url(url: str) -> str:
    """Return `scheme://host[:port]` of `url`, unchanged. Raises ValueError if the URL is invalid."""
    match = _match(url)
    return url[: match.end("port") if match["port"] else match.end("host")]


def join_url(host: str, path: str) -> str:
    """Return the URL of `path` below the URL `host`, which may contain a path.

    Normalises slashes, resolves dot segments, keeps a `?query` in `path`, and percent-encodes invalid characters.
    Raises ValueError if `host` is not a valid URL or has a query.
    """
    match = _match(host)
    if match["query"] is not None:
        msg = f"{shorten_url(host)!r} has a query (?...), which a host cannot have"
        raise ValueError(msg)
    path, _, query = path.partition("?")
    segments: list[str] = []
    for segment in f"{match['path'] or ''}/{path}".split("/"):
        if segment == "..":
            del segments[-1:]
        elif segment not in ("", "."):
            segments.append(quote(segment, safe=_PATH_SAFE))
    joined_url = get_base_url(host) + "".join(f"/{segment}" for segment in segments)
    if segments and (path or match["path"] or "").endswith("/"):
        joined_url += "/"
    return f"{joined_url}?{quote(query, safe=_PATH_SAFE + '?')}" if query else joined_url


def _match(url: str) -> re.Match[str]:
    match = _URL_PATTERN.fullmatch(url)
    if match is None or int(match["port"] or "1") not in range(1, 65536):
        raise ValueError(find_url_problem(url, "a URL of the form http://host[:port][/path] or https://..."))
    return match


_SEPARATOR_PATTERN = re.compile(r"[,\s]+")


#: Scheme, host and port of one server; None stands for any.
_Host = tuple[str | None, str, int | None]


class TokenHosts:
    """A list of servers to which a token may be sent."""

    def __init__(self, entries: Iterable[str] = ()) -> None:
        """Parse the entries. Raises ValueError naming an invalid entry."""
        self._entries: frozenset[_Host] = frozenset(_parse(entry) for entry in entries)

    @classmethod
    def split(cls, text: str) -> TokenHosts:
        """Parse entries separated by commas or blanks. Raises ValueError."""
        return cls(entry for entry in _SEPARATOR_PATTERN.split(text) if entry)

    def __bool__(self) -> bool:
        return bool(self._entries)

    def allow(self, url: str) -> bool:
        """Return True if a token may be sent to `url`; never to an invalid URL."""
        try:
            scheme, host, port = parse_origin(url)
        except ValueError:
            return False
        return not self._entries.isdisjoint({(None, host, None), (None, host, port), (scheme, host, port)})


NO_HOSTS: Final = TokenHosts()


def _parse(entry: str) -> _Host:
    url = entry if "://" in entry else f"http://{entry}"
    try:
        if get_base_url(url) != url:
            raise ValueError
        scheme, host, port = parse_origin(url)
    except ValueError:
        msg = f"{shorten_url(entry)!r} is not a server of the form host, host:port or https://host[:port]"
        raise ValueError(msg) from None
    if "://" in entry:
        return scheme, host, port
    # Look for a port after the brackets of an IPv6 address, or in the whole name.
    return None, host, port if ":" in entry.rpartition("]")[2] else None
