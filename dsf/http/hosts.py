"""Names by which an HTTP service is asked: a web page of a foreign name that leads here (DNS rebinding) is refused."""

from __future__ import annotations

import ipaddress
from typing import Final
from urllib.parse import urlsplit

#: Paths of probes, which use the address of the pod.
PROBES: Final = ("/healthz", "/readyz")
#: Path of the metrics, for scrapers.
METRICS: Final = "/metrics"
#: Header in place of Authorization, for clients whose requests pass the API server's service proxy, which removes that.
PROXIED_AUTHORIZATION: Final = "x-dsf-authorization"


def host_name(host: str) -> str:
    """Return the name in a Host header, in lower case without port and brackets; empty if invalid."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def is_loopback(host: str) -> bool:
    """True if a name or address is this machine."""
    if host.lower() in ("localhost", "localhost."):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def may_scrape(name: str) -> bool:
    """True if this name of a host cannot belong to a foreign web page: an address, a name without a dot, a Service's.

    Scrapers ask by the address of the pod or by the name of its Service.
    """
    # Names of Services are no names of the internet.
    if (name and "." not in name) or name.endswith((".svc", ".svc.cluster.local")):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
