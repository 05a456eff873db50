"""Results in a cluster's mailbox, as its agent puts them there and as anybody with its credential could."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable

import redis

from dsf import keys


def put(client: redis.Redis, slot: int, content: object, cluster: str = "c1") -> None:
    """Fill one slot, whatever it contains, and set the flag. `content` is text, a frame, or anything that JSON can
    encode.
    """
    raw = content if isinstance(content, str | bytes) else json.dumps(content)
    client.set(keys.mail_slot(cluster, slot), raw)
    client.set(keys.mail_flag(cluster), slot)


def push(client: redis.Redis, frames: Iterable[bytes], cluster: str = "c1", seconds: float = 300.0) -> None:
    """Put all of these into free slots, as soon as there are free ones."""
    deadline = time.monotonic() + seconds
    for frame in frames:
        while not any(client.set(slot, frame, nx=True) for slot in keys.mail_slots(cluster)):
            assert time.monotonic() < deadline, "the mailbox stays full"
            time.sleep(0.01)
        client.set(keys.mail_flag(cluster), 1)


def waiting(client: redis.Redis, cluster: str = "c1") -> int:
    """How many results wait there."""
    return int(client.exists(*keys.mail_slots(cluster)))
