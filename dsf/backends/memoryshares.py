"""Limits the memory of users' objects in the hub, so that the authors of one namespace cannot exhaust it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Hashable
from typing import Any, Final

#: Maximum bytes in memory of the specs of all scorer namespaces together, except the hub's own. The parsed specs take
#: the same memory again.
MAX_BYTES: Final = 32 * 1024 * 1024
#: Minimum share of a namespace in MAX_BYTES, for any number of namespaces.
MIN_SHARE: Final = 1024 * 1024
#: Maximum bytes in memory of the specs of all other namespaces together, whose scorers do not run.
MAX_FOREIGN_BYTES: Final = 8 * 1024 * 1024
#: Bytes in memory of a value without its text: the Python object and the reference to it.
_VALUE_BYTES: Final = 64
#: Bytes in memory of an object without its spec: identity and status.
_OBJECT_BYTES: Final = 2048


class MemoryShares:
    """Counts the bytes in memory of users' objects by share, such as a namespace. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Object -> its share and bytes.
        self._sizes: dict[Hashable, tuple[str, int]] = {}
        self._totals: Counter[str] = Counter()

    def admit(self, key: Hashable, share: str, size: int, max_bytes: int) -> bool:
        """Count an object of `size` bytes in a share, in place of its earlier state, and return True.

        Return False, and stop counting the object, if the share would exceed `max_bytes`.
        """
        with self._lock:
            self._release(key)
            size += _OBJECT_BYTES
            if self._totals[share] + size > max_bytes:
                return False
            self._sizes[key] = share, size
            self._totals[share] += size
            return True

    def release(self, key: Hashable) -> None:
        """Stop counting an object."""
        with self._lock:
            self._release(key)

    def _release(self, key: Hashable) -> None:
        share, size = self._sizes.pop(key, ("", 0))
        self._totals[share] -= size


def estimate_bytes(value: Any, max_bytes: int) -> int:
    """Estimate the bytes in memory of a JSON value. Stops at the first number beyond `max_bytes`."""
    size, values = 0, [value]
    while values and size <= max_bytes:
        item = values.pop()
        size += _VALUE_BYTES
        if isinstance(item, str):
            size += len(item) if item.isascii() else 4 * len(item)
        elif isinstance(item, list):
            values += item
        elif isinstance(item, dict):
            size += sum(_VALUE_BYTES + len(name) for name in item)
            values += item.values()
    return size
