"""One reading of Redis, shared by concurrent scrapes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector


class Scraper:
    """Renders a collector's metrics as text. Thread-safe.

    A scrape during another one with the same format gets the answer of that one: a slow Redis and many
    Prometheus servers must not pile up readings of the whole fleet.
    """

    def __init__(self, collector: Collector) -> None:
        # A separate registry: the default one adds metrics of this process, unrelated to the fleet.
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(collector)
        self._lock = threading.Lock()
        self._running: dict[str, Future[bytes]] = {}

    def scrape(self, accept: str) -> tuple[bytes, str]:
        """The metrics in the format of the `Accept` header, and the content type."""
        encode, content_type = choose_encoder(accept)
        return self._shared(content_type, lambda: encode(self._registry)), content_type

    def _shared(self, key: str, work: Callable[[], bytes]) -> bytes:
        with self._lock:
            running = self._running.get(key)
            if running is None:
                mine: Future[bytes] = Future()
                self._running[key] = mine
        if running is not None:
            return running.result()
        try:
            mine.set_result(work())
        except BaseException as error:
            mine.set_exception(error)
            raise
        finally:
            with self._lock:
                del self._running[key]
        return mine.result()
