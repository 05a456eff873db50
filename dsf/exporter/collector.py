"""Collector of the exporter's /metrics: it reads Redis at every scrape."""

from __future__ import annotations

import sys
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Literal

import redis
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

import dsf.log
from dsf import keys, metrics
from dsf.exporter.families import PairFamilies
from dsf.fleet.model import FleetModel
from dsf.fleet.snapshot import every
from dsf.schedule.stats import schedule_families
from dsf.store.client import number
from dsf.store.entries import pause
from dsf.store.pairs import Pairs
from dsf.store.registry import Registry, ScorerRecord
from dsf.store.schedule import ScheduleStore
from dsf.store.writes import VALIDITY_FACTOR, read_factor

log = dsf.log.get(__name__)

Level = Literal["items", "pair", "none"]
#: Series of one scorer on one cluster without its items: two of requests, six of stages, two of times, two of
#: schedules, six of outcomes.
PER_PAIR: Final = 18


class FleetCollector(Collector):
    """The hub's state of the fleet, as metric families.

    When Redis cannot be read there is one metric, `dynamic_scoring_up 0`: old numbers would look fresh.
    """

    def __init__(
        self,
        client: redis.Redis,
        clock: Callable[[], float] = time.time,
        *,
        limit: int = sys.maxsize,
        shard: tuple[int, int] = (0, 1),
        model: FleetModel | None = None,
    ) -> None:
        """`model` has the rows in memory, a new one by default; `limit` is the number of series for scorers without an
        exposure setting; `shard` (i, n): only clusters whose hash is i of n. Metrics without a cluster are in shard 0.
        """
        self._redis = client
        self._clock = clock
        self._model = model or FleetModel(client, clock)
        self._budget = SeriesBudget(limit)
        self._shard = shard

    def describe(self) -> Iterable[Metric]:
        """Empty, so that registering does not read Redis."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Read everything before yielding, so that a scrape is complete or absent."""
        up = metrics.UP.gauge()
        try:
            families = self._read()
        except redis.RedisError as error:
            log.warning("redis cannot be read", error=str(error))
            up.add_metric((), 0)
            return [up]
        up.add_metric((), 1)
        return [up, *families]

    def _read(self) -> list[Metric]:
        scorers = Registry(self._redis).scorers()
        # In each shard: a rule that joins them needs both.
        pairs = self._pairs(scorers)
        if self._shard[0] != 0:
            return pairs
        return [
            *pairs,
            *schedule_families(self._redis),
            self._rejected(),
            self._mail(),
            *self._writes(),
            _healthy(scorers),
            *model_families(self._model),
        ]

    def _pairs(self, scorers: dict[str, ScorerRecord]) -> list[Metric]:
        """The exposed families per scorer and cluster."""
        declared = declared_levels(scorers)
        undeclared = sum(number for name, number in self._counts(scorers).items() if name not in declared)
        items = self._items(name for name in scorers if name not in declared)
        has_pairs = self._budget.for_pairs(undeclared)
        levels: dict[str, Level] = {name: declared.get(name, "items" if has_pairs else "none") for name in scorers}
        shown: list[tuple[str, str]] = []
        if any(level != "none" for level in levels.values()):
            shown = sorted(
                (row.cluster, row.scorer)
                for row in every(self._model.rows())
                if levels.get(row.scorer, "none") != "none" and self._is_mine(row.cluster)
            )
        if has_pairs and not self._budget.for_items(undeclared, items):
            levels = {name: declared.get(name, "pair") for name in scorers}
        families = PairFamilies({name: record.score_name for name, record in scorers.items()}, self._clock())
        intervals = self._intervals(shown)
        for state in Pairs(self._redis).states(shown):
            pair = keys.pair(state.cluster, state.scorer)
            families.add(state, interval=intervals.get(pair), with_items=levels.get(state.scorer) == "items")
        return [*families.collect(), *self._exposition(levels, undeclared, items)]

    def _intervals(self, pairs: Sequence[tuple[str, str]]) -> dict[str, int]:
        """The intervals in force, without those of paused pairs: no cycle of theirs is missing, as it is of those whose
        scoring API is down."""
        schedule, now = ScheduleStore(self._redis), self._clock()
        overrides = schedule.overrides()
        in_force = {
            entry.pair: pause(entry, overrides, now) for entry in schedule.entries(keys.pair(*pair) for pair in pairs)
        }
        return {pair: current.interval for pair, current in in_force.items() if not current.paused}

    def _is_mine(self, cluster: str) -> bool:
        number, of = self._shard
        return of == 1 or zlib.crc32(cluster.encode()) % of == number

    def _counts(self, scorers: Iterable[str]) -> dict[str, int]:
        """Number of clusters in this shard per scorer."""
        rows = self._model.rows()
        return {name: sum(map(self._is_mine, rows.get(name, ()))) for name in scorers}

    def _items(self, scorers: Iterable[str]) -> int:
        """Total number of their items in this shard."""
        rows = self._model.rows()
        mine = (row for name in scorers for row in rows.get(name, {}).values() if self._is_mine(row.cluster))
        return sum(row.items or 0 for row in mine)

    def _exposition(self, levels: Mapping[str, Level], undeclared: int, items: int) -> list[Metric]:
        exposed = metrics.EXPOSED.gauge()
        for name, level in sorted(levels.items()):
            exposed.add_metric((name, level), 1)
        limit = metrics.SERIES_LIMIT.gauge()
        limit.add_metric((), self._budget.limit)
        wanted = metrics.SERIES_WANTED.gauge()
        wanted.add_metric((), PER_PAIR * undeclared + items)
        return [exposed, limit, wanted]

    def _rejected(self) -> Metric:
        stored = {
            str(reason): number("counter", str(reason), text)
            for reason, text in self._redis.hgetall(keys.REJECTED).items()
        }
        family = metrics.REJECTED.counter()
        # Exposed as 0 from the start: rate() does not see an increase from absent to one.
        known = dict.fromkeys(("bad_signature", "replayed", "stale", "unknown_cluster", "malformed"), 0.0)
        for reason, value in (known | stored).items():
            family.add_metric((reason,), value)
        return family

    def _mail(self) -> Metric:
        family = metrics.MAIL_REJECTED.counter()
        for cluster, text in sorted(self._redis.hgetall(keys.REJECTED_MAIL).items()):
            family.add_metric((str(cluster),), number("counter", str(cluster), text))
        return family

    def _writes(self) -> list[Metric]:
        stored = self._redis.hgetall(keys.WRITE_STATS)
        writes = metrics.WRITES.counter()
        for result in ("written", "coalesced", "unchanged", "failed", "deleted"):
            writes.add_metric((result,), number("counter", result, stored.get(result)))
        factor = metrics.VALIDITY_FACTOR.gauge()
        factor.add_metric((), read_factor(stored.get(VALIDITY_FACTOR)))
        return [writes, factor]


def _healthy(scorers: dict[str, ScorerRecord]) -> Metric:
    family = metrics.SCORER_HEALTHY.gauge()
    for name, record in sorted(scorers.items()):
        family.add_metric((name,), float(record.health == "Active"))
    return family


def model_families(model: FleetModel) -> Iterable[Metric]:
    """Clusters by state and by reason, and percentiles of age: few series, whatever the fleet's size.

    Raises redis.RedisError.
    """
    states, reasons, ages = metrics.PAIRS.gauge(), metrics.REASONS.gauge(), metrics.AGE.gauge()
    for scorer in model.overviews():
        for state, clusters in scorer.states.model_dump().items():
            states.add_metric((scorer.name, state), clusters)
        for group in scorer.reasons:
            reasons.add_metric((scorer.name, group.state, group.stage, group.reason), group.clusters)
        spread = scorer.ages
        for percentile, age in (("50", spread.p50), ("90", spread.p90), ("99", spread.p99), ("100", spread.maximum)):
            if age is not None:
                ages.add_metric((scorer.name, percentile), age)
    return [states, reasons, ages]


class SeriesBudget:
    """Which series of scorers without a setting fit into the limit. It remembers what the last scrape left out."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._has_pairs = True
        self._has_items = True

    def for_pairs(self, pairs: int) -> bool:
        """Whether there is room for the series of this many pairs."""
        self._has_pairs = _fits(PER_PAIR * pairs, self.limit, self._has_pairs)
        return self._has_pairs

    def for_items(self, pairs: int, items: int) -> bool:
        """Whether there is room for those of the items too."""
        self._has_items = self._has_pairs and _fits(PER_PAIR * pairs + items, self.limit, self._has_items)
        return self._has_items


def declared_levels(records: Mapping[str, ScorerRecord]) -> dict[str, Level]:
    """The levels that scorers declare themselves."""
    return {name: record.exposition for name, record in records.items() if record.exposition != ""}


def _fits(wanted: int, limit: int, had: bool) -> bool:
    # Hysteresis: omitted series come back when they need somewhat less than the limit.
    return wanted <= (limit if had else limit * 0.9)
