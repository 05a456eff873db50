"""Outer middleware: host names, trusted proxies and security headers.

Plain ASGI, so that it also covers answers of other middleware.
"""

from __future__ import annotations

import functools
import ipaddress
from collections.abc import Iterable, Sequence
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dsf.errors import SettingsError
from dsf.http.hosts import METRICS, PROBES, PROXIED_AUTHORIZATION, host_name, is_loopback, may_scrape
from dsf.web.pages import all_views
from dsf.web.views import VIEWS

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

#: Only this server's own files, no inline script or style, no framing.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
#: First segments of what is there besides views.
_FIXED_SEGMENTS: Final = (
    "act",
    "api",
    "docs",
    "healthz",
    "login",
    "logout",
    "metrics",
    "openapi.json",
    "readyz",
    "static",
)


def parse_networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Addresses and networks of trusted proxies. Raises SettingsError naming an invalid one."""
    networks = []
    for text in texts:
        try:
            networks.append(ipaddress.ip_network(text.strip(), strict=False))
        except ValueError:
            raise SettingsError(
                f"DSF_WEB_TRUSTED_PROXIES: {text!r} is not an address or network such as 10.0.0.0/8"
            ) from None
    return tuple(networks)


def root_path(text: str) -> str:
    """Return the path prefix of all addresses. Raises SettingsError for an invalid one."""
    root = text.rstrip("/")
    if root and not is_prefix(root):
        raise SettingsError(f"DSF_WEB_ROOT_PATH: {root!r} is not a path such as /scores, or begins like the page's own")
    return root


def is_within(address: str, networks: Sequence[Network]) -> bool:
    """True if an address belongs to one of the networks; an IPv4 address may be IPv6-mapped."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    return any(ip in network for network in networks)


class Guard:
    """Host check, forwarded headers of trusted proxies, and headers of the response.

    `hosts` are the accepted host names besides those of this machine; `*` is any. Only trusted proxies may set the
    client's address, scheme, host and path prefix. `scope["dsf.trusted"]` is True if the peer is one.
    """

    def __init__(
        self,
        app: ASGIApp,
        hosts: Sequence[str],
        proxies: Sequence[Network],
        root_path: str,
        *,
        has_login: bool = False,
    ) -> None:
        self._app = app
        self._hosts = {host.lower() for host in hosts}
        self._proxies = proxies
        self._root_path = root_path
        self._has_login = has_login

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        peer = (scope.get("client") or ("", 0))[0]
        scope["dsf.trusted"] = trusted = is_within(peer, self._proxies)
        scope["dsf.root"] = self._root_path
        host = headers.get("host", "")
        if trusted:
            host = _last(headers, "x-forwarded-host") or host
            self._apply_forwarded_headers(scope, headers)
        scope["dsf.host"] = host

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers_sent = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers_sent.setdefault(name, value)
                headers_sent.setdefault("Cache-Control", "no-store")
            await send(message)

        # The proxy may keep or strip the prefix.
        root = scope["dsf.root"]
        path = scope["path"]
        if root and (path == root or path.startswith(root + "/")):
            scope["path"] = path[len(root) :] or "/"
        # The API server's service proxy keeps the name by which its own client calls it. Where a login is required, a
        # token in the request shows that the request does not come from a browser by DNS rebinding.
        is_proxied = self._has_login and PROXIED_AUTHORIZATION in headers and scope["path"].startswith("/api/")
        if not is_proxied and not self._is_known_host(host, scope["path"]):
            text = f"this server does not answer to the name {host!r}; DSF_HOST_NAMES lists its names\n"
            await PlainTextResponse(text, status_code=421)(scope, receive, answer)
            return
        await self._app(scope, receive, answer)

    def _apply_forwarded_headers(self, scope: Scope, headers: Headers) -> None:
        scheme = _last(headers, "x-forwarded-proto")
        if scheme in ("http", "https"):
            scope["scheme"] = scheme
        # The nearest address that is not a proxy's.
        for address in reversed([_address(entry) for entry in _all(headers, "x-forwarded-for")]):
            scope["client"] = (address, 0)
            if not is_within(address, self._proxies):
                break
        prefix = _last(headers, "x-forwarded-prefix").rstrip("/")
        if prefix and is_prefix(prefix):
            scope["dsf.root"] = prefix

    def _is_known_host(self, host: str, path: str) -> bool:
        name = host_name(host)
        if path in PROBES or (path == METRICS and may_scrape(name)):
            return True
        return bool(name) and ("*" in self._hosts or name in self._hosts or is_loopback(name))


@functools.cache
def own_segments() -> frozenset[str]:
    """First segments of all paths; a prefix must not start with them, as a stripped prefix could not be detected."""
    return frozenset((*_FIXED_SEGMENTS, *(view.path.split("/")[1] for view in all_views(VIEWS))))


def is_prefix(text: str) -> bool:
    """True if this is a valid path prefix: `/a/b`, never another server or a path of the page."""
    first = text[1:].partition("/")[0]
    is_free = bool(first) and first not in own_segments()
    return text.startswith("/") and is_free and all(c.isalnum() or c in "/-._~" for c in text)


def _all(headers: Headers, name: str) -> list[str]:
    """Return the entries of a header, which may have several lines: a proxy extends the last one or adds a line."""
    return [entry.strip() for line in headers.getlist(name) for entry in line.split(",") if entry.strip()]


def _last(headers: Headers, name: str) -> str:
    return (_all(headers, name) or [""])[-1]


def _address(text: str) -> str:
    """Return an entry of X-Forwarded-For without a port and brackets, as some proxies write them."""
    return text if text.count(":") > 1 and not text.startswith("[") else host_name(text) or text
