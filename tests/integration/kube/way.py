"""The way to an API server that tests share: who takes it can be kept from the server, which runs on for all others."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from tests.support.controlplane import ControlPlane
from tests.support.forwarder import Forwarder


class Way(Forwarder):
    """As an admin or with another kubeconfig; `kubeconfig` leads over it. Use as a context manager."""

    def __init__(self, plane: ControlPlane, kubeconfig: Path | None = None) -> None:
        super().__init__(plane.port)
        self._plane = plane
        config = yaml.safe_load((kubeconfig or plane.kubeconfig).read_text())
        config["clusters"][0]["cluster"]["server"] = self.server = f"https://127.0.0.1:{self.port}"
        self.kubeconfig = plane.dir / f"kubeconfig-{self.port}"
        self.kubeconfig.write_text(json.dumps(config))

    def mend(self) -> None:
        """After `cut`: the server is back."""
        self.target = self._plane.port
