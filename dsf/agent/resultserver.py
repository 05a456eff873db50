"""`/results` on the agent's HTTP port: the last results of a scorer, for `dsf explain` of a composite in the same pod.

Only clients with a loopback address get results, because the port is open to the whole cluster, and the scorers of an
agent belong to several namespaces.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import MutableMapping
from typing import Any, Final
from urllib.parse import parse_qs

from dsf.cycle.composite import LastResults, NoResults
from dsf.http.listening import App, Message, Receive, Send

PATH: Final = "/results"


def add_results(app: App, results: LastResults) -> App:
    """Return an application that serves `/results?scorer=NAME&namespace=NAME`, and passes other requests to `app`."""

    async def respond(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != PATH or not _is_local(scope):
            await app(scope, receive, send)
            return
        parameters = {name: values[-1] for name, values in parse_qs(scope["query_string"].decode("latin-1")).items()}
        last_results = results.find(parameters.get("scorer", ""), parameters.get("namespace"))
        body = json.dumps(
            {"problem": last_results.cause, "isExpired": last_results.is_expired}
            if isinstance(last_results, NoResults)
            else {"results": [(dict(labels), score) for labels, score in last_results]}
        ).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        start: Message = {"type": "http.response.start", "status": 200, "headers": headers}
        await send(start)
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    return respond


def _is_local(scope: MutableMapping[str, Any]) -> bool:
    """True if the client has a loopback address."""
    try:
        address = ipaddress.ip_address(scope["client"][0])
    except (TypeError, ValueError):
        return False
    # A socket for both address families shows an IPv4 client as ::ffff:127.0.0.1.
    ipv4_address = getattr(address, "ipv4_mapped", None)
    return (ipv4_address or address).is_loopback
