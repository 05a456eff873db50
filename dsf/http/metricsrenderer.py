"""Renders metrics as text, one rendering at a time for all concurrent requests of a process.

A rendering of many series takes several times the memory of its text, so concurrent renderings could fill the memory of
a pod. Requests that wait for the same text share one rendering, and all requests together occupy one thread.
"""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Hashable
from typing import Final, NamedTuple

from prometheus_client.exposition import choose_encoder, gzip_accepted
from prometheus_client.registry import Collector

#: Media types and versions that Prometheus requests, besides the default format, and their escapings. A client may send
#: any version in the header Accept, and each one would otherwise have a separate rendering.
_FORMATS: Final = (
    ("application/openmetrics-text", ""),
    ("application/openmetrics-text", "1.0.0"),
    ("text/plain", "1.0.0"),
)
_ESCAPINGS: Final = ("", "allow-utf-8", "underscores", "dots", "values")
#: Maximum entries of an Accept header that are considered.
_MAX_ENTRIES: Final = 20


class RenderedMetrics(NamedTuple):
    """The text of the metrics, as it is sent, and its headers."""

    body: bytes
    headers: dict[str, str]


class MetricsRenderer:
    """Renders the metrics of collectors in a thread. Call its methods in one event loop at a time."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = asyncio.Lock()
        # Renderings that have not begun.
        self._waiting_renderings: dict[Hashable, asyncio.Task[RenderedMetrics]] = {}

    async def render(self, collector: Collector, accept: str, accept_encoding: str) -> RenderedMetrics:
        """Return the current metrics of a collector in the format and encoding that these headers request.

        Raises the errors of the collector.
        """
        self._use_running_loop()
        accept, is_compressed = _select_format(accept), gzip_accepted(accept_encoding)
        key = collector, choose_encoder(accept)[1], is_compressed
        rendering = self._waiting_renderings.get(key)
        if rendering is None:
            rendering = asyncio.create_task(self._render(key, collector, accept, is_compressed=is_compressed))
            self._waiting_renderings[key] = rendering
        # Shield the rendering, because other requests may wait for it when this one is cancelled.
        return await asyncio.shield(rendering)

    async def _render(
        self, key: Hashable, collector: Collector, accept: str, *, is_compressed: bool
    ) -> RenderedMetrics:
        async with self._lock:
            # Later requests get newer values.
            del self._waiting_renderings[key]
            return await asyncio.to_thread(_render, collector, accept, is_compressed=is_compressed)

    def _use_running_loop(self) -> None:
        """Forget the renderings of an earlier event loop: a server that failed starts again with a new loop."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._lock, self._waiting_renderings = loop, asyncio.Lock(), {}


def _select_format(accept: str) -> str:
    """Return the first entry of an Accept header with a known format; empty for the default format."""
    return next((entry for entry in accept.split(",")[:_MAX_ENTRIES] if _is_known_format(entry)), "")


def _is_known_format(entry: str) -> bool:
    media_type, *parameters = (part.strip() for part in entry.split(";"))
    # The first of equal names counts, as in `choose_encoder`.
    values = dict(parameter.partition("=")[::2] for parameter in reversed(parameters))
    return (media_type, values.get("version", "")) in _FORMATS and values.get("escaping", "") in _ESCAPINGS


def _render(collector: Collector, accept: str, *, is_compressed: bool) -> RenderedMetrics:
    encode, content_type = choose_encoder(accept)
    body = encode(collector)
    headers = {"Content-Type": content_type, "Vary": "Accept, Accept-Encoding"}
    if is_compressed:
        # Level 1 is the fastest, and sufficient because the text is very repetitive.
        body = gzip.compress(body, compresslevel=1)
        headers["Content-Encoding"] = "gzip"
    return RenderedMetrics(body, headers)
