"""One GET to a scoring API, never to a link-local address.

Whoever may create a DynamicScorer chooses the URL, and the hub may reach more than they do. Link-local addresses are
where clouds serve credentials. The check is part of connecting: the addresses that were looked at are those that are
connected to, so a name that resolves to something else a moment later gains nothing.

Deadline and wording are those of `dsf.http`. It is not used as a whole because a health check needs its own connection:
one that was kept open tells nothing of whether the server still takes new ones.
"""

from __future__ import annotations

import ipaddress
import socket
import time
from dataclasses import dataclass
from typing import Any, Final

import requests
import urllib3
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection

from dsf.errors import HttpError
from dsf.http import failures, trust
from dsf.http.deadline import Exchange, watchdog

#: Most bytes of an answer that are read, after decompression.
MAX_BYTES: Final = 1024 * 1024
_CHUNK: Final = 64 * 1024
_REDIRECTS: Final = range(300, 400)
_HEADERS: Final = {
    "Accept": "application/json",
    "Accept-Encoding": "gzip",
    "User-Agent": "dynamic-scoring-framework",
    "Connection": "close",
}


@dataclass(frozen=True)
class Answer:
    """An answer with any status that is not a redirect."""

    status: int
    body: bytes


def get(url: str, *, deadline: float, allow_link_local: bool) -> Answer:
    """Ask `url` and be done by `deadline`, a time of time.monotonic().

    Raises HttpError with reason address_refused, redirect, too_large, or one of `dsf.http.get` for an exchange that
    broke.
    """
    where = failures.place("GET", url)
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise HttpError("timeout", f"{where}: no time is left")
    exchange = Exchange(deadline)
    adapter = _Adapter(exchange, allow_link_local=allow_link_local)
    watchdog.watch(exchange)
    try:
        # Below requests' Session: no redirects, no proxy and no .netrc from the environment.
        prepared = requests.Request("GET", url, headers=_HEADERS).prepare()
        answer = _read(where, adapter.send(prepared, stream=True, timeout=seconds, verify=True))
        if exchange.expired:
            # Headers or a body that were cut off at the deadline look complete when nothing says how long they are.
            raise _timeout(where)
        return answer
    except HttpError:
        raise
    except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
        if exchange.expired or time.monotonic() >= deadline or failures.is_timeout(error):
            raise _timeout(where) from None
        raise failures.broken(where, error) from None
    finally:
        exchange.finish()
        adapter.close()


def _timeout(where: str) -> HttpError:
    # Without the seconds: a message that differs at each check would be a new status each time.
    return HttpError("timeout", f"{where}: no complete answer in time", retryable=True)


def _read(where: str, response: requests.Response) -> Answer:
    with response:
        if response.status_code in _REDIRECTS:
            raise failures.refusal(where, response.status_code, {}, b"")
        body = bytearray()
        for chunk in response.iter_content(_CHUNK):
            body += chunk
            if len(body) > MAX_BYTES:
                raise HttpError("too_large", f"{where}: the answer is longer than the {MAX_BYTES} bytes allowed")
        return Answer(response.status_code, bytes(body))


class _Adapter(HTTPAdapter):
    """Makes connections that check the address and belong to one exchange."""

    def __init__(self, exchange: Exchange, *, allow_link_local: bool) -> None:
        self._exchange = exchange
        self._allow_link_local = allow_link_local
        super().__init__(pool_connections=1, pool_maxsize=1, max_retries=0)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs)
        adapter = self

        class Http(HTTPConnection):
            def _new_conn(self) -> socket.socket:
                return adapter.connect(self)

            def request(self, *args: Any, **kwargs: Any) -> None:
                adapter.attach(self)
                super().request(*args, **kwargs)

        class Https(HTTPSConnection):
            def connect(self) -> None:
                self.ssl_context = trust.context()
                super().connect()

            def _new_conn(self) -> socket.socket:
                return adapter.connect(self)

            def request(self, *args: Any, **kwargs: Any) -> None:
                adapter.attach(self)
                super().request(*args, **kwargs)

        class HttpPool(urllib3.HTTPConnectionPool):
            ConnectionCls = Http

        class HttpsPool(urllib3.HTTPSConnectionPool):
            ConnectionCls = Https

        self.poolmanager.pool_classes_by_scheme = {"http": HttpPool, "https": HttpsPool}

    def attach(self, connection: HTTPConnection) -> None:
        """Let the deadline end this connection, whatever it is waiting for."""
        if connection.sock is None:
            connection.connect()
        if connection.sock is not None:
            self._exchange.attach(connection.sock)

    def connect(self, connection: HTTPConnection) -> socket.socket:
        """A socket to the first address of the connection's host that answers.

        Raises HttpError when any of its addresses is refused, and urllib3's errors when none answers.
        """
        host = connection.host.strip("[]")
        try:
            found = socket.getaddrinfo(host, connection.port, type=socket.SOCK_STREAM)
        except UnicodeError:
            raise urllib3.exceptions.LocationParseError(host) from None
        except socket.gaierror as error:
            raise urllib3.exceptions.NameResolutionError(host, connection, error) from error
        for *_, address in found:
            if not self._allow_link_local and is_link_local(str(address[0])):
                raise HttpError(
                    "address_refused",
                    f"{host} stands for the link-local address {address[0]}, which the hub does not ask "
                    "(DSF_ALLOW_LINK_LOCAL=true lets it)",
                )
        last: OSError = OSError(f"{host} has no address")
        for family, kind, protocol, _, address in found:
            candidate = socket.socket(family, kind, protocol)
            candidate.settimeout(self._exchange.remaining())
            try:
                candidate.connect(address)
            except OSError as error:
                candidate.close()
                last = error
            else:
                return candidate
        raise last


def is_link_local(address: str) -> bool:
    """Whether an IP address is link-local, also when it is an IPv4 address written as IPv6."""
    parsed = ipaddress.ip_address(address)
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        return parsed.ipv4_mapped.is_link_local
    return parsed.is_link_local
