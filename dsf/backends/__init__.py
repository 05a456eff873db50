"""Backends for the hub's objects. A new backend is one module and one line in a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from dsf.backends.directory import DirectoryBackend
from dsf.backends.outfolder import DirectoryScores, OutFolder
from dsf.backends.protocol import Backend, Election, ScoreBackend
from dsf.errors import SettingsError
from dsf.settings import Settings


def _kube(settings: Settings) -> Backend:
    # Imported here: a hub on a folder of manifests does not load the Kubernetes client's 40 MB.
    from dsf.backends.kube import KubeBackend
    from dsf.kube.session import Session

    return KubeBackend(Session.load(settings.kubeconfig), settings)


def _kube_scores(settings: Settings) -> ScoreBackend:
    from dsf.backends.kube_scores import KubeScoreBackend
    from dsf.kube.session import Session

    return KubeScoreBackend(Session.load(settings.kubeconfig))


def _kube_election(settings: Settings, on_started: Callable[[], None], on_lost: Callable[[], None]) -> Election:
    from dsf.kube.leader import LeaderElector
    from dsf.kube.session import Session

    session = Session.load(settings.kubeconfig)
    return LeaderElector(session, settings.namespace, on_started=on_started, on_lost=on_lost)


class Alone:
    """The election of a single hub: it leads immediately. A folder has its own lock against a second hub."""

    campaigning = True

    def __init__(self, on_started: Callable[[], None]) -> None:
        self._on_started = on_started
        self.leading = False

    def start(self) -> None:
        """See the protocol."""
        self.leading = True
        self._on_started()

    def stop(self) -> None:
        """See the protocol."""
        self.leading = False


BACKENDS: Final[dict[str, Callable[[Settings], Backend]]] = {"dir": DirectoryBackend, "kube": _kube}
SCORE_BACKENDS: Final[dict[str, Callable[[Settings], ScoreBackend]]] = {
    "dir": lambda settings: DirectoryScores(OutFolder.of(settings)),
    "kube": _kube_scores,
}

_Factory = TypeVar("_Factory")


def make_backend(settings: Settings) -> Backend:
    """The hub controller's backend, not started. Raises SettingsError."""
    return _pick(BACKENDS, settings)(settings)


def make_score_backend(settings: Settings) -> ScoreBackend:
    """The backend of the results worker, which writes scores only. Raises SettingsError."""
    return _pick(SCORE_BACKENDS, settings)(settings)


def make_election(settings: Settings, on_started: Callable[[], None], on_lost: Callable[[], None]) -> Election:
    """The hub controller's candidacy, not started. Raises SettingsError.

    `on_started` is called when this hub becomes the leader and must return soon; `on_lost` when it must stop writing:
    other hubs take over within seconds, so the process has to exit immediately. Both may be called in any thread.
    """
    if settings.backend == "kube":
        return _kube_election(settings, on_started, on_lost)
    return Alone(on_started)


def _pick(table: dict[str, _Factory], settings: Settings) -> _Factory:
    factory = table.get(settings.backend)
    if factory is None:
        raise SettingsError(
            f"DSF_BACKEND: {settings.backend!r} is not available in this version; available: {', '.join(sorted(table))}"
        )
    return factory
