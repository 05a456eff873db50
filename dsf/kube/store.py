"""Cache of the objects of one kind. Thread-safe."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

Object = dict[str, Any]
#: Namespace (empty for objects without one) and name.
Key = tuple[str, str]


class Store:
    """Filled by a reflector's list and watch, and ahead of them by the answers to writes of our own.

    Objects in it are shared: they are replaced, never changed.
    """

    def __init__(self) -> None:
        self._objects: dict[Key, Object] = {}
        self._lock = threading.Lock()

    def get(self, key: Key) -> Object | None:
        """One object, or None."""
        with self._lock:
            return self._objects.get(key)

    def list(self) -> list[Object]:
        """All objects."""
        with self._lock:
            return list(self._objects.values())

    def names(self) -> tuple[Key, ...]:
        """The keys of all objects."""
        with self._lock:
            return tuple(self._objects)

    def replace(self, found: Mapping[Key, Object], *, is_restored: bool = False) -> dict[Key, Object]:
        """Hold what a list found; returns what was held before.

        `is_restored`: the server went back to a backup, so that versions before and now cannot be compared.
        """
        with self._lock:
            before = self._objects
            held = {} if is_restored else before
            self._objects = {key: _newest(held.get(key), obj) for key, obj in found.items()}
        return before

    def put(self, obj: Object) -> Object | None:
        """Hold what a watch said; returns what was held before. A later state, observed before, stays."""
        key = key_of(obj)
        with self._lock:
            before = self._objects.get(key)
            self._objects[key] = _newest(before, obj)
        return before

    def remove(self, key: Key) -> Object | None:
        """Hold it no more; returns what was held before."""
        with self._lock:
            return self._objects.pop(key, None)

    def observe(self, obj: Object) -> None:
        """Hold the answer to a write, unless what is held is later.

        An object that is not held stays unknown: it may have been deleted meanwhile, and only the watch knows.
        """
        key = key_of(obj)
        with self._lock:
            before = self._objects.get(key)
            if before is not None and before["metadata"]["uid"] == obj["metadata"]["uid"]:
                self._objects[key] = _newest(before, obj)


def key_of(obj: Object) -> Key:
    """What names the object among those of its kind."""
    metadata = obj["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def version_of(obj: Object) -> str:
    """The object's resourceVersion."""
    return str(obj["metadata"]["resourceVersion"])


def _newest(held: Object | None, obj: Object) -> Object:
    """`held` when it is a later state of the same object, else `obj`.

    resourceVersions of one kind are numbers that only grow; others cannot be compared, and then the watch is believed.
    """
    if held is None or held["metadata"]["uid"] != obj["metadata"]["uid"]:
        return obj
    old, new = version_of(held), version_of(obj)
    return held if old.isdecimal() and new.isdecimal() and int(old) > int(new) else obj
