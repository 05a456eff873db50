"""`dsf optimizer` as a process."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path

import requests

from tests.support.forked import Forked
from tests.support.redisserver import free_port
from tests.support.wait import wait_for


def environment(**settings: object) -> dict[str, str]:
    """Return an environment with these settings and the variables that programs need to start; None leaves a setting
    out.
    """
    variables = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return variables | {f"DSF_{name.upper()}": str(value) for name, value in settings.items() if value is not None}


class Server:
    """The process, ready to answer."""

    def __init__(self, folder: Path, settings: Mapping[str, object]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.mcp = f"{self.url}/mcp"
        self._child = Forked(
            "dsf.cli",
            folder / "optimizer.log",
            environment(listen_port=port, **settings),
            arguments=["optimizer"],
            inherit=False,
        )
        try:
            wait_for(self._is_up, 60, "the optimiser answers", interval=0.1)
        except BaseException:
            self._child.kill()
            raise

    def log(self) -> str:
        """Return all that it has logged."""
        return self._child.log.read_text()

    def stop(self) -> None:
        """Stop the server by SIGTERM and check exit code 0 without a traceback."""
        try:
            self._child.signal(signal.SIGTERM)
            assert self._child.wait() == 0, self._child.tail()
            assert "Traceback" not in self.log()
        finally:
            self._child.kill()

    def _is_up(self) -> bool:
        assert self._child.is_running, self._child.tail()
        try:
            return requests.get(f"{self.url}/healthz", timeout=300).status_code == 200
        except requests.ConnectionError:
            return False
