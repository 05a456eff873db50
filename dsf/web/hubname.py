"""Finds the name of the hub, which pages and the titles of tabs show to users of several hubs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import redis

from dsf.fleet.queries import FleetQueries
from dsf.process.valuecache import ValueCache
from dsf.settings import Settings

if TYPE_CHECKING:
    from dsf.kube.session import Session

#: OCM's label of the ManagedCluster that is the hub itself, and the name that it has unless somebody changed it.
_LOCAL_CLUSTER: Final = "local-cluster"
#: Seconds for which the name is cached, because the labels of all clusters are read for it.
_CACHE_SECONDS: Final = 600.0


class HubName:
    """Finds the name of the hub. Thread-safe."""

    def __init__(self, settings: Settings, session: Session | None, model: FleetQueries) -> None:
        self._name = settings.hub_name
        if not self._name and session is not None and settings.kubeconfig is not None:
            # In a pod, the address is the same on every hub.
            self._name = urlsplit(session.host).netloc.rpartition("@")[2]
        self._model = model
        self._cache: ValueCache[str, str] = ValueCache(_CACHE_SECONDS, max_entries=1)

    def read(self) -> str:
        """Return the setting, the address of the API server, or the name of OCM's hub; empty if none is known."""
        try:
            return self._name or self._cache.get("", self._find_local_cluster)
        except redis.RedisError:
            # Show no name, because pages report the unreadable Redis anyway.
            return ""

    def _find_local_cluster(self) -> str:
        hubs = [name for name, labels in self._model.labels().items() if labels.get(_LOCAL_CLUSTER) == "true"]
        return "" if hubs == [_LOCAL_CLUSTER] else "".join(hubs[:1])
