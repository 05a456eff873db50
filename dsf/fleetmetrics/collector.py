"""Collector of the fleet's /metrics, which reads Redis at every scrape."""

from __future__ import annotations

import sys
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

import redis
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

import dsf.log
from dsf import keys, metrics
from dsf.api.scoringresponse import truncate_label
from dsf.beat.stats import collect_schedule_metrics
from dsf.fleet.path import STAGES
from dsf.fleet.queries import FleetQueries
from dsf.fleetmetrics.families import Labels, PairFamilies, add_values
from dsf.fleetmetrics.server import ServerFamilies
from dsf.process import hubclock
from dsf.reasons import RejectionReason
from dsf.store.client import parse_number, parse_validity_factor
from dsf.store.entries import compute_pause
from dsf.store.pairs import Pairs
from dsf.store.registry import Registry, ScorerRecord
from dsf.store.schedule import ScheduleStore
from dsf.store.writes import VALIDITY_FACTOR_FIELD

log = dsf.log.get(__name__)

Level = Literal["items", "pair", "none"]
#: Series of one scorer on one cluster without its items: two for requests, six for stages, two for times, two for the
#: schedule, six for outcomes.
PER_PAIR: Final = 18
#: Share of the limit below which omitted series are exposed again, so that the level does not alternate at the limit.
_RETURN_SHARE: Final = 0.9


class FleetCollector(Collector):
    """Yields the hub's state of the fleet as metric families.

    If Redis cannot be read, `dynamic_scoring_up 0` is the only metric, because old values would look fresh.
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
        """Create a collector of one shard.

        `limit` is the maximum number of series (`SeriesBudget`). `shard` (i, n) selects the clusters whose hash modulo
        n is i; metrics without a cluster are in shard 0. `model` provides the rows in memory, None creates one. `home`
        is the hub's own namespace.
        """
        self._redis = client
        self._clock = clock
        self._model = model or FleetQueries(client, clock)
        self._budget = SeriesBudget(limit, home)
        self._home = home
        self._shard = shard
        self._server = ServerFamilies(client)

    def collect(self) -> Iterable[Metric]:
        """Return all families. All data is read first, so that no scrape is incomplete."""
        try:
            families = self._read()
        except redis.RedisError as error:
            log.warning("redis cannot be read", error=str(error))
            return [add_values(metrics.UP.make_gauge(), {(): 0})]
        return [add_values(metrics.UP.make_gauge(), {(): 1}), *families]

    def _read(self) -> list[Metric]:
        scorers = Registry(self._redis).read_scorers()
        # Each shard exposes these families, including those without a cluster, because alert rules join them.
        pair_families = self._read_pair_families(scorers)
        if self._shard[0] != 0:
            return pair_families
        return [
            *pair_families,
            *collect_schedule_metrics(self._redis),
            *self._read_result_families(),
            _make_health_family(scorers),
            *make_families(self._model),
            *self._server.collect(),
        ]

    def _read_pair_families(self, scorers: dict[str, ScorerRecord]) -> list[Metric]:
        """Return the exposed families per scorer and cluster."""
        rows = self._model.rows()
        shard_rows = {
            name: [row for row in rows.get(name, {}).values() if self._is_in_shard(row.cluster)] for name in scorers
        }
        demands = [
            SeriesDemand(
                scorer=name,
                namespace=record.namespace or self._home,
                exposition=record.exposition,
                pairs=len(shard_rows[name]),
                items=sum(row.items or 0 for row in shard_rows[name]),
            )
            for name, record in scorers.items()
        ]
        levels = self._budget.choose_levels(demands)
        exported_pairs = sorted(
            (row.cluster, name) for name in scorers if levels[name] != "none" for row in shard_rows[name]
        )
        families = PairFamilies({name: record.score_name for name, record in scorers.items()}, self._clock())
        intervals = self._read_intervals(exported_pairs)
        # A scrape must not read and parse hundreds of megabytes of scores whose items it omits.
        states = Pairs(self._redis).read_states(exported_pairs, lambda pair, _: levels[pair[1]] == "items")
        for state in states:
            families.add(state, interval=intervals.get(state.pair), with_items=levels[state.scorer] == "items")
        return [
            *families.collect(),
            add_values(
                metrics.EXPOSED.make_gauge(),
                {(truncate_label(scorers[name].score_name), level): 1 for name, level in sorted(levels.items())},
            ),
            add_values(metrics.SERIES_LIMIT.make_gauge(), {(): self._budget.limit}),
            add_values(metrics.SERIES_WANTED.make_gauge(), {(): self._budget.count_wanted_series(demands)}),
        ]

    def _read_intervals(self, pairs: Sequence[tuple[str, str]]) -> dict[str, int]:
        """Return the intervals in force (seconds) by pair, without those of paused pairs.

        Paused pairs are omitted, because no cycle of them is missing, unlike cycles of pairs whose scoring API is down.
        """
        schedule, now = ScheduleStore(self._redis), self._clock()
        overrides = schedule.read_overrides()
        schedules = {
            entry.pair: compute_pause(entry, overrides, now)
            for entry in schedule.read_entries(keys.pair(*pair) for pair in pairs)
        }
        return {pair: pair_schedule.interval for pair, pair_schedule in schedules.items() if not pair_schedule.paused}

    def _is_in_shard(self, cluster: str) -> bool:
        index, count = self._shard
        return count == 1 or zlib.crc32(cluster.encode()) % count == index

    def _read_result_families(self) -> list[Metric]:
        """Return the families of the results worker: rejected results and mail, and writes."""
        rejected_counts = {
            str(reason): parse_number("counter", str(reason), text)
            for reason, text in self._redis.hgetall(keys.REJECTED).items()
        }
        # All reasons are exposed from the start, because rate() misses an increase from absent to 1.
        zero_counts = dict.fromkeys(map(str, RejectionReason), 0.0)
        mail_counts: dict[Labels, float] = {
            (str(cluster),): parse_number("counter", str(cluster), text)
            for cluster, text in sorted(self._redis.hgetall(keys.REJECTED_MAIL).items())
        }
        write_stats = self._redis.hgetall(keys.WRITE_STATS)
        write_results = ("written", "coalesced", "unchanged", "failed", "deleted")
        return [
            add_values(
                metrics.REJECTED.make_counter(),
                {(reason,): count for reason, count in (zero_counts | rejected_counts).items()},
            ),
            add_values(metrics.MAIL_REJECTED.make_counter(), mail_counts),
            add_values(
                metrics.WRITES.make_counter(),
                {(name,): parse_number("counter", name, write_stats.get(name)) for name in write_results},
            ),
            add_values(
                metrics.VALIDITY_FACTOR.make_gauge(),
                {(): parse_validity_factor(write_stats.get(VALIDITY_FACTOR_FIELD))},
            ),
        ]


def _make_health_family(scorers: Mapping[str, ScorerRecord]) -> Metric:
    """Return 1 for each score whose scoring API is healthy, else 0."""
    unhealthy_scores = {record.score_name for record in scorers.values() if record.health != "Active"}
    return add_values(
        metrics.SCORER_HEALTHY.make_gauge(),
        {
            (truncate_label(record.score_name),): record.score_name not in unhealthy_scores
            for record in scorers.values()
        },
    )


def make_families(model: FleetQueries) -> Iterable[Metric]:
    """Return the clusters of each score by state and by reason, percentiles of age, and the path's problems.

    The number of series does not depend on the number of clusters. Raises redis.RedisError.
    """
    interrupted_stages = {problem.stage for problem in model.find_path_problems()}
    path = add_values(
        metrics.PATH_PROBLEM.make_gauge(), {(stage,): float(stage in interrupted_stages) for stage in STAGES}
    )
    # Summed in dictionaries, because two scorers have the same score name while one takes it over from the other.
    states: defaultdict[Labels, float] = defaultdict(float)
    reasons: defaultdict[Labels, float] = defaultdict(float)
    ages: defaultdict[Labels, float] = defaultdict(float)
    for scorer in model.scorers().scorers:
        score = truncate_label(scorer.score_name)
        for state, clusters in scorer.states.model_dump().items():
            states[score, state] += clusters
        for group in scorer.reasons:
            reasons[score, group.state, group.stage, group.reason] += group.clusters
        spread = scorer.ages
        for percentile, age in (("50", spread.p50), ("90", spread.p90), ("99", spread.p99), ("100", spread.maximum)):
            if age is not None:
                ages[score, percentile] = max(ages[score, percentile], age)
    return [
        path,
        add_values(metrics.PAIRS.make_gauge(), states),
        add_values(metrics.REASONS.make_gauge(), reasons),
        add_values(metrics.AGE.make_gauge(), ages),
    ]


class SeriesDemand(NamedTuple):
    """The numbers of pairs and items of a scorer, which determine its series."""

    scorer: str
    namespace: str
    #: The level that the scorer's author chose; empty without a choice.
    exposition: Level | Literal[""]
    pairs: int
    items: int

    @property
    def wanted(self) -> tuple[int, int]:
        """Numbers of pairs and items whose series the author wants."""
        return (
            self.pairs if self.exposition != "none" else 0,
            self.items if self.exposition in ("", "items") else 0,
        )


class SeriesBudget:
    """Decides which series fit into the limit, and remembers which series the last scrape omitted.

    The hub's own namespace is served first. The other namespaces have equal shares of the rest. In the hub's own
    namespace, the limit applies to scorers without an exposition; the exposition of other scorers is always granted,
    because the operator chose it. Authors in other namespaces can choose among the levels that fit into their share.
    """

    def __init__(self, limit: int, home: str = "") -> None:
        self.limit = limit
        self._home = home
        self._shares: dict[str, _NamespaceShare] = {}

    def choose_levels(self, demands: Iterable[SeriesDemand]) -> dict[str, Level]:
        """Return the level of each scorer for this scrape."""
        demands = list(demands)
        totals = self._sum_demands(demands)
        self._shares = {namespace: self._shares.get(namespace, _NamespaceShare()) for namespace in totals}
        remaining_series, level_by_namespace = self.limit, {}
        # The smallest demands come first, so that a namespace that needs less than its equal share leaves the rest to
        # the others.
        order = sorted(
            totals, key=lambda namespace: (namespace != self._home, _count_series(*totals[namespace]), namespace)
        )
        for position, namespace in enumerate(order):
            share = remaining_series if namespace == self._home else remaining_series // (len(order) - position)
            pairs, items = totals[namespace]
            level = level_by_namespace[namespace] = self._shares[namespace].choose_level(pairs, items, share)
            remaining_series -= _count_series(pairs if level != "none" else 0, items if level == "items" else 0)
        return {demand.scorer: self._choose_level(demand, level_by_namespace) for demand in demands}

    def count_wanted_series(self, demands: Iterable[SeriesDemand]) -> int:
        """Return the number of series, as if there were no limit, of the scorers to which the limit applies."""
        return sum(_count_series(*total) for total in self._sum_demands(demands).values())

    def _sum_demands(self, demands: Iterable[SeriesDemand]) -> dict[str, tuple[int, int]]:
        """Return pairs and items by namespace, of the scorers to which the limit applies."""
        totals: dict[str, tuple[int, int]] = {}
        for demand in demands:
            pairs, items = totals.get(demand.namespace, (0, 0))
            if not (demand.exposition and demand.namespace == self._home):
                pairs, items = pairs + demand.wanted[0], items + demand.wanted[1]
            totals[demand.namespace] = pairs, items
        return totals

    def _choose_level(self, demand: SeriesDemand, level_by_namespace: Mapping[str, Level]) -> Level:
        level = level_by_namespace[demand.namespace]
        if not demand.exposition:
            return level
        if demand.namespace == self._home:
            return demand.exposition
        return max(level, demand.exposition, key=_LEVELS.index)


#: Levels from the largest to the smallest number of series.
_LEVELS: Final[tuple[Level, ...]] = ("items", "pair", "none")


def _count_series(pairs: int, items: int) -> int:
    return PER_PAIR * pairs + items


class _NamespaceShare:
    """Chooses the level of one namespace, and remembers the level of the last scrape."""

    def __init__(self) -> None:
        self._has_pairs = True
        self._has_items = True

    def choose_level(self, pairs: int, items: int, limit: int) -> Level:
        """Return the level whose series fit into `limit` for these numbers of pairs and items."""
        self._has_pairs = _fits_budget(_count_series(pairs, 0), limit, self._has_pairs)
        self._has_items = self._has_pairs and _fits_budget(_count_series(pairs, items), limit, self._has_items)
        return "items" if self._has_items else "pair" if self._has_pairs else "none"


def _fits_budget(series_count: int, limit: int, was_exposed: bool) -> bool:
    return series_count <= (limit if was_exposed else limit * _RETURN_SHARE)
