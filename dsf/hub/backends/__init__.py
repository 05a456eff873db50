"""Where the hub's objects may live. A new place is one module and one line in a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from dsf.errors import SettingsError
from dsf.hub.backend import Backend, ScoreBackend
from dsf.hub.backends.directory import DirectoryBackend
from dsf.hub.backends.outfolder import OutFolder
from dsf.hub.backends.scores import DirectoryScores
from dsf.settings import Settings


def _kube(settings: Settings) -> Backend:
    # Imported here: a laptop with a folder of manifests does without the Kubernetes client's 40 MB.
    from dsf.hub.backends.kube import KubeBackend
    from dsf.kube.session import Session

    return KubeBackend(Session.load(settings.kubeconfig), settings)


def _kube_scores(settings: Settings) -> ScoreBackend:
    from dsf.hub.backends.kube_scores import KubeScoreBackend
    from dsf.kube.session import Session

    return KubeScoreBackend(Session.load(settings.kubeconfig))


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
    """The backend of whoever writes scores only. Raises SettingsError."""
    return _pick(SCORE_BACKENDS, settings)(settings)


def _pick(table: dict[str, _Factory], settings: Settings) -> _Factory:
    factory = table.get(settings.backend)
    if factory is None:
        raise SettingsError(
            f"DSF_BACKEND: {settings.backend!r} is not available in this version; available: {', '.join(sorted(table))}"
        )
    return factory
