"""Backends for the hub's objects: a folder of manifests, or Kubernetes.

protocol          the interface of a backend
directory         the backend on a folder
manifestfolder    reads the users' folder
memoryshares      divides the memory for users' objects among their namespaces
outfolder         reads and writes the output folder
kube              the backend on Kubernetes
kube_kinds        watched kinds, and the parts of an object that the hub keeps
kube_crds         finds fields that the CRDs in the cluster lack
kube_scores       reads and writes AddOnPlacementScores
kube_credentials  creates the master secret and delivers the agents' credentials
kube_events       writes Kubernetes Events
contest           limits how often the hub undoes changes by another program
eventlimit        limits the events about one object
scorestate        the parts of a stored score that the score writer compares
compare           compares actual and desired objects
"""

from __future__ import annotations

from collections.abc import Callable

from dsf.backends.directory import DirectoryBackend
from dsf.backends.protocol import Backend, Election
from dsf.settings import Settings

# Import the Kubernetes client, which takes 40 MB of memory, only for the backend that needs it.


def make_backend(settings: Settings) -> Backend:
    """Return the hub controller's backend, not started. Raises SettingsError."""
    if settings.backend == "dir":
        return DirectoryBackend(settings)
    from dsf.backends.kube import KubeBackend
    from dsf.kube.session import Session

    return KubeBackend(Session.load(settings.kubeconfig), settings)


def make_election(settings: Settings, on_started: Callable[[], None], on_lease_lost: Callable[[], None]) -> Election:
    """Return the hub controller's leader election, not started. Raises SettingsError.

    `on_started` is called when this hub becomes the leader, and must return soon. `on_lease_lost` is called when this
    hub loses the leadership: the process must exit immediately, because another hub takes over within seconds. Both may
    be called in any thread.
    """
    if settings.backend == "dir":
        return SingleHubElection(on_started)
    from dsf.kube.leader import LeaderElector
    from dsf.kube.session import Session

    session = Session.load(settings.kubeconfig)
    return LeaderElector(session, settings.namespace, on_started=on_started, on_lease_lost=on_lease_lost)


class SingleHubElection:
    """Election of the only hub, which leads immediately. The output folder's lock excludes a second hub."""

    is_campaigning = True

    def __init__(self, on_started: Callable[[], None]) -> None:
        self._on_started = on_started
        self.is_leading = False

    def start(self) -> None:
        """See `Election.start`."""
        self.is_leading = True
        self._on_started()

    def stop(self) -> None:
        """See `Election.stop`."""
        self.is_leading = False
