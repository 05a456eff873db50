"""The collector of the exporter's /metrics: it reads Redis at every scrape and keeps nothing in between."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import redis
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

import dsf.log
from dsf import keys, metrics
from dsf.exporter.families import PairFamilies
from dsf.schedule.stats import schedule_families
from dsf.store.pairs import Pairs
from dsf.store.registry import Registry, ScorerRecord

log = dsf.log.get(__name__)

#: Reasons that are exposed from the start, as 0: an increase from nothing to one is invisible to rate().
REJECTED_REASONS = ("bad_signature", "replayed", "stale", "unknown_cluster", "malformed")
WRITE_RESULTS = ("written", "coalesced", "unchanged", "failed", "deleted")


class FleetCollector(Collector):
    """Everything the hub knows of the fleet, as metric families.

    When Redis cannot be read there is one metric, `dynamic_scoring_up 0`: numbers of another moment would look fresh.
    """

    def __init__(self, client: redis.Redis, clock: Callable[[], float] = time.time) -> None:
        self._redis = client
        self._clock = clock

    def describe(self) -> Iterable[Metric]:
        """Nothing, so that registering does not read Redis."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Read everything first and give it out after, so that a scrape is whole or absent."""
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
        registry = Registry(self._redis)
        scorers = registry.scorers()
        pairs = Pairs(self._redis)
        families = PairFamilies({name: record.score_name for name, record in scorers.items()}, self._clock())
        for state in pairs.states(pairs.names()):
            families.add(state)
        return [
            *families.collect(),
            *schedule_families(self._redis),
            self._rejected(),
            self._mail(),
            *self._writes(),
            _healthy(scorers),
        ]

    def _rejected(self) -> Metric:
        stored = {str(reason): float(number) for reason, number in self._redis.hgetall(keys.REJECTED).items()}
        family = metrics.REJECTED.counter()
        for reason, number in {**dict.fromkeys(REJECTED_REASONS, 0.0), **stored}.items():
            family.add_metric((reason,), number)
        return family

    def _mail(self) -> Metric:
        family = metrics.MAIL_REJECTED.counter()
        for cluster, number in sorted(self._redis.hgetall(keys.REJECTED_MAIL).items()):
            family.add_metric((str(cluster),), float(number))
        return family

    def _writes(self) -> list[Metric]:
        stored = self._redis.hgetall(keys.WRITE_STATS)
        writes = metrics.WRITES.counter()
        for result in WRITE_RESULTS:
            writes.add_metric((result,), float(stored.get(result, 0)))
        factor = metrics.VALIDITY_FACTOR.gauge()
        factor.add_metric((), float(stored.get("validity_factor", 1)))
        return [writes, factor]


def _healthy(scorers: dict[str, ScorerRecord]) -> Metric:
    family = metrics.SCORER_HEALTHY.gauge()
    for name, record in sorted(scorers.items()):
        family.add_metric((name,), float(record.health == "Active"))
    return family
