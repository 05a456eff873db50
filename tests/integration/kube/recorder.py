"""Reflectors under test: their reports are recorded and compared with the server."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from dsf.kube.reflector import Reflector
from dsf.kube.resources import Resource
from dsf.kube.session import Session
from dsf.kube.store import Key, Object, get_key
from tests.support.wait import wait_for


class Recorder:
    """A handler that records every report and applies it to its own copy."""

    def __init__(self) -> None:
        self.reports: list[tuple[str, Key]] = []
        #: resourceVersions, from the reports alone.
        self.copy: dict[Key, str] = {}
        #: Reports that contradict earlier ones. Recorded, because the reflector survives an error of its handler.
        self.mistakes: list[str] = []
        self._lock = threading.Lock()

    def __call__(self, key: Key, old: Object | None, new: Object | None) -> None:
        with self._lock:
            if (old is None) != (key not in self.copy):
                self.mistakes.append(f"{key}: said to have been {'absent' if old is None else 'there'} before")
            if new is None:
                self.copy.pop(key, None)
                self.reports.append(("deleted", key))
            else:
                self.reports.append(("changed" if key in self.copy else "added", key))
                self.copy[key] = new["metadata"]["resourceVersion"]

    def names(self, change: str) -> list[str]:
        """Return the names of the objects that were reported as added, changed or deleted, in order."""
        with self._lock:
            return [key[1] for reported, key in self.reports if reported == change]


def record_page_sizes(session: Session) -> list[int]:
    """Return a list that gets the bytes of each page that the session reads from now on."""
    sizes: list[int] = []
    read: Callable[..., Any] = session.read

    def record(*arguments: Any, **options: Any) -> Any:
        page, size = read(*arguments, **options)
        sizes.append(size)
        return page, size

    session.read = record  # type: ignore[method-assign]
    return sizes


@contextlib.contextmanager
def reflecting(
    session: Session,
    resource: Resource,
    recorder: Recorder,
    *,
    synced: bool = True,
    started: list[Reflector] | None = None,
    **options: Any,
) -> Iterator[Reflector]:
    """A running reflector, by default one that has listed once. The reflector is in `started` before its first
    request.
    """
    reflector = Reflector(session, resource, recorder, **options)
    if started is not None:
        started.append(reflector)
    reflector.start()
    try:
        if synced:
            wait_for(reflector.synced.is_set, 20, f"the first list of {resource}")
        yield reflector
    finally:
        reflector.stop()
        reflector._thread.join(30)
        assert not reflector._thread.is_alive(), "the reflector's thread ended with it"
    assert not recorder.mistakes


def on_server(session: Session, resource: Resource, namespace: str = "") -> dict[Key, str]:
    """Return the server's objects in the form of `Recorder.copy`."""
    items = session.get(resource.path(namespace))["items"]
    return {get_key(item): item["metadata"]["resourceVersion"] for item in items}
