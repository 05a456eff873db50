"""Reads the summaries and Secrets of an agent, for commands that run stages, such as `dsf explain`.

They come from files, or from the API server of the managed cluster. There, the command uses the agent's account and
code, so that the command reports an object that the agent cannot read.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dsf.agent.config import FileConfig, Summaries
from dsf.agent.secrets import FileSecrets, Release
from dsf.api.summary import ScorerSummary
from dsf.api.types import CONFIGMAP_NAME
from dsf.auth.secrets import SecretSource
from dsf.errors import BackendError, ManifestError, ObjectNotFoundError, UnknownClusterError, UnknownScorerError
from dsf.settings import Settings
from dsf.sources.memory import SourceMemory
from dsf.sources.window import compute_window_budget

if TYPE_CHECKING:
    from dsf.agent.kube import KubeConfig

#: Maximum seconds to wait for an object of the API server. A command waits longer than a stage of the agent, which
#: succeeds in a later cycle.
_MAX_LIST_SECONDS: Final = 30.0


@dataclass(frozen=True)
class ClusterDelivery:
    """The summaries and Secrets of a cluster's agent."""

    #: Origin of the summaries, for messages.
    origin: str
    summaries: Summaries
    secrets: SecretSource
    #: Memory for sources that keep samples between cycles; None if the delivery is read from files.
    memory: SourceMemory | None = None

    def get_summary(self, scorer: str, cluster: str, hint: str) -> ScorerSummary:
        """Return the summary of a scorer. Raises UnknownScorerError, whose message ends with `hint`."""
        if scorer not in self.summaries:
            delivered_names = ", ".join(sorted(self.summaries)) or "none"
            raise UnknownScorerError(
                f"scorer {scorer!r} was not delivered to cluster {cluster!r} ({self.origin} has: {delivered_names}); "
                f"{hint}"
            )
        return self.summaries[scorer]


def open_delivery(
    stack: contextlib.ExitStack, cluster: str, settings: Settings, file: Path | None = None
) -> ClusterDelivery | None:
    """Return the delivery in `file` or DSF_AGENT_CONFIG, else in the agent's namespace.

    Returns None if neither is configured.

    `stack` closes the delivery. Raises the errors of `read_delivery_file` and `open_cluster_delivery`.
    """
    file = file or settings.agent_config
    if file is not None:
        return read_delivery_file(file, settings)
    return stack.enter_context(open_cluster_delivery(cluster, settings)) if settings.agent_kube else None


def read_delivery_file(file: Path, settings: Settings) -> ClusterDelivery:
    """Return the delivery of the ConfigMap in a file, with the Secrets in DSF_AGENT_SECRETS_DIR.

    Raises ManifestError, which names the file.
    """
    if not file.is_file():
        raise ManifestError(f"{file}: there is no such file; the hub writes it when the cluster is accepted")
    config = FileConfig(file)
    with _suppress_agent_log():
        summaries = config.get_summaries()
    if config.problem:
        raise ManifestError(f"{file}: {config.problem}")
    return ClusterDelivery(str(file), summaries, FileSecrets(settings.agent_secrets_dir, Release(settings)))


@contextlib.contextmanager
def open_cluster_delivery(cluster: str, settings: Settings) -> Iterator[ClusterDelivery]:
    """Yield the delivery of the ConfigMap in the agent's namespace. Its Secrets are read on demand during the block.

    Raises UnknownClusterError in the agent of another cluster, ObjectNotFoundError if the ConfigMap is missing,
    BackendError if it cannot be read, ManifestError if it is invalid, and SettingsError outside of a cluster.
    """
    # Import the Kubernetes client late, because it takes half a second and 40 MB.
    from dsf.agent.kube import KubeConfig

    if settings.cluster not in ("", cluster):
        raise UnknownClusterError(
            f"this is the agent of cluster {settings.cluster!r}; run this in the agent of {cluster!r}"
        )
    config = KubeConfig(settings, max_list_seconds=_MAX_LIST_SECONDS)
    namespace = settings.agent_namespace
    with _suppress_agent_log(), contextlib.ExitStack() as stack:
        stack.callback(config.stop)
        config.start()
        summaries = _read_summaries(config, namespace)
        memory = SourceMemory(compute_window_budget(settings.agent_window_series), lambda: summaries)
        # Disable OTLP, because the agent itself listens on the port.
        memory.settings = settings.model_copy(update={"otlp_port": None})
        stack.callback(memory.stop)
        yield ClusterDelivery(_describe_configmap(namespace), summaries, config.secrets, memory)


def _read_summaries(config: KubeConfig, namespace: str) -> Summaries:
    """Return the summaries of the first read. Raises the errors that `open_cluster_delivery` documents."""
    from dsf.agent.kube import describe_unreadable
    from dsf.kube.resources import CONFIG_MAPS

    summaries, configmap = config.get_summaries(), _describe_configmap(namespace)
    if not config.reflector.synced.is_set():
        watch_problem = config.reflector.error or "its API server does not answer in time"
        remedy = describe_unreadable(CONFIG_MAPS, namespace, CONFIGMAP_NAME, watch_problem)
        raise BackendError(f"{configmap} is missing{remedy}")
    if config.read() is None:
        raise ObjectNotFoundError(
            f"{configmap} is missing; the hub delivers it when the cluster is accepted: on the hub see "
            "`kubectl -n CLUSTER get manifestworks`"
        )
    if not config.loaded_at:
        raise ManifestError(f"{configmap}: {config.problem}")
    return summaries


def _describe_configmap(namespace: str) -> str:
    return f"ConfigMap {CONFIGMAP_NAME} in namespace {namespace}"


@contextlib.contextmanager
def _suppress_agent_log() -> Iterator[None]:
    """Suppress the agent's log lines during the block, because the command reports the same errors."""
    loggers = [logging.getLogger(name) for name in ("dsf.agent", "dsf.kube")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
