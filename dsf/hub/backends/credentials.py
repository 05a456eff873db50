"""Secrets of the `dir` backend: files that only their owner may read."""

from __future__ import annotations

import secrets
import threading
from pathlib import Path
from typing import Final

from dsf.hub.backends.files import read_text, remove, write_text
from dsf.hub.backends.outfolder import PRIVATE, OutFolder

_OWNER_ONLY: Final = 0o600
#: Bytes of a new master secret.
_SECRET_BYTES: Final = 32


class Credentials:
    """The hub's master secret and the agents' keys. Methods raise BackendError when a file cannot be used."""

    def __init__(self, out: OutFolder) -> None:
        self._out = out
        self._lock = threading.Lock()

    def signing_secret(self) -> str:
        """The master secret in hex, made when there is none."""
        path = self._out.root / PRIVATE / "signing-secret"
        with self._lock:
            secret = read_text(path)
            if secret is None:
                secret = secrets.token_hex(_SECRET_BYTES)
                write_text(path, f"{secret}\n", mode=_OWNER_ONLY)
            return secret.strip()

    def deliver(self, cluster: str, signing_key: str) -> None:
        """Put an agent's key into its cluster's folder, unless it is there."""
        path, text = self._path(cluster), f"{signing_key}\n"
        if read_text(path) != text:
            write_text(path, text, mode=_OWNER_ONLY)

    def remove(self, cluster: str) -> None:
        """Take the key away."""
        remove(self._path(cluster), up_to=self._out.root)

    def _path(self, cluster: str) -> Path:
        return self._out.cluster(cluster) / "agent-credentials" / "signing-key"
