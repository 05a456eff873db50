"""A relay between a client and the shared API server, so that one test can lose the server while all others keep it."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from tests.support.controlplane import ControlPlane
from tests.support.forwarder import Forwarder


class ApiServerRelay(Forwarder):
    """A relay to an API server. `kubeconfig` leads through it, as an admin or as the user of another kubeconfig.

    A context manager. To its client, `cut` looks like a server that was killed, and `stalled` like one that was
    stopped by SIGSTOP.
    """

    def __init__(self, plane: ControlPlane, kubeconfig: Path | None = None) -> None:
        super().__init__(plane.port)
        self._plane = plane
        config = yaml.safe_load((kubeconfig or plane.kubeconfig).read_text())
        config["clusters"][0]["cluster"]["server"] = self.server = f"https://127.0.0.1:{self.port}"
        self.kubeconfig = plane.dir / f"kubeconfig-{self.port}"
        self.kubeconfig.write_text(json.dumps(config))

    def restore(self) -> None:
        """Accept connections again after `cut`."""
        self.target = self._plane.port
