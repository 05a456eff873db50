"""Counts and pages of the read model, worst first; the cost depends on the size of the page, not of the fleet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import nsmallest
from typing import Any, Final, NamedTuple

import redis

from dsf import keys
from dsf.fleet.overviews import Bucket, Spread, StateCounts
from dsf.fleet.places import Cursor, Segment, segment_of, segments
from dsf.fleet.verdict import Verdict
from dsf.store.client import batched

#: Members per command.
_BATCH: Final = 1000


class Source(NamedTuple):
    """An index of the pairs of a scorer, or of one group of them."""

    scorer: str
    key: str


class Place(NamedTuple):
    """A pair and its place; sorted worst first."""

    segment: int
    place: float
    scorer: str
    cluster: str
    state: Verdict


def every(scorers: Iterable[str]) -> list[Source]:
    """The indexes of all pairs of these scorers."""
    return [Source(scorer, keys.model_states(scorer)) for scorer in scorers]


def count(client: redis.Redis, sources: Sequence[Source], now: float) -> list[StateCounts]:
    """Number of pairs of each source in each state at `now` (unix seconds)."""
    ranges = segments(now)
    with client.pipeline(transaction=False) as pipe:
        for source in sources:
            for one in ranges:
                pipe.zcount(source.key, one.low, one.high)
        numbers = pipe.execute()
    found = []
    for start in range(0, len(numbers), len(ranges)):
        sums = dict.fromkeys((str(state) for state in Verdict), 0)
        for one, number in zip(ranges, numbers[start : start + len(ranges)], strict=True):
            sums[one.state] += number
        found.append(StateCounts(**sums))
    return found


def page(
    client: redis.Redis, sources: Sequence[Source], ranges: Sequence[Segment], limit: int, cursor: Cursor | None
) -> tuple[int, list[Place]]:
    """Number of pairs in these ranges, and at most `limit` + 1 of them after the cursor."""
    with client.pipeline(transaction=False) as pipe:
        for one in ranges:
            for source in sources:
                pipe.zcount(source.key, one.low, one.high)
        numbers: list[int] = pipe.execute()
    found: list[Place] = []
    for place, one in enumerate(ranges):
        counts = numbers[place * len(sources) : (place + 1) * len(sources)]
        if cursor is not None and one.number < cursor.segment:
            continue
        after = cursor if cursor is not None and one.number == cursor.segment else None
        some = [source for source, number in zip(sources, counts, strict=True) if number]
        found += _rows(client, some, one, limit + 1 - len(found), after)
        if len(found) > limit:
            break
    return sum(numbers), found


def pick(
    client: redis.Redis,
    sources: Sequence[Source],
    clusters: Iterable[str],
    ranges: Sequence[Segment],
    limit: int,
    cursor: Cursor | None,
    now: float,
) -> tuple[int, list[Place]]:
    """Number of pairs of these clusters in these ranges, and at most `limit` + 1 of them after the cursor."""
    wanted = {one.number: one.state for one in ranges}
    batches = list(batched(sorted(clusters), _BATCH))
    with client.pipeline(transaction=False) as pipe:
        for source in sources:
            for batch in batches:
                pipe.zmscore(source.key, batch)
        answers = iter(pipe.execute())
    # Plain tuples: there may be as many as pairs in the fleet, of which few are shown.
    found: list[tuple[int, float, str, str]] = []
    for source in sources:
        for batch in batches:
            for cluster, place in zip(batch, next(answers), strict=True):
                if place is not None and (number := segment_of(place, now)) in wanted:
                    found.append((number, place, source.scorer, cluster))
    rows = found if cursor is None else [row for row in found if row > cursor]
    return len(found), [Place(*row, wanted[row[0]]) for row in nsmallest(limit + 1, rows)]


def spread(
    client: redis.Redis,
    names: Sequence[str],
    bounds: Sequence[float] | None,
    parts: tuple[float, float, float] = (0.5, 0.9, 0.99),
) -> list[Spread]:
    """Distribution of the scores of sorted sets; `bounds` ascending, None for ten bars from minimum to maximum.

    `parts` are the fractions below p50, p90 and p99; reversed for values in reverse order.
    """
    sizes = _each(client, [("zcard", name) for name in names])
    ranks = [[0, *(min(size - 1, int(size * part)) for part in parts), size - 1] for size in sizes]
    asked = [("zrange", name, rank, rank) for name, some in zip(names, ranks, strict=True) for rank in some]
    rows = _each(client, asked, withscores=True)
    found = []
    for number, size in enumerate(sizes):
        quantiles = [float(one[0][1]) for one in rows[5 * number : 5 * number + 5] if one]
        if size == 0 or len(quantiles) < 5:
            found.append(Spread())
            continue
        least, p50, p90, p99, greatest = quantiles
        found.append(Spread(count=size, minimum=least, p50=p50, p90=p90, p99=p99, maximum=greatest))
    edges = [list(bounds) if bounds is not None else _tenths(one) for one in found]
    asked = [("zcount", name, "-inf", edge) for name, some in zip(names, edges, strict=True) for edge in some]
    below = iter(_each(client, asked))
    for number, one in enumerate(found):
        sums = [next(below) for _ in edges[number]]
        found[number] = one.model_copy(update={"histogram": _bars(edges[number], sums, sizes[number])})
    return found


def _rows(
    client: redis.Redis, sources: Sequence[Source], segment: Segment, limit: int, after: Cursor | None
) -> list[Place]:
    """At most `limit` pairs of one range of all sources."""
    if not sources or limit <= 0:
        return []
    starts = _starts(client, sources, segment, after)
    asked = [("zrange", source.key, start, start + limit - 1) for source, start in zip(sources, starts, strict=True)]
    answers = _each(client, asked, withscores=True)
    high = float(segment.high.removeprefix("("))
    rows = [
        Place(segment.number, float(place), source.scorer, str(cluster), segment.state)
        for source, some in zip(sources, answers, strict=True)
        for cluster, place in some
        if float(place) < high or (float(place) == high and not segment.high.startswith("("))
    ]
    return sorted(rows)[:limit]


def _starts(client: redis.Redis, sources: Sequence[Source], segment: Segment, after: Cursor | None) -> list[int]:
    """For each source the rank of its first pair in the range, after a given cursor."""
    if after is None:
        below = segment.low.removeprefix("(") if segment.low.startswith("(") else f"({segment.low}"
        return _each(client, [("zcount", source.key, "-inf", below) for source in sources])
    # Pairs at exactly the cursor's place are sorted by scorer, then cluster.
    at = f"{after.place!r}"
    passed = [("zcount", source.key, "-inf", at if source.scorer <= after.scorer else f"({at}") for source in sources]
    starts: list[int] = _each(client, passed)
    for number, source in enumerate(sources):
        if source.scorer == after.scorer:
            before = int(client.zcount(source.key, "-inf", f"({at}"))
            same: list[Any] = client.zrange(source.key, before, starts[number] - 1) if starts[number] > before else []
            starts[number] = before + sum(str(cluster) <= after.cluster for cluster in same)
    return starts


def _each(client: redis.Redis, commands: Iterable[tuple[Any, ...]], **options: Any) -> list[Any]:
    """Answers of many commands, given as method of the client and arguments, in one round trip."""
    with client.pipeline(transaction=False) as pipe:
        for name, *arguments in commands:
            getattr(pipe, name)(*arguments, **options)
        return pipe.execute()


def _tenths(one: Spread) -> list[float]:
    if one.minimum is None or one.maximum is None or one.minimum == one.maximum:
        return [] if one.maximum is None else [one.maximum]
    width = (one.maximum - one.minimum) / 10
    return [*(one.minimum + width * number for number in range(1, 10)), one.maximum]


def _bars(edges: Sequence[float], sums: Sequence[int], size: int) -> list[Bucket]:
    bars = [
        Bucket(up_to=edge, count=number - before) for edge, number, before in zip(edges, sums, [0, *sums], strict=False)
    ]
    rest = size - (sums[-1] if sums else 0)
    return [*bars, Bucket(up_to=None, count=rest)] if rest > 0 else bars
