"""Bounds how often the hub undoes changes of another program to one object.

Two programs that want different values of a field, as the hub and upstream's manager do, would write as fast as the API
server lets them.
"""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final, NamedTuple

from dsf.backends.protocol import Manifest

#: Changes that are undone at once, and the longest wait in seconds after more of them.
REPAIRS_AT_ONCE: Final = 3
LONGEST_WAIT: Final = 60.0
# Objects that are remembered: those written last.
_MOST: Final = 20_000


class _Written(NamedTuple):
    """What was written last, how often it was written again, and when that was (monotonic)."""

    digest: int
    repairs: int = 0
    repaired_at: float = float("-inf")


class Contests:
    """The writes of each object. A write of the same content as the last one undoes a change. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._written: OrderedDict[Hashable, _Written] = OrderedDict()

    def wait(self, key: Hashable, content: Manifest) -> float:
        """Return the seconds until this content may be written; 0: now."""
        with self._lock:
            last = self._written.get(key)
        if last is None or last.digest != _digest(content) or last.repairs < REPAIRS_AT_ONCE:
            return 0.0
        wait = min(LONGEST_WAIT, 2.0 ** min(last.repairs, 10))
        return max(0.0, last.repaired_at + wait - self._clock())

    def note(self, key: Hashable, content: Manifest) -> None:
        """The content was written."""
        digest, now = _digest(content), self._clock()
        with self._lock:
            last = self._written.pop(key, None)
            written = _Written(digest)
            if last is not None and last.digest == digest:
                is_new = now > last.repaired_at + 2 * LONGEST_WAIT
                written = _Written(digest, 1 if is_new else last.repairs + 1, now)
            self._written[key] = written
            if len(self._written) > _MOST:
                self._written.popitem(last=False)


def _digest(content: Manifest) -> int:
    return hash(json.dumps(content, sort_keys=True, default=str))
