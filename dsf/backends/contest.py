"""Limit on how often the hub undoes changes by another program to the same object.

Without a limit, two programs that set the same field to different values, such as the hub and upstream's manager, would
write as fast as the API server accepts requests.
"""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final, NamedTuple

from dsf.backends.protocol import Manifest

#: Number of changes that are undone immediately, and the maximum wait in seconds after further changes.
REPAIRS_AT_ONCE: Final = 3
LONGEST_WAIT: Final = 60.0
# Maximum number of recorded objects; the object that was written least recently is dropped first.
_MAX_OBJECTS: Final = 20_000


class _Written(NamedTuple):
    """The digest of the last written content, the number of repeated writes, and the monotonic time of the last one."""

    digest: int
    repairs: int = 0
    repaired_at: float = float("-inf")


class Contests:
    """Record of the writes to each object. Writing the same content again undoes a change. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._written: OrderedDict[Hashable, _Written] = OrderedDict()

    def wait(self, key: Hashable, content: Manifest) -> float:
        """Return the seconds until this content may be written; 0 if it may be written now."""
        with self._lock:
            last = self._written.get(key)
        if last is None or last.digest != _compute_digest(content) or last.repairs < REPAIRS_AT_ONCE:
            return 0.0
        wait = min(LONGEST_WAIT, 2.0 ** min(last.repairs, 10))
        return max(0.0, last.repaired_at + wait - self._clock())

    def record_write(self, key: Hashable, content: Manifest) -> None:
        """Record that the content was written."""
        digest, now = _compute_digest(content), self._clock()
        with self._lock:
            last = self._written.pop(key, None)
            written = _Written(digest)
            if last is not None and last.digest == digest:
                is_new = now > last.repaired_at + 2 * LONGEST_WAIT
                written = _Written(digest, 1 if is_new else last.repairs + 1, now)
            self._written[key] = written
            if len(self._written) > _MAX_OBJECTS:
                self._written.popitem(last=False)


def _compute_digest(content: Manifest) -> int:
    return hash(json.dumps(content, sort_keys=True, default=str))
