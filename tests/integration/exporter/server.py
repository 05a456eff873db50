"""The exporter as a real process on a free port."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import requests

from tests.support.forked import Forked
from tests.support.redisserver import free_port
from tests.support.wait import wait_for

TIMEOUT = 60


class ExporterProcess:
    """`python -m dsf.exporter`; a context manager."""

    def __init__(self, redis_url: str, log: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = log
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DSF_")}
        environment |= {
            "DSF_ROLE": "exporter",
            "DSF_REDIS_URL": redis_url,
            "DSF_EXPORTER_HOST": "127.0.0.1",
            "DSF_EXPORTER_PORT": str(self.port),
        }
        self.process = Forked("dsf.exporter", log, environment, inherit=False)

    def __enter__(self) -> ExporterProcess:
        wait_for(self._serves, 30, "the exporter to serve")
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()

    def _serves(self) -> bool:
        assert self.process.is_running, self.log
        try:
            return self.get("/healthz").status_code == 200
        except requests.ConnectionError:
            return False

    @property
    def log(self) -> str:
        """What it has logged."""
        return self._log.read_text()

    def get(self, path: str, **headers: str) -> requests.Response:
        """GET on a connection of its own."""
        with requests.Session() as session:
            session.trust_env = False
            return session.get(self.url + path, headers={"Accept-Encoding": "identity", **headers}, timeout=TIMEOUT)

    def terminate(self) -> int:
        """SIGTERM; the exit code."""
        self.process.signal(signal.SIGTERM)
        return self.process.wait(TIMEOUT)
