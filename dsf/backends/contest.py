"""Limits how often the hub undoes changes of an object by another program.

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

#: Number of changes that the hub undoes immediately.
IMMEDIATE_REPAIRS: Final = 3
#: Maximum seconds until the hub undoes a further change.
MAX_WAIT_SECONDS: Final = 60.0
# Maximum number of recorded objects; the object that was written least recently is evicted first.
_MAX_OBJECTS: Final = 20_000


class _LastWrite(NamedTuple):
    """The last write to an object, and the number of repairs: repeated writes of the same content."""

    #: Hash of the written content.
    digest: int
    repairs: int = 0
    #: Time of the last repair by the monotonic clock.
    repaired_at: float = float("-inf")


class WriteContests:
    """Records the last write to each object, and delays repairs of an object that another program keeps changing.

    A write of the same content is a repair: it undoes another program's change. Thread-safe.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._last_writes: OrderedDict[Hashable, _LastWrite] = OrderedDict()

    def compute_wait(self, key: Hashable, content: Manifest) -> float:
        """Return the seconds until `content` may be written to the object `key`; 0 if it may be written now."""
        with self._lock:
            last_write = self._last_writes.get(key)
        if (
            last_write is None
            or last_write.digest != _compute_digest(content)
            or last_write.repairs < IMMEDIATE_REPAIRS
        ):
            return 0.0
        wait_seconds = min(MAX_WAIT_SECONDS, 2.0 ** min(last_write.repairs, 10))
        return max(0.0, last_write.repaired_at + wait_seconds - self._clock())

    def record_write(self, key: Hashable, content: Manifest) -> None:
        """Record that `content` was written to the object `key`."""
        digest, now = _compute_digest(content), self._clock()
        with self._lock:
            last_write = self._last_writes.pop(key, None)
            write = _LastWrite(digest)
            if last_write is not None and last_write.digest == digest:
                # After a long time without repairs, count from the beginning.
                is_new_contest = now > last_write.repaired_at + 2 * MAX_WAIT_SECONDS
                write = _LastWrite(digest, 1 if is_new_contest else last_write.repairs + 1, now)
            self._last_writes[key] = write
            if len(self._last_writes) > _MAX_OBJECTS:
                self._last_writes.popitem(last=False)


def _compute_digest(content: Manifest) -> int:
    return hash(json.dumps(content, sort_keys=True, default=str))
