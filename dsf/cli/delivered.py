"""What a cluster's agent works with, for a command that does the same: the delivered summaries and the secrets.

They come from files, or from the cluster's own API server. There the command is the agent: the same account with the
same rights and the same code, so that what the agent cannot read is an error here too.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dsf.agent.config import FileConfig, Summaries
from dsf.agent.secrets import FileSecrets, Release
from dsf.api.types import CONFIGMAP_NAME
from dsf.auth.secrets import SecretSource
from dsf.errors import BackendError, ManifestError, ObjectNotFoundError, UnknownClusterError
from dsf.settings import Settings
from dsf.sources.held import Held
from dsf.sources.window import Budget

if TYPE_CHECKING:
    from dsf.agent.kube import KubeConfig


@dataclass(frozen=True)
class Delivery:
    """All scorers of one cluster. `where` says to people where they were read."""

    where: str
    summaries: Summaries
    secrets: SecretSource
    held: Held | None = None


def from_file(file: Path, settings: Settings) -> Delivery:
    """The ConfigMap in a file, and secrets in DSF_AGENT_SECRETS_DIR. Raises ManifestError naming the file."""
    if not file.is_file():
        raise ManifestError(f"{file}: there is no such file; it is made when the cluster is accepted")
    config = FileConfig(file)
    with _quiet():
        found = config.summaries()
    if config.problem:
        raise ManifestError(f"{file}: {config.problem}")
    return Delivery(str(file), found, FileSecrets(settings.agent_secrets_dir, Release(settings)))


@contextlib.contextmanager
def from_cluster(cluster: str, settings: Settings) -> Iterator[Delivery]:
    """The ConfigMap and, as they are asked for, the Secrets of the agent's namespace. They can be read until the end.

    Raises UnknownClusterError when this is the agent of another cluster, ObjectNotFoundError without the ConfigMap,
    BackendError when it cannot be read, ManifestError when it cannot be used, and SettingsError outside of a cluster.
    """
    # Only here: importing the Kubernetes client takes half a second and 40 MB.
    from dsf.agent.kube import KubeObjects

    if settings.cluster not in ("", cluster):
        raise UnknownClusterError(
            f"this is the agent of cluster {settings.cluster!r}; what was delivered to {cluster!r} can be read there"
        )
    objects, namespace = KubeObjects(settings), settings.agent_namespace
    with _quiet(), contextlib.ExitStack() as stack:
        stack.callback(objects.config.stop)
        objects.config.start()
        summaries = _read(objects.config, namespace)
        held = Held(Budget(settings.agent_window_series, settings.agent_window_samples), lambda: summaries)
        held.cluster = objects.cluster
        yield Delivery(_configmap(namespace), summaries, objects.secrets, held)


def _read(config: KubeConfig, namespace: str) -> Summaries:
    """The summaries of the first look, as in `from_cluster`."""
    from dsf.agent.kube import hint
    from dsf.kube.resources import CONFIG_MAPS

    found, what = config.summaries(), _configmap(namespace)
    if not config.reflector.synced.is_set():
        why = config.reflector.error or "its API server does not answer in time"
        raise BackendError(f"{what} is missing{hint(CONFIG_MAPS, namespace, CONFIGMAP_NAME, why)}")
    if config.read() is None:
        raise ObjectNotFoundError(
            f"{what} is missing; the hub delivers it when the cluster is accepted: on the hub see "
            "`kubectl -n CLUSTER get manifestworks`"
        )
    if not config.loaded_at:
        raise ManifestError(f"{what}: {config.problem}")
    return found


def _configmap(namespace: str) -> str:
    return f"ConfigMap {CONFIGMAP_NAME} in namespace {namespace}"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """What the agent would log is said by the command."""
    loggers = [logging.getLogger(name) for name in ("dsf.agent", "dsf.kube")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
