"""The hub's master secret on Kubernetes, and the delivery of the agents' credentials through OCM.

A hub whose settings have the secret (`signing_secret` or `signing_secret_file`) does not read it from Kubernetes.
"""

from __future__ import annotations

import base64
import binascii
import secrets
from typing import Final

from dsf.api.types import (
    CREDENTIALS_KEY,
    CREDENTIALS_NAME,
    CREDENTIALS_WORK_NAME,
    KEY_IDS_ANNOTATION,
    MANAGED_BY,
    MANAGED_BY_LABEL,
    PULL_SECRET_NAME,
    REDIS_PASSWORD_KEY,
    SENTINEL_PASSWORD_KEY,
)
from dsf.backends.protocol import Credentials, Manifest
from dsf.errors import BackendError, ObjectConflictError, ObjectNotFoundError, SettingsError
from dsf.kube.resources import MANIFEST_WORKS, SECRETS
from dsf.kube.session import Session
from dsf.messages import SigningKey
from dsf.redisacl.keyids import KeyIds

#: Name of the Secret with the master secret, in the hub's namespace. The results worker mounts it.
MASTER_SECRET_NAME: Final = "dynamic-scoring-hub-signing"  # noqa: S105 - the name of a Secret
#: Key of the master secret in that Secret.
MASTER_SECRET_KEY: Final = "signing-secret"  # noqa: S105 - the key in that Secret
#: Labels of all objects that this module creates.
_LABELS: Final = {MANAGED_BY_LABEL: MANAGED_BY}


def get_master_secret(session: Session, namespace: str) -> str:
    """Return the hub's master secret in hex; create its Secret if missing. Raises BackendError."""
    path = SECRETS.path(namespace, MASTER_SECRET_NAME)
    try:
        return _read_master_secret(session.get(path))
    except ObjectNotFoundError:
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": MASTER_SECRET_NAME, "namespace": namespace, "labels": _LABELS},
            "data": {MASTER_SECRET_KEY: _encode(secrets.token_hex(32))},
        }
    try:
        return _read_master_secret(session.create(SECRETS.path(namespace), body))
    except ObjectConflictError:
        # Another hub has created the Secret in the meantime.
        return _read_master_secret(session.get(path))


def make_credentials_work(cluster: str, agent_namespace: str, credentials: Credentials) -> Manifest:
    """Return the ManifestWork that delivers an agent's Secrets. Its annotation contains the valid key ids."""
    data = {CREDENTIALS_KEY: _encode(credentials.signing_key)}
    if credentials.redis_password:
        data[REDIS_PASSWORD_KEY] = _encode(credentials.redis_password)
    if credentials.sentinel_password:
        data[SENTINEL_PASSWORD_KEY] = _encode(credentials.sentinel_password)
    manifests = [_make_secret(CREDENTIALS_NAME, agent_namespace, "Opaque", data)]
    if credentials.pull_secret:
        pull_secret_data = {".dockerconfigjson": _encode(credentials.pull_secret)}
        # Put the pull secret first: the agent's pod starts when its credentials exist, and then pulls its image.
        manifests.insert(
            0, _make_secret(PULL_SECRET_NAME, agent_namespace, "kubernetes.io/dockerconfigjson", pull_secret_data)
        )
    return {
        "apiVersion": MANIFEST_WORKS.api_version,
        "kind": MANIFEST_WORKS.kind,
        "metadata": {
            "name": CREDENTIALS_WORK_NAME,
            "namespace": cluster,
            "labels": _LABELS,
            "annotations": {KEY_IDS_ANNOTATION: credentials.key_ids.dump()},
        },
        "spec": {"workload": {"manifests": manifests}},
    }


def _make_secret(name: str, namespace: str, secret_type: str, data: dict[str, str]) -> Manifest:
    metadata = {"name": name, "namespace": namespace, "labels": _LABELS}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": secret_type, "data": data}


def read_key_ids(work: Manifest) -> KeyIds | None:
    """Return the valid key ids of a ManifestWork that `make_credentials_work` made; None if they cannot be read.

    If its annotation is missing or invalid, the only valid key id is that of the delivered signing key.
    """
    text = (work["metadata"].get("annotations") or {}).get(KEY_IDS_ANNOTATION)
    annotated_ids = KeyIds.parse(text) if isinstance(text, str) else None
    if annotated_ids is not None:
        return annotated_ids
    try:
        manifests = work["spec"]["workload"]["manifests"]
        (secret,) = (manifest for manifest in manifests if manifest["metadata"]["name"] == CREDENTIALS_NAME)
        key = base64.b64decode(secret["data"][CREDENTIALS_KEY], validate=True).decode("ascii")
        return KeyIds(SigningKey.parse(key).id)
    except (KeyError, TypeError, ValueError, SettingsError):
        return None


def _encode(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _read_master_secret(secret: Manifest) -> str:
    """Return the master secret in hex. Raises BackendError if the Secret does not contain it."""
    try:
        return base64.b64decode(secret["data"][MASTER_SECRET_KEY], validate=True).decode("ascii").strip()
    except (KeyError, TypeError, binascii.Error, UnicodeDecodeError):
        raise BackendError(
            f"Secret {MASTER_SECRET_NAME} has no usable key {MASTER_SECRET_KEY}; delete it, and the hub creates "
            "a new one, which gives every agent a new key"
        ) from None
