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
    """The connection to the agent's own cluster, and the counted outcomes of fields of its objects. Thread-safe."""

    def __init__(self, memory: SourceMemory, settings: Settings) -> None:
        """Raises HttpError for an agent outside of Kubernetes, and SettingsError for invalid settings or without the
        address of an API server.
        """
        if not settings.agent_kube:
            raise _make_unavailable_error()
        self._memory = memory
        self._session = Session.load(settings.kubeconfig)
        self.cluster = KubeCluster(self._session, OwnClusterSettings.load().agent_objects)
        #: Outcome -> number of fields.
        self.outcome_counts: Counter[str] = Counter()
        # Guards `outcome_counts`.
        self._lock = threading.Lock()

    def add_outcomes(self, counts: Counter[str]) -> None:
        """Add the number of fields by outcome in one cycle."""
        with self._lock:
            self.outcome_counts.update(counts)

    def tidy(self) -> None:
        """Stop the watches of nodes and pods if no scorer needs them."""
        summaries = self._memory.summaries().values()
        if SourceType.Kubernetes not in {source.source_type for summary in summaries for source in summary.each_source}:
            self.cluster.stop()

    def families(self) -> Iterator[Metric]:
        """Yield the metric with the number of fields by outcome."""
        family = names.OBJECT_VALUES.make_counter()
        with self._lock:
            counts = dict(self.outcome_counts)
        for outcome, number in counts.items():
            family.add_metric((outcome,), number)
        yield family

    def stop(self) -> None:
        """Stop the watches, and close the connection."""
        self.cluster.stop()
        self._session.close()


def get_own_cluster(request: Request[Options]) -> OwnCluster:
    """Return the own cluster of the agent that makes the request. Raises HttpError outside of an agent."""
    own_cluster: OwnCluster | None = request.running
    if own_cluster is None:
        raise _make_unavailable_error()
    return own_cluster


def _make_unavailable_error() -> HttpError:
    text = "the sources Kubernetes and Object are the agent's own cluster: they need an agent with DSF_AGENT_KUBE=true"
    return HttpError("unsupported_source", text)
