"""Checks of the host name in a request, which protect HTTP services against DNS rebinding.

In DNS rebinding, the name of a foreign web page resolves to the address of the service.
"""

from __future__ import annotations

import ipaddress
from typing import Final
from urllib.parse import urlsplit

#: Paths of probes, which Kubernetes requests by the address of the pod.
PROBES: Final = ("/healthz", "/readyz")
#: Path of the metrics.
METRICS: Final = "/metrics"
#: Replacement for the header Authorization, which the service proxy of the API server removes.
PROXIED_AUTHORIZATION: Final = "x-dsf-authorization"


def parse_host_name(host: str) -> str:
    """Return the name in a Host header in lower case, without port and brackets; empty if the header is invalid."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def is_loopback(host: str) -> bool:
    """Return True if a name or address belongs to the loopback interface."""
    if host.lower() in ("localhost", "localhost."):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def may_scrape(name: str) -> bool:
    """Return True if the host name of a request cannot be that of a foreign web page.

    Accepts addresses and names of Services, which scrapers use, because neither can be registered on the internet.
    """
    if (name and "." not in name) or name.endswith((".svc", ".svc.cluster.local")):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
