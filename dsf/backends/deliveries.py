"""What the `dir` backend delivers into clusters' folders: the objects of a ManifestWork, and credentials."""

from __future__ import annotations

import secrets
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from dsf.api import kubeyaml
from dsf.api.meta import Condition, set_condition
from dsf.api.types import CREDENTIALS_KEY, REDIS_PASSWORD_KEY, SENTINEL_PASSWORD_KEY
from dsf.backends.files import read_text, write_text
from dsf.backends.outfolder import PRIVATE, OutFolder
from dsf.backends.protocol import Credentials, Manifest
from dsf.errors import BackendError
from dsf.keys import is_name
from dsf.redisacl.keyids import KeyIds


class WorkAgent:
    """In place of OCM's work agent. Methods raise BackendError when a file cannot be written."""

    def __init__(self, out: OutFolder) -> None:
        self._out = out

    def deliver(self, work: Manifest) -> Manifest:
        """Deliver the work's objects; returns the work's status."""
        for path, manifest in self._objects(work):
            self._out.deliver(path, kubeyaml.dump(manifest))
        metadata = work["metadata"]
        applied = Condition(
            type="Applied",
            status="True",
            reason="AppliedManifestWorkComplete",
            message="Apply manifest work complete",
            last_transition_time=datetime.now(UTC),
            observed_generation=metadata.get("generation"),
        )
        return {"conditions": [condition.to_manifest() for condition in set_condition(_conditions(work), applied)]}

    def withdraw(self, cluster: str) -> None:
        """Remove all delivered objects of a cluster."""
        for path in sorted(self._out.cluster(cluster).glob("*.yaml")):
            if not self._out.is_work(path):
                self._out.withdraw(path)

    def _objects(self, work: Manifest) -> list[tuple[Path, Manifest]]:
        folder = self._out.cluster(work["metadata"]["namespace"])
        objects: list[tuple[Path, Manifest]] = []
        for manifest in work["spec"]["workload"]["manifests"]:
            if manifest["apiVersion"].startswith("rbac."):
                # Reading a folder requires no RBAC.
                continue
            name = manifest["metadata"]["name"]
            if not is_name(name):
                raise BackendError(f"{name!r} cannot be the name of an object")
            objects.append((folder / f"{name}.yaml", manifest))
        return objects


def _conditions(work: Manifest) -> list[Condition]:
    try:
        return [Condition.model_validate(condition) for condition in work["status"]["conditions"]]
    except (LookupError, TypeError, ValueError):
        # A new one, or its file was edited.
        return []


#: File with the valid key ids, next to the credentials.
_KEY_IDS: Final = "key-ids.json"


class CredentialFiles:
    """The hub's master secret and the agents' keys, in files that only their owner can read.

    Methods raise BackendError when a file cannot be used.
    """

    def __init__(self, out: OutFolder) -> None:
        self._out = out
        self._making_secret = threading.Lock()

    def signing_secret(self) -> str:
        """The master secret in hex, created if missing."""
        path = self._out.root / PRIVATE / "signing-secret"
        with self._making_secret:
            secret = read_text(path)
            if secret is None:
                secret = secrets.token_hex(32)
                write_text(path, f"{secret}\n", mode=0o600)
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
            else:
                # Perhaps left over from an earlier configuration.
                self._out.withdraw(self._path(cluster, name))
        self._put(cluster, CREDENTIALS_KEY, credentials.signing_key)

    def delivered_key_ids(self, cluster: str) -> KeyIds | None:
        """The valid key ids of the agent; None without credentials."""
        text = read_text(self._path(cluster, _KEY_IDS))
        return None if text is None else KeyIds.parse(text)

    def remove_credentials(self, cluster: str) -> None:
        """Remove the credentials."""
        for name in (CREDENTIALS_KEY, REDIS_PASSWORD_KEY, SENTINEL_PASSWORD_KEY, _KEY_IDS):
            self._out.withdraw(self._path(cluster, name))

    def _put(self, cluster: str, name: str, text: str) -> None:
        self._out.deliver(self._path(cluster, name), f"{text}\n", mode=0o600)

    def _path(self, cluster: str, name: str) -> Path:
        return self._out.cluster(cluster) / "agent-credentials" / name
