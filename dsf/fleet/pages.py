"""Pagination of pairs."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import redis

from dsf import keys


class Page:
    """A page of sorted pairs, and the next cursor."""

    def __init__(self, pairs: Sequence[tuple[str, str]], limit: int | None, after: str | None) -> None:
        """At most `limit` pairs (None: all) after the pair `after`, even if that one was removed.

        Added or removed pairs do not shift the others between two pages.
        """
        start = 0 if after is None else bisect_right(pairs, keys.split_pair(after))
        self.pairs = list(pairs[start:][:limit])
        self.total = len(pairs)
        self.continue_ = keys.pair(*self.pairs[-1]) if self.pairs and start + len(self.pairs) < len(pairs) else None


def model_page(
    client: redis.Redis, cluster: str | None, scorer: str | None, limit: int, after: str | None
) -> tuple[list[tuple[str, str]], int, str | None]:
    """The same from the read model, without reading the names of all pairs: pairs, total and next cursor."""
    with client.pipeline(transaction=False) as pipe:
        pipe.smembers(keys.MODEL_SCORERS)
        pipe.hkeys(keys.CLUSTERS)
        known, accepted = pipe.execute()
    scorers = sorted(str(name) for name in known if scorer in (None, name))
    clusters = [cluster] if cluster is not None else sorted(map(str, accepted))
    with client.pipeline(transaction=False) as pipe:
        for name in scorers:
            if cluster is None:
                pipe.zcard(keys.model_states(name))
            else:
                pipe.zscore(keys.model_states(name), cluster)
        sizes = pipe.execute()
    total = sum(sizes) if cluster is None else sum(size is not None for size in sizes)
    first = ("", "") if after is None else keys.split_pair(after)
    found: list[tuple[str, str]] = []
    place = bisect_left(clusters, first[0])
    # Most scorers run on most clusters.
    step = max(10, limit // max(1, len(scorers)) + 1)
    while place < len(clusters) and scorers and len(found) <= limit:
        some = clusters[place : place + step]
        with client.pipeline(transaction=False) as pipe:
            for name in scorers:
                pipe.zmscore(keys.model_states(name), some)
            rows = pipe.execute()
        found += [
            (one, name)
            for number, one in enumerate(some)
            for name, places in zip(scorers, rows, strict=True)
            if places[number] is not None and (after is None or (one, name) > first)
        ]
        place += step
    more = len(found) > limit
    found = found[:limit]
    return found, total, keys.pair(*found[-1]) if more else None
