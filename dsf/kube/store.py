"""The cache of a reflector: the objects of one kind."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

Object = dict[str, Any]
#: Namespace (empty for cluster-scoped objects) and name.
Key = tuple[str, str]


class Store:
    """Cache of objects, which a reflector's list and watch, and responses to writes, update. Thread-safe.

    Callers share the objects in the cache and must not change them. The store replaces changed objects.
    """

    def __init__(self) -> None:
        self._objects: dict[Key, Object] = {}
        self._lock = threading.Lock()

    def get(self, key: Key) -> Object | None:
        """Return an object, or None."""
        with self._lock:
            return self._objects.get(key)

    def list(self) -> list[Object]:
        """Return all objects."""
        with self._lock:
            return list(self._objects.values())

    def list_keys(self) -> tuple[Key, ...]:
        """Return the keys of all objects."""
        with self._lock:
            return tuple(self._objects)

    def replace(self, objects: Mapping[Key, Object], *, is_restored: bool = False) -> dict[Key, Object]:
        """Store the result of a list, and return the previous objects.

        `is_restored` is True if the server was restored from a backup: old and new versions are then not comparable.
        """
        with self._lock:
            old_objects = self._objects
            comparable_objects = {} if is_restored else old_objects
            self._objects = {key: _choose_newer(comparable_objects.get(key), obj) for key, obj in objects.items()}
        return old_objects

    def put(self, obj: Object) -> Object | None:
        """Store an object from a watch, unless the stored state is later. Return the previous object, or None."""
        key = get_key(obj)
        with self._lock:
            old_object = self._objects.get(key)
            self._objects[key] = _choose_newer(old_object, obj)
        return old_object

    def remove(self, key: Key) -> Object | None:
        """Remove an object, and return it; None if there was none."""
        with self._lock:
            return self._objects.pop(key, None)

    def observe(self, obj: Object) -> None:
        """Store the response to a write, unless the stored state is later.

        Only updates existing objects, because a new one may have been deleted in the meantime, which the watch reports.
        """
        key = get_key(obj)
        with self._lock:
            old_object = self._objects.get(key)
            if old_object is not None and old_object["metadata"]["uid"] == obj["metadata"]["uid"]:
                self._objects[key] = _choose_newer(old_object, obj)


def get_key(obj: Object) -> Key:
    """Return namespace and name of the object."""
    metadata = obj["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def get_version(obj: Object) -> str:
    """Return the resourceVersion of the object."""
    return str(obj["metadata"]["resourceVersion"])


def _choose_newer(cached_object: Object | None, obj: Object) -> Object:
    """Return `cached_object` if it is the same or a later state of the same object, else `obj`.

    resourceVersions of a kind are increasing numbers; if a version is not a number, `obj` wins. At equal versions,
    `cached_object` wins, so that callers need not parse all objects again after a list.
    """
    if cached_object is None or cached_object["metadata"]["uid"] != obj["metadata"]["uid"]:
        return obj
    cached_version, version = get_version(cached_object), get_version(obj)
    return (
        cached_object
        if cached_version.isdecimal() and version.isdecimal() and int(cached_version) >= int(version)
        else obj
    )
