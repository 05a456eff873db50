"""Parses `DSF_REDIS_URL` into the address of Redis."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import SplitResult, quote, unquote, urlsplit

from dsf.errors import SettingsError

_PORTS = {"redis": 6379, "rediss": 6379, "sentinel": 26379, "unix": 0}
#: Equivalent schemes of other tools: of Valkey's clients, and of Celery for Unix sockets.
_ALIASES = {"valkey": "redis", "valkeys": "rediss", "redis+socket": "unix", "valkey+socket": "unix"}
_HELP = (
    "expected redis://host:port/0, rediss://host:port/0 (TLS), sentinel://host:port;sentinel://host:port/0 or "
    "unix:///path/of/redis.sock"
)


@dataclass(frozen=True)
class Address:
    """Address of a Redis server, or of the Sentinels that monitor it."""

    scheme: str
    #: Hosts and ports. A Unix socket has its absolute path as host, and port 0.
    hosts: tuple[tuple[str, int], ...]
    db: int = 0
    username: str = ""
    password: str = field(default="", repr=False)

    @property
    def is_sentinel(self) -> bool:
        """True if `hosts` are Sentinels."""
        return self.scheme == "sentinel"

    def __str__(self) -> str:
        """Return the URL without user and password."""
        if self.scheme == "unix":
            return f"unix://{quote(self.hosts[0][0])}?db={self.db}"
        return ";".join(f"{self.scheme}://{_bracket_ipv6(host)}:{port}/{self.db}" for host, port in self.hosts)


def parse(url: str) -> Address:
    """Return the address in a URL, or in several Sentinel URLs that semicolons or commas separate.

    Raises SettingsError, whose text never contains the URL, because it may contain a password.
    """
    texts = [_replace_alias(text.strip()) for text in re.split("[;,]", url) if text.strip()]
    if not texts:
        raise SettingsError(f"DSF_REDIS_URL: empty; {_HELP}")
    scheme = texts[0].partition("://")[0]
    # The second and later Sentinels may omit the scheme.
    parts = [_split_url(text if "://" in text else f"{scheme}://{text}") for text in texts]
    if scheme not in _PORTS or any(part.scheme != scheme for part in parts):
        raise SettingsError(f"DSF_REDIS_URL: not a scheme for Redis, or several ones; {_HELP}")
    if len(parts) > 1 and scheme != "sentinel":
        raise SettingsError(
            "DSF_REDIS_URL: several servers are possible with sentinel:// only; a comma or semicolon in a password "
            "must be percent-encoded (%2C, %3B)"
        )
    if any(part.fragment for part in parts):
        # A # is part of a password, because Redis URLs have no fragment.
        raise SettingsError("DSF_REDIS_URL: a # in a user or password must be percent-encoded (%23)")
    if scheme == "unix":
        return _parse_socket(parts[0])
    if any(part.query for part in parts):
        # Reject options: `ssl_cert_reqs=none` would disable verification, and the others have separate settings.
        raise SettingsError("DSF_REDIS_URL: options after ? are not supported; use the DSF_REDIS_ settings")
    url_with_credentials = next((part for part in parts if part.username or part.password), parts[0])
    return Address(
        scheme,
        tuple((part.hostname or "localhost", _parse_port(part)) for part in parts),
        max(_parse_database(part) for part in parts),
        unquote(url_with_credentials.username or ""),
        unquote(url_with_credentials.password or ""),
    )


def _parse_socket(part: SplitResult) -> Address:
    if part.hostname or not part.path:
        raise SettingsError(f"DSF_REDIS_URL: the URL of a Unix socket has three slashes and a path; {_HELP}")
    name, _, db = part.query.partition("=")
    # The database of a Unix socket is the option `db` in redis-py, and `virtual_host` in Celery.
    if part.query and (name not in ("db", "virtual_host") or "&" in db):
        raise SettingsError(
            "DSF_REDIS_URL: options after ? other than db are not supported; use the DSF_REDIS_ settings"
        )
    user, password = unquote(part.username or ""), unquote(part.password or "")
    return Address("unix", ((unquote(part.path), _PORTS["unix"]),), _parse_number(db), user, password)


def _replace_alias(text: str) -> str:
    scheme, separator, url_rest = text.partition("://")
    return _ALIASES.get(scheme, scheme) + separator + url_rest


def _split_url(text: str) -> SplitResult:
    try:
        return urlsplit(text)
    except ValueError:
        raise SettingsError(f"DSF_REDIS_URL: not a URL; {_HELP}") from None


def _parse_port(part: SplitResult) -> int:
    try:
        return part.port or _PORTS[part.scheme]
    except ValueError:
        raise SettingsError(
            f"DSF_REDIS_URL: not a port; characters such as / and # in a password must be percent-encoded; {_HELP}"
        ) from None


def _parse_database(part: SplitResult) -> int:
    return _parse_number(part.path.strip("/"))


def _parse_number(text: str) -> int:
    if text and not text.isdecimal():
        raise SettingsError(f"DSF_REDIS_URL: what follows the port, or db=, is the number of a database; {_HELP}")
    return int(text or 0)


def _bracket_ipv6(host: str) -> str:
    return f"[{host}]" if ":" in host else host
