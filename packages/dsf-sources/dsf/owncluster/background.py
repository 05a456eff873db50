"""State that an agent keeps for the sources `Kubernetes` and `Object`: one connection to its own cluster."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator

from prometheus_client import Metric

from dsf import metrics as names
from dsf.api.types import SourceType
from dsf.errors import HttpError
from dsf.kube.session import Session
from dsf.owncluster.kubecluster import KubeCluster
from dsf.owncluster.settings import OwnClusterSettings
from dsf.settings import Settings
from dsf.sources.memory import SourceMemory
from dsf.sources.plugin import Options, Request


class OwnCluster:
    """The connection to the agent's own cluster, and the outcomes of fields read from its objects. Thread-safe."""

    def __init__(self, memory: SourceMemory, settings: Settings) -> None:
        """Prepare the connection.

        Raises HttpError for an agent outside of Kubernetes, SettingsError without the address of an API server or for
        an invalid setting.
        """
        if not settings.agent_kube:
            raise _make_unavailable_error()
        self._memory = memory
        self._session = Session.load(settings.kubeconfig)
        self.cluster = KubeCluster(self._session, OwnClusterSettings.load().agent_objects)
        self.values: Counter[str] = Counter()
        # Guards values.
        self._lock = threading.Lock()

    def add_outcomes(self, values: Counter[str]) -> None:
        """Add the outcomes of a cycle's fields."""
        with self._lock:
            self.values.update(values)

    def tidy(self) -> None:
        """Stop the watches of nodes and pods if no scorer needs them."""
        summaries = self._memory.summaries().values()
        if SourceType.Kubernetes not in {source.source_type for summary in summaries for source in summary.each_source}:
            self.cluster.stop()

    def families(self) -> Iterator[Metric]:
        """Yield metrics of fields by outcome."""
        objects = names.OBJECT_VALUES.make_counter()
        with self._lock:
            values = dict(self.values)
        for result, number in values.items():
            objects.add_metric((result,), number)
        yield objects

    def stop(self) -> None:
        """Stop the watches, and close the connection."""
        self.cluster.stop()
        self._session.close()


def get_own_cluster(request: Request[Options]) -> OwnCluster:
    """Return the state of the request's agent. Raises HttpError where there is none."""
    own_cluster: OwnCluster | None = request.running
    if own_cluster is None:
        raise _make_unavailable_error()
    return own_cluster


def _make_unavailable_error() -> HttpError:
    text = "the sources Kubernetes and Object are the agent's own cluster: they need an agent with DSF_AGENT_KUBE=true"
    return HttpError("unsupported_source", text)
