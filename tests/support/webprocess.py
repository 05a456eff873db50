"""Processes that serve HTTP, on free ports."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Self

import requests

from tests.support.forked import Forked
from tests.support.redisserver import free_port
from tests.support.wait import wait_for

TIMEOUT = 60


class HttpProcess:
    """A process of the hub with one service. A context manager. `settings` are field names of the settings."""

    def __init__(self, target: str, redis_url: str, log: Path, **settings: object) -> None:
        self.port = free_port()
        host = str(settings.get("listen_host", "127.0.0.1"))
        self.url = f"http://[{host}]:{self.port}" if host == "::1" else f"http://127.0.0.1:{self.port}"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DSF_")}
        #: Settings chosen by the test.
        self.settings = settings
        values = {"target": target, "redis_url": redis_url, "listen_port": self.port, "probe_port": 0, **settings}
        self._environment = environment | {f"DSF_{name.upper()}": str(value) for name, value in values.items()}
        self._module = "dsf.hub"
        self._log = log
        self.process: Forked | None = None

    def start(self) -> None:
        """Start the process and wait until it serves."""
        self.process = Forked(self._module, self._log, self._environment, inherit=False)
        wait_for(self._is_serving, 60, f"{self._module} to serve")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.process.kill()

    def _is_serving(self) -> bool:
        assert self.process is not None
        if not self.process.is_running:
            raise RuntimeError(self.log)
        try:
            return self.get("/healthz").status_code == 200
        except requests.ConnectionError:
            return False

    @property
    def log(self) -> str:
        """Return the text of its log."""
        return self._log.read_text()

    def get(self, path: str, **headers: str) -> requests.Response:
        """Send GET on a new connection."""
        return self.request("GET", path, headers=headers)

    def request(self, method: str, path: str, **options: object) -> requests.Response:
        """Send a request on a new connection; redirects are not followed."""
        with requests.Session() as session:
            session.trust_env = False
            return session.request(method, self.url + path, timeout=TIMEOUT, allow_redirects=False, **options)  # type: ignore[arg-type]

    def terminate(self) -> int:
        """Send SIGTERM, and return the exit code."""
        assert self.process is not None
        self.process.signal(signal.SIGTERM)
        return self.process.wait(TIMEOUT)


class WebProcess(HttpProcess):
    """The web service: the page, the JSON API and the metrics of the fleet."""

    def __init__(self, redis_url: str, log: Path, **settings: object) -> None:
        super().__init__("web", redis_url, log, **({"backend": "dir"} | settings))
