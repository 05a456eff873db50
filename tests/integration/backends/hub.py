"""A started backend that records its notifications."""

from __future__ import annotations

import threading

from dsf.backends.kube import KubeBackend
from dsf.backends.protocol import Backend, Kind, ObjectKey
from dsf.settings import Settings
from tests.support.controlplane import ControlPlane


class Hub:
    """A started backend in a new namespace, which records its notifications."""

    def __init__(self, plane: ControlPlane, settings: Settings) -> None:
        self.namespace = settings.namespace
        self.session = plane.session()
        self.backend: Backend = KubeBackend(self.session, settings)
        self.notified: list[ObjectKey] = []
        self._lock = threading.Lock()
        self.overlapping = False

    def on_change(self, key: ObjectKey) -> None:
        if not self._lock.acquire(blocking=False):
            self.overlapping = True
            return
        self.notified.append(key)
        self._lock.release()

    def has_notified(self, kind: Kind, namespace: str, name: str, times: int = 1) -> bool:
        return self.notified.count(ObjectKey(kind, namespace, name)) >= times
