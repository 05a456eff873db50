"""`/healthz`, `/readyz` and `/metrics` of one process, on a separate port.

This is a plain ASGI application, because its processes need no web framework otherwise. Checks run in threads, so that
a check that waits for Redis does not block other requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, MutableMapping
from typing import Final

from prometheus_client import CollectorRegistry

from dsf.http.listening import App, Message, Receive, Send
from dsf.http.metricsrenderer import MetricsRenderer, RenderedMetrics

#: Function that returns the reason why a check fails, or an empty string if it passes.
Check = Callable[[], str]

_TEXT: Final = "text/plain; charset=utf-8"


def make_probes(registry: CollectorRegistry, checks: Mapping[str, Check]) -> App:
    """Return the ASGI application. `checks` maps paths to checks, whose failure results in a 503 with the reason."""
    paths = ", ".join(["/metrics", *checks])
    renderer = MetricsRenderer()

    async def respond(scope: MutableMapping[str, object], receive: Receive, send: Send) -> None:
        del receive
        if scope["type"] != "http":
            return
        headers = {"Content-Type": _TEXT}
        check = checks.get(str(scope["path"]))
        if scope["method"] not in ("GET", "HEAD"):
            status, body = 405, b"only GET\n"
        elif check is not None:
            problem = await asyncio.to_thread(check)
            status, body = (503, f"{problem}\n".encode()) if problem else (200, b"ok\n")
        elif scope["path"] == "/metrics":
            status, (body, headers) = 200, await _render_metrics(renderer, registry, scope)
        else:
            status, body = 404, f"not found; there are {paths}\n".encode()
        headers["Content-Length"] = str(len(body))
        start: Message = {
            "type": "http.response.start",
            "status": status,
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }
        await send(start)
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    return respond


async def _render_metrics(
    renderer: MetricsRenderer, registry: CollectorRegistry, scope: MutableMapping[str, object]
) -> RenderedMetrics:
    """Return the metrics in the format and encoding that the request accepts."""
    header_values: dict[bytes, bytes] = dict(scope["headers"])  # type: ignore[call-overload]
    accept, accept_encoding = (
        header_values.get(name, b"").decode("latin-1") for name in (b"accept", b"accept-encoding")
    )
    return await renderer.render(registry, accept, accept_encoding)
