"""Cache of the objects of one kind. Thread-safe."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

Object = dict[str, Any]
#: Namespace (empty for objects without one) and name.
Key = tuple[str, str]


class Store:
    """Filled by a reflector's list and watch, and ahead of them by the answers to own writes.

    Objects in it are shared: they are replaced, never changed.
    """

    def __init__(self) -> None:
        self._objects: dict[Key, Object] = {}
        self._lock = threading.Lock()

    def get(self, key: Key) -> Object | None:
        """Return an object, or None."""
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

    def replace(self, objects: Mapping[Key, Object], *, is_restored: bool = False) -> dict[Key, Object]:
        """Store the result of a list; returns the old objects.

        `is_restored`: the server was restored from a backup, so old and new versions are not comparable.
        """
        with self._lock:
            before = self._objects
            current_objects = {} if is_restored else before
            self._objects = {key: _newest(current_objects.get(key), obj) for key, obj in objects.items()}
        return before

    def put(self, obj: Object) -> Object | None:
        """Store an object of a watch; returns the previous one. A later observed state stays."""
        key = key_of(obj)
        with self._lock:
            before = self._objects.get(key)
            self._objects[key] = _newest(before, obj)
        return before

    def remove(self, key: Key) -> Object | None:
        """Remove an object; returns the previous one."""
        with self._lock:
            return self._objects.pop(key, None)

    def observe(self, obj: Object) -> None:
        """Store the answer to a write, unless the stored state is later.

        An unknown object is not added: it may have been deleted meanwhile, and only the watch knows.
        """
        key = key_of(obj)
        with self._lock:
            before = self._objects.get(key)
            if before is not None and before["metadata"]["uid"] == obj["metadata"]["uid"]:
                self._objects[key] = _newest(before, obj)


def key_of(obj: Object) -> Key:
    """Namespace and name of the object."""
    metadata = obj["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def version_of(obj: Object) -> str:
    """The object's resourceVersion."""
    return str(obj["metadata"]["resourceVersion"])


def _newest(cached_object: Object | None, obj: Object) -> Object:
    """`cached_object` when it is the same or a later state of the same object, else `obj`.

    resourceVersions of one kind are growing numbers; others cannot be compared, and then the watch wins. Parsed parts
    of `cached_object` stay in use: a list does not have all objects read again.
    """
    if cached_object is None or cached_object["metadata"]["uid"] != obj["metadata"]["uid"]:
        return obj
    old, new = version_of(cached_object), version_of(obj)
    return cached_object if old.isdecimal() and new.isdecimal() and int(old) >= int(new) else obj
