"""Reads the agent's own cluster: nodes and pods for the source type `Kubernetes`, other objects for `Object`.

Nodes and pods are watched from the first cycle of a scorer with the source type `Kubernetes` until the last such scorer
is removed. The memory of a pod is some hundred bytes, because only its node and its requests are stored.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from typing import Any, Final

from dsf.api.objectsource import ObjectSource
from dsf.errors import HttpError
from dsf.kube.reflector import Reflector
from dsf.kube.resources import Resource
from dsf.kube.session import Session
from dsf.kube.store import Object
from dsf.owncluster.capacity import ClusterState, reduce_node, reduce_pod
from dsf.owncluster.kubelisting import KubeListing

_NODES: Final = Resource("", "v1", "nodes", "Node", namespaced=False)
_PODS: Final = Resource("", "v1", "pods", "Pod")
#: Selects the pods that use resources: those with a node that have not ended.
_RUNNING: Final = {"fieldSelector": "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"}
#: Polling interval while waiting, in seconds.
_POLL_SECONDS: Final = 0.05
#: Key of a reduced object in the reflector's copy.
_REDUCED: Final = "reduced"
#: Parts of a watch's error text that indicate a missing right.
_FORBIDDEN: Final = (": 401: ", ": 403: ")


class KubeCluster:
    """Access to the objects of the agent's own cluster. Thread-safe."""

    def __init__(self, session: Session, objects: Collection[str] = ()) -> None:
        """`objects` are the kinds that the source Object may read, such as `deployments.apps`."""
        self._session = session
        self._objects = objects
        self._reflectors: tuple[Reflector, Reflector] | None = None
        # Guards _reflectors.
        self._lock = threading.Lock()

    def read_state(self, deadline: float) -> ClusterState:
        """Return the current nodes and pods, after waiting for the first list until `deadline` (time.monotonic()).

        Raises HttpError: `unauthorized` without the rights, `connection_failed` while the API server is unreachable,
        and `timeout`.
        """
        nodes, pods = reflectors = self._start_reflectors()
        while not all(reflector.synced.is_set() for reflector in reflectors):
            self._check(reflectors)
            if time.monotonic() >= deadline:
                raise HttpError(
                    "timeout", f"the nodes and pods of {self._session.host} were not listed in time", retryable=True
                )
            time.sleep(_POLL_SECONDS)
        # Check again, because a stale copy must not be used as current.
        self._check(reflectors)
        return ClusterState(
            [node[_REDUCED] for node in nodes.store.list()], [pod[_REDUCED] for pod in pods.store.list()]
        )

    def make_listing(self, object_source: ObjectSource, deadline: float) -> KubeListing:
        """Return a listing of the objects of one kind.

        Fetches the API server's list of kinds, until `deadline` (time.monotonic()). Raises HttpError: `unknown_kind`,
        `bad_query` for a kind that must not be read, and the errors of `KubeListing.iterate_pages`.
        """
        return KubeListing(self._session, self._objects, object_source, deadline)

    def stop(self) -> None:
        """Stop the watches and drop the copies; the next `read_state` starts new ones."""
        with self._lock:
            reflectors, self._reflectors = self._reflectors, None
        for reflector in reflectors or ():
            reflector.stop()

    @property
    def is_watching(self) -> bool:
        """True if nodes and pods are watched."""
        with self._lock:
            return self._reflectors is not None

    def _start_reflectors(self) -> tuple[Reflector, Reflector]:
        with self._lock:
            if self._reflectors is None:
                self._reflectors = (
                    Reflector(self._session, _NODES, _ignore, transform=_wrap_reducer(reduce_node)),
                    Reflector(self._session, _PODS, _ignore, selectors=_RUNNING, transform=_wrap_reducer(reduce_pod)),
                )
                for reflector in self._reflectors:
                    reflector.start()
            return self._reflectors

    def _check(self, reflectors: tuple[Reflector, Reflector]) -> None:
        """Raise HttpError if a watch has failed."""
        for reflector in reflectors:
            problem = reflector.error
            if problem is None:
                continue
            if any(refusal in problem for refusal in _FORBIDDEN):
                # Stop, so that the next cycle starts new watches, for which a newly granted right takes effect at once.
                self.stop()
                raise HttpError(
                    "unauthorized",
                    f"the source Kubernetes needs a ClusterRole with get, list and watch of nodes and pods: {problem}",
                )
            raise HttpError("connection_failed", f"the cluster cannot be watched: {problem}", retryable=True)


def _wrap_reducer(reduce: Callable[[Object], Any]) -> Callable[[Object], Object]:
    """Return a function that reduces an object to the metadata that the reflector needs, and the result of `reduce`."""

    def transform(manifest: Object) -> Object:
        metadata = manifest["metadata"]
        reduced_metadata = {
            name: metadata[name] for name in ("name", "namespace", "uid", "resourceVersion") if name in metadata
        }
        return {"metadata": reduced_metadata, _REDUCED: reduce(manifest)}

    return transform


def _ignore(*_: object) -> None:
    """Ignore a change, because cycles read the reflector's copy when they need it."""
