"""Outer middleware that checks host names, applies the headers of trusted proxies and sets security headers.

The middleware is plain ASGI, because it must also cover the responses of other middleware.
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
from dsf.http.hosts import METRICS, PROBES, PROXIED_AUTHORIZATION, is_loopback, may_scrape, parse_host_name
from dsf.web.pages import list_views
from dsf.web.views import VIEWS

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

#: Content security policy. It allows files of this server only, and forbids inline scripts, inline styles and framing.
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
#: Headers that proxies add to the requests of their clients.
_FORWARDING_HEADERS: Final = ("x-forwarded-for", "x-forwarded-host", "x-real-ip", "forwarded")
#: First segments of all paths that are not views.
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
    """Return the addresses and networks of trusted proxies. Raises SettingsError for an invalid one."""
    networks = []
    for text in texts:
        try:
            networks.append(ipaddress.ip_network(text.strip(), strict=False))
        except ValueError:
            raise SettingsError(
                f"DSF_WEB_TRUSTED_PROXIES: {text!r} is not an address or network such as 10.0.0.0/8"
            ) from None
    return tuple(networks)


def parse_root_path(text: str) -> str:
    """Return the path prefix of all pages without a trailing slash. Raises SettingsError for an invalid one."""
    root = text.rstrip("/")
    if root and not is_prefix(root):
        raise SettingsError(f"DSF_WEB_ROOT_PATH: {root!r} is not a path such as /scores, or begins like the page's own")
    return root


def is_within(address: str, networks: Sequence[Network]) -> bool:
    """Return True if an address belongs to one of the networks. IPv6-mapped IPv4 addresses are unmapped first."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    return any(ip in network for network in networks)


class Guard:
    """Rejects unknown host names, applies the headers of trusted proxies, and adds security headers to responses.

    `hosts` are the accepted host names besides those of this machine; `*` accepts any name. Only trusted proxies
    (`proxies`) may set the client's address, scheme, host and path prefix. `scope["dsf.trusted"]` is True if the peer
    is a trusted proxy. `scope["dsf.direct"]` is True if no proxy has forwarded the request, and its host name is not a
    public one, as for scrapes in the cluster.
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
        """Handle a request as an ASGI application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        peer = (scope.get("client") or ("", 0))[0]
        scope["dsf.trusted"] = is_trusted = is_within(peer, self._proxies)
        scope["dsf.root"] = self._root_path
        host = headers.get("host", "")
        if is_trusted:
            host = _get_last_entry(headers, "x-forwarded-host") or host
            self._apply_forwarded_headers(scope, headers)
        scope["dsf.host"] = host
        is_forwarded = any(name in headers for name in _FORWARDING_HEADERS)
        scope["dsf.direct"] = not is_forwarded and may_scrape(parse_host_name(host))

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                response_headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    response_headers.setdefault(name, value)
                response_headers.setdefault("Cache-Control", "no-store")
            await send(message)

        # Strip the prefix only if the path has it, because some proxies strip it themselves.
        root = scope["dsf.root"]
        path = scope["path"]
        if root and (path == root or path.startswith(root + "/")):
            scope["path"] = path[len(root) :] or "/"
        # Accept any host name from the API server's service proxy, because it passes on the name that its own client
        # uses. This is safe where a login is required, because a request with a token header cannot come from a browser
        # by DNS rebinding.
        is_proxied = self._has_login and PROXIED_AUTHORIZATION in headers and scope["path"].startswith("/api/")
        if not is_proxied and not self._is_known_host(host, scope["path"]):
            text = f"this server does not answer to the name {host!r}; DSF_HOST_NAMES lists its names\n"
            await PlainTextResponse(text, status_code=421)(scope, receive, send_with_headers)
            return
        await self._app(scope, receive, send_with_headers)

    def _apply_forwarded_headers(self, scope: Scope, headers: Headers) -> None:
        scheme = _get_last_entry(headers, "x-forwarded-proto")
        if scheme in ("http", "https"):
            scope["scheme"] = scheme
        # The client has the last address that does not belong to a trusted proxy, because clients may send any earlier
        # entries.
        for address in reversed([_strip_port(entry) for entry in _list_entries(headers, "x-forwarded-for")]):
            scope["client"] = (address, 0)
            if not is_within(address, self._proxies):
                break
        prefix = _get_last_entry(headers, "x-forwarded-prefix").rstrip("/")
        if prefix and is_prefix(prefix):
            scope["dsf.root"] = prefix

    def _is_known_host(self, host: str, path: str) -> bool:
        name = parse_host_name(host)
        if path in PROBES or (path == METRICS and may_scrape(name)):
            return True
        return bool(name) and ("*" in self._hosts or name in self._hosts or is_loopback(name))


@functools.cache
def list_own_segments() -> frozenset[str]:
    """Return the first segments of all paths of the page.

    A path prefix must not start with any of them, because the guard could not tell whether a proxy has stripped it.
    """
    return frozenset((*_FIXED_SEGMENTS, *(view.path.split("/")[1] for view in list_views(VIEWS))))


def is_prefix(text: str) -> bool:
    """Return True if this is a valid path prefix such as `/a/b`.

    Addresses of other servers (`//host`) and paths of the page itself are invalid.
    """
    first_segment = text[1:].partition("/")[0]
    is_free = bool(first_segment) and first_segment not in list_own_segments()
    return text.startswith("/") and is_free and all(c.isalnum() or c in "/-._~" for c in text)


def _list_entries(headers: Headers, name: str) -> list[str]:
    """Return the entries of all lines of a header, because a proxy either extends the last line or adds a line."""
    return [entry.strip() for line in headers.getlist(name) for entry in line.split(",") if entry.strip()]


def _get_last_entry(headers: Headers, name: str) -> str:
    """Return the last entry of a header, which the nearest proxy has set; empty without the header."""
    return (_list_entries(headers, name) or [""])[-1]


def _strip_port(entry: str) -> str:
    """Return an entry of X-Forwarded-For without port and brackets, because some proxies add them."""
    return entry if entry.count(":") > 1 and not entry.startswith("[") else parse_host_name(entry) or entry
