"""The claims of names on Kubernetes: a ConfigMap in the hub's namespace, which authors of scorers cannot write."""

from __future__ import annotations

from typing import Final

from dsf.api.types import MANAGED_BY, MANAGED_BY_LABEL
from dsf.backends.protocol import Manifest
from dsf.errors import ObjectConflictError, ObjectNotFoundError
from dsf.kube.resources import CONFIG_MAPS
from dsf.kube.session import Session

#: The ConfigMap, and its key.
CLAIMS_NAME: Final = "dynamic-scoring-names"
CLAIMS_KEY: Final = "claims"


class KubeClaims:
    """Reads and replaces the ConfigMap. Methods raise BackendError."""

    def __init__(self, session: Session, namespace: str) -> None:
        self._session = session
        self._namespace = namespace
        # Of the ConfigMap as last read or written; empty if it did not exist.
        self._version = ""

    def read(self) -> str:
        """Its text; empty if it does not exist."""
        try:
            config_map = self._session.get(CONFIG_MAPS.path(self._namespace, CLAIMS_NAME))
        except ObjectNotFoundError:
            self._version = ""
            return ""
        self._version = config_map["metadata"]["resourceVersion"]
        return str((config_map.get("data") or {}).get(CLAIMS_KEY, ""))

    def write(self, text: str) -> None:
        """Replace its text; creates it if missing. Raises ObjectConflictError if another process changed it since."""
        metadata = {"name": CLAIMS_NAME, "namespace": self._namespace, "labels": {MANAGED_BY_LABEL: MANAGED_BY}}
        body: Manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {CLAIMS_KEY: text}}
        if not self._version:
            answer = self._session.create(CONFIG_MAPS.path(self._namespace), body)
        else:
            metadata["resourceVersion"] = self._version
            try:
                answer = self._session.replace(CONFIG_MAPS.path(self._namespace, CLAIMS_NAME), body)
            except ObjectNotFoundError as error:
                raise ObjectConflictError(str(error)) from None
        self._version = answer["metadata"]["resourceVersion"]
