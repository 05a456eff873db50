"""Collector of the fleet's /metrics: it reads Redis at every scrape."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

import redis
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

import dsf.log
from dsf import keys, metrics
from dsf.beat.stats import schedule_families
from dsf.fleet.path import STAGES
from dsf.fleet.queries import FleetQueries
from dsf.fleetmetrics.families import Labels, PairFamilies, filled
from dsf.fleetmetrics.server import ServerFamilies
from dsf.process import hubclock
from dsf.reasons import RejectionReason
from dsf.store.client import number, read_factor
from dsf.store.entries import pause
from dsf.store.pairs import Pairs
from dsf.store.registry import Registry, ScorerRecord
from dsf.store.schedule import ScheduleStore
from dsf.store.writes import VALIDITY_FACTOR

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
        clock: Callable[[], float] = hubclock.now,
        *,
        limit: int = sys.maxsize,
        shard: tuple[int, int] = (0, 1),
        model: FleetQueries | None = None,
        home: str = "",
    ) -> None:
        """`model` has the rows in memory, a new one by default; `limit` is the number of series (`SeriesBudget`);
        `shard` (i, n): only clusters whose hash is i of n. Metrics without a cluster are in shard 0. `home` is the
        hub's own namespace.
        """
        self._redis = client
        self._clock = clock
        self._model = model or FleetQueries(client, clock)
        self._budget = SeriesBudget(limit, home)
        self._home = home
        self._shard = shard
        self._server = ServerFamilies(client)

    def collect(self) -> Iterable[Metric]:
        """Read everything before yielding, so that a scrape is complete or absent."""
        try:
            families = self._read()
        except redis.RedisError as error:
            log.warning("redis cannot be read", error=str(error))
            return [filled(metrics.UP.gauge(), {(): 0})]
        return [filled(metrics.UP.gauge(), {(): 1}), *families]

    def _read(self) -> list[Metric]:
        scorers = Registry(self._redis).scorers()
        # In each shard: a rule that joins them needs both.
        pairs = self._pairs(scorers)
        if self._shard[0] != 0:
            return pairs
        return [
            *pairs,
            *schedule_families(self._redis),
            *self._counters(),
            filled(
                metrics.SCORER_HEALTHY.gauge(), {(name,): scorers[name].health == "Active" for name in sorted(scorers)}
            ),
            *model_families(self._model),
            *self._server.collect(),
        ]

    def _pairs(self, scorers: dict[str, ScorerRecord]) -> list[Metric]:
        """Return the exposed families per scorer and cluster."""
        rows = self._model.rows()
        mine = {name: [row for row in rows.get(name, {}).values() if self._is_mine(row.cluster)] for name in scorers}
        wishes = [
            Wish(
                scorer=name,
                namespace=record.namespace or self._home,
                exposition=record.exposition,
                pairs=len(mine[name]),
                items=sum(row.items or 0 for row in mine[name]),
            )
            for name, record in scorers.items()
        ]
        levels = self._budget.levels(wishes)
        exported_pairs = sorted((row.cluster, name) for name in scorers if levels[name] != "none" for row in mine[name])
        families = PairFamilies({name: record.score_name for name, record in scorers.items()}, self._clock())
        intervals = self._intervals(exported_pairs)
        for state in Pairs(self._redis).states(exported_pairs):
            families.add(state, interval=intervals.get(state.pair), with_items=levels[state.scorer] == "items")
        return [
            *families.collect(),
            filled(metrics.EXPOSED.gauge(), dict.fromkeys(sorted(levels.items()), 1)),
            filled(metrics.SERIES_LIMIT.gauge(), {(): self._budget.limit}),
            filled(metrics.SERIES_WANTED.gauge(), {(): self._budget.wanted(wishes)}),
        ]

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

    def _counters(self) -> list[Metric]:
        """Return the families of the results worker: refused results and mail, and writes."""
        rejected = {
            str(reason): number("counter", str(reason), text)
            for reason, text in self._redis.hgetall(keys.REJECTED).items()
        }
        # Exposed as 0 from the start: rate() does not see an increase from absent to one.
        rejection_counts = dict.fromkeys(map(str, RejectionReason), 0.0)
        mail: dict[Labels, float] = {
            (str(cluster),): number("counter", str(cluster), text)
            for cluster, text in sorted(self._redis.hgetall(keys.REJECTED_MAIL).items())
        }
        write_stats = self._redis.hgetall(keys.WRITE_STATS)
        results = ("written", "coalesced", "unchanged", "failed", "deleted")
        return [
            filled(
                metrics.REJECTED.counter(),
                {(reason,): value for reason, value in (rejection_counts | rejected).items()},
            ),
            filled(metrics.MAIL_REJECTED.counter(), mail),
            filled(
                metrics.WRITES.counter(), {(name,): number("counter", name, write_stats.get(name)) for name in results}
            ),
            filled(metrics.VALIDITY_FACTOR.gauge(), {(): read_factor(write_stats.get(VALIDITY_FACTOR))}),
        ]


def model_families(model: FleetQueries) -> Iterable[Metric]:
    """Clusters by state and by reason, and percentiles of age: few series, whatever the fleet's size.

    Raises redis.RedisError.
    """
    interrupted = {problem.stage for problem in model.path_problems()}
    path = filled(metrics.PATH_PROBLEM.gauge(), {(stage,): float(stage in interrupted) for stage in STAGES})
    states, reasons, ages = metrics.PAIRS.gauge(), metrics.REASONS.gauge(), metrics.AGE.gauge()
    for scorer in model.scorers().scorers:
        for state, clusters in scorer.states.model_dump().items():
            states.add_metric((scorer.name, state), clusters)
        for group in scorer.reasons:
            reasons.add_metric((scorer.name, group.state, group.stage, group.reason), group.clusters)
        spread = scorer.ages
        for percentile, age in (("50", spread.p50), ("90", spread.p90), ("99", spread.p99), ("100", spread.maximum)):
            if age is not None:
                ages.add_metric((scorer.name, percentile), age)
    return [path, states, reasons, ages]


class Wish(NamedTuple):
    """The series that a scorer may have: those of its pairs, and those of their items."""

    scorer: str
    namespace: str
    #: The author's choice; empty without one.
    exposition: Level | Literal[""]
    pairs: int
    items: int

    @property
    def needs(self) -> tuple[int, int]:
        """Pairs and items with series, as far as the author does not renounce them."""
        return (
            self.pairs if self.exposition != "none" else 0,
            self.items if self.exposition in ("", "items") else 0,
        )


class SeriesBudget:
    """Decides which series fit into the limit: first those of the hub's own namespace, then each other namespace has
    an equal share of the rest. It remembers what the last scrape left out.

    In the hub's own namespace, the limit is for scorers without an exposition, and the operator's choice counts for
    others. The authors of other namespaces choose among what fits into their share.
    """

    def __init__(self, limit: int, home: str = "") -> None:
        self.limit = limit
        self._home = home
        self._shares: dict[str, _Share] = {}

    def levels(self, wishes: Iterable[Wish]) -> dict[str, Level]:
        """Return the level of each scorer."""
        wishes = list(wishes)
        needs = self._needs(wishes)
        self._shares = {namespace: self._shares.get(namespace, _Share()) for namespace in needs}
        room, level_by_namespace = self.limit, {}
        # A namespace that needs less than its equal share leaves the rest to the other namespaces.
        order = sorted(needs, key=lambda namespace: (namespace != self._home, _count(*needs[namespace]), namespace))
        for position, namespace in enumerate(order):
            share = room if namespace == self._home else room // (len(order) - position)
            level = level_by_namespace[namespace] = self._shares[namespace].level(*needs[namespace], share)
            pairs, items = needs[namespace]
            room -= _count(pairs if level != "none" else 0, items if level == "items" else 0)
        return {wish.scorer: self._level(wish, level_by_namespace) for wish in wishes}

    def wanted(self, wishes: Iterable[Wish]) -> int:
        """Return the number of series without a limit, of the scorers that the limit is for."""
        return sum(_count(*need) for need in self._needs(wishes).values())

    def _needs(self, wishes: Iterable[Wish]) -> dict[str, tuple[int, int]]:
        """Return pairs and items of each namespace, of the scorers that the limit is for."""
        needs: dict[str, tuple[int, int]] = {}
        for wish in wishes:
            pairs, items = needs.get(wish.namespace, (0, 0))
            if not (wish.exposition and wish.namespace == self._home):
                pairs, items = pairs + wish.needs[0], items + wish.needs[1]
            needs[wish.namespace] = pairs, items
        return needs

    def _level(self, wish: Wish, level_by_namespace: Mapping[str, Level]) -> Level:
        level = level_by_namespace[wish.namespace]
        if not wish.exposition:
            return level
        if wish.namespace == self._home:
            return wish.exposition
        return max(level, wish.exposition, key=_LEVELS.index)


#: From most to fewest series.
_LEVELS: Final[tuple[Level, ...]] = ("items", "pair", "none")


def _count(pairs: int, items: int) -> int:
    return PER_PAIR * pairs + items


class _Share:
    """What the last scrape had of a namespace."""

    def __init__(self) -> None:
        self._has_pairs = True
        self._has_items = True

    def level(self, pairs: int, items: int, room: int) -> Level:
        """Return the level that there is room for: the series of this many pairs with these items, of pairs alone, or
        none."""
        self._has_pairs = _fits(_count(pairs, 0), room, self._has_pairs)
        self._has_items = self._has_pairs and _fits(_count(pairs, items), room, self._has_items)
        return "items" if self._has_items else "pair" if self._has_pairs else "none"


def _fits(series_count: int, limit: int, had: bool) -> bool:
    # Hysteresis: omitted series come back when they need somewhat less than the limit.
    return series_count <= (limit if had else limit * 0.9)
