"""Names by which an HTTP service is asked: a web page of a foreign name that leads here (DNS rebinding) is refused."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

#: Probes use the address of the pod.
PROBES: Final = ("/healthz", "/readyz")


def host_name(host: str) -> str:
    """The name in a Host header, in lower case without port and brackets; empty if invalid."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def is_loopback(host: str) -> bool:
    """Whether a name or address is this machine."""
    if host.lower() in ("localhost", "localhost."):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class ScrapedHosts:
    """Middleware of a service that scrapers ask by address or by the name of its Service, and others by `hosts`.

    `*` is any. An address, a name without a dot and that of a Service cannot belong to a foreign web page.
    """

    def __init__(self, app: ASGIApp, hosts: Sequence[str]) -> None:
        self._app = app
        self._hosts = {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        host = Headers(scope=scope).get("host", "") if scope["type"] == "http" else ""
        if scope["type"] != "http" or scope["path"] in PROBES or self._knows(host_name(host)):
            await self._app(scope, receive, send)
            return
        text = f"this server does not answer to the name {host!r}; DSF_HOST_NAMES lists its names\n"
        await PlainTextResponse(text, status_code=421)(scope, receive, send)

    def _knows(self, name: str) -> bool:
        # Names of Services are no names of the internet.
        is_service = name.endswith((".svc", ".svc.cluster.local"))
        if name in self._hosts or "*" in self._hosts or (name and "." not in name) or is_service:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True
