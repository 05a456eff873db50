"""The web service as a real process on a free port, for programs: its metrics and its JSON API."""

from __future__ import annotations

from pathlib import Path

import requests

from tests.support.redisserver import free_port
from tests.support.webprocess import WebProcess


class ApiProcess(WebProcess):
    """A context manager."""

    def __init__(self, redis_url: str, log: Path) -> None:
        super().__init__(redis_url, log, listen_host="127.0.0.1", probe_port=free_port())

    def get(self, path: str, **headers: str) -> requests.Response:
        """Send GET on a new connection, for a response without compression."""
        return super().get(path, **{"Accept-Encoding": "identity", **headers})
