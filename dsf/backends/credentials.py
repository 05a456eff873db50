"""Secrets of the `dir` backend: files that only their owner can read."""

from __future__ import annotations

import secrets
import threading
from pathlib import Path
from typing import Final

from dsf.api.types import CREDENTIALS_KEY, REDIS_PASSWORD_KEY, SENTINEL_PASSWORD_KEY
from dsf.backends.files import read_text, write_text
from dsf.backends.outfolder import PRIVATE, OutFolder
from dsf.backends.protocol import Credentials
from dsf.errors import SettingsError
from dsf.messages import SigningKey
from dsf.redisacl.keyids import KeyIds

_OWNER_ONLY: Final = 0o600
#: Bytes of a new master secret.
_SECRET_BYTES: Final = 32
#: File with the valid key ids, next to the credentials.
_KEY_IDS: Final = "key-ids.json"


class CredentialFiles:
    """The hub's master secret and the agents' keys. Methods raise BackendError when a file cannot be used."""

    def __init__(self, out: OutFolder) -> None:
        self._out = out
        self._making_secret = threading.Lock()

    def signing_secret(self) -> str:
        """The master secret in hex, created if missing."""
        path = self._out.root / PRIVATE / "signing-secret"
        with self._making_secret:
            secret = read_text(path)
            if secret is None:
                secret = secrets.token_hex(_SECRET_BYTES)
                write_text(path, f"{secret}\n", mode=_OWNER_ONLY)
            return secret.strip()

    def deliver_credentials(self, cluster: str, credentials: Credentials) -> None:
        """Write an agent's credentials into its cluster's folder, unless they exist."""
        # The key ids first: an agent must not have credentials that a restarted hub does not know.
        self._put(cluster, _KEY_IDS, credentials.key_ids.dump())
        passwords = {
            REDIS_PASSWORD_KEY: credentials.redis_password,
            SENTINEL_PASSWORD_KEY: credentials.sentinel_password,
        }
        for name, password in passwords.items():
            if password:
                self._put(cluster, name, password)
            elif (path := self._path(cluster, name)).exists():
                # Left over from an earlier configuration.
                self._out.delivered.remove(path, up_to=self._out.root)
        self._put(cluster, CREDENTIALS_KEY, credentials.signing_key)

    def delivered_key_ids(self, cluster: str) -> KeyIds | None:
        """The valid key ids of the agent; None without credentials."""
        text = read_text(self._path(cluster, _KEY_IDS))
        noted = KeyIds.parse(text) if text is not None else None
        if noted is not None:
            return noted
        key = read_text(self._path(cluster, CREDENTIALS_KEY))
        try:
            return None if key is None else KeyIds(SigningKey.parse(key).id)
        except SettingsError:
            return None

    def remove_credentials(self, cluster: str) -> None:
        """Remove the credentials."""
        for name in (CREDENTIALS_KEY, REDIS_PASSWORD_KEY, SENTINEL_PASSWORD_KEY, _KEY_IDS):
            self._out.delivered.remove(self._path(cluster, name), up_to=self._out.root)

    def _put(self, cluster: str, name: str, text: str) -> None:
        path, line = self._path(cluster, name), f"{text}\n"
        if self._out.delivered.read(path, read_text) != line:
            self._out.delivered.write(path, line, line, mode=_OWNER_ONLY)

    def _path(self, cluster: str, name: str) -> Path:
        return self._out.cluster(cluster) / "agent-credentials" / name
