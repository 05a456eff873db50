"""A small fleet in Redis: two clusters and two scorers, whose pairs tests can put into any state."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping

import redis

from dsf import keys
from dsf.messages import make_run_id
from dsf.store.entries import Entry
from dsf.store.history import HistoryEntry
from dsf.store.pairs import PairFailure, PairScore
from dsf.store.registry import ClusterRecord, Registry, ScorerRecord

CLUSTERS = ("worker01", "worker02")
SAMPLE = "sample-scorer"
STATIC = "static-scorer"
#: Results of a score: labels and values.
RESULTS = [({"node": "n1", "meta": "mean"}, 12.5), ({"node": "n2", "meta": "mean"}, -3.25)]


class Fleet:
    """Writes to Redis what hub controller, beat and results worker write in production."""

    def __init__(self, client: redis.Redis) -> None:
        self.redis = client
        #: Time of creation, in unix seconds; times of written data are relative to it.
        self.now = time.time()
        self.registry = registry = Registry(client)
        for number, cluster in enumerate(CLUSTERS):
            registry.put_cluster(ClusterRecord(name=cluster, uid=f"uid-{number}"))
        registry.put_scorer(ScorerRecord(name=SAMPLE, score_name="sample_score", interval=10, validity=300))
        registry.put_scorer(
            ScorerRecord(name=STATIC, score_name="static_score", interval=30, validity=300, health="Inactive")
        )

    def make_cluster_record(self, cluster: str) -> ClusterRecord:
        """Return a record of a cluster for `registry.put_cluster`."""
        return ClusterRecord(name=cluster, uid=f"uid-{cluster}")

    def entry(self, cluster: str, scorer: str = SAMPLE, *, interval: int = 10, due_in: float = 5.0) -> None:
        """Add a pair to the schedule. The interval and the time until its next run are in seconds."""
        entry = Entry(cluster=cluster, scorer=scorer, score_name=scorer.replace("-scorer", "_score"), interval=interval)
        self.redis.hset(keys.ENTRIES, entry.pair, entry.model_dump_json())
        self.redis.zadd(keys.DUE, {entry.pair: self.now + due_in})
        notify_readers(self.redis, cluster, scorer)

    def set_pair_fields(self, cluster: str, scorer: str = SAMPLE, **fields: object) -> None:
        """Set counters in the hash of a pair, and fields of its row.

        A keyword with `__` is a counter: `n__ok=5` sets `n:ok`, because keywords cannot contain a colon. Other keywords
        are fields of the row.
        """
        counters = {name.replace("__", ":"): str(value) for name, value in fields.items() if "__" in name}
        if counters:
            self.redis.hset(keys.pair_key(cluster, scorer), mapping=counters)
        if row := {name: value for name, value in fields.items() if "__" not in name}:
            set_row(self.redis, cluster, scorer, row)

    def score(
        self,
        cluster: str,
        scorer: str = SAMPLE,
        *,
        results: list[tuple[dict[str, str], float]] | None = None,
        valid_for: float = 300.0,
        age: float = 2.0,
    ) -> str:
        """Write a score and a success of `age` seconds ago, and return the run id.

        The score is valid for `valid_for` seconds from now.
        """
        succeeded_at = self.now - age
        score = PairScore(
            run=make_run_id(succeeded_at),
            score_name=scorer.replace("-scorer", "_score"),
            at=succeeded_at,
            valid_until=self.now + valid_for,
            results=RESULTS if results is None else results,
            items=[("n1", 12), ("n2", -4)],
        )
        self.redis.hset(keys.pair_key(cluster, scorer), "score", score.model_dump_json())
        self.set_pair_fields(
            cluster, scorer, last_success=succeeded_at, valid_until=score.valid_until, items=len(score.items)
        )
        return score.run

    def failure(self, cluster: str, scorer: str = SAMPLE, *, message: str = "parse error", in_a_row: int = 1) -> None:
        """Write that the newest cycles of the pair have failed: `in_a_row` of them, the newest one a second ago."""
        failure = PairFailure(
            run=make_run_id(self.now), stage="fetch", reason="bad_query", message=message, at=self.now - 1
        )
        self.set_pair_fields(cluster, scorer, failure=failure.model_dump_json(), failing=in_a_row)

    def set_skips(self, cluster: str, reason: str, ticks: int, *, scorer: str = SAMPLE, ago: float = 90) -> None:
        """Write that the newest `ticks` of the pair were skipped, the first of them `ago` seconds ago.

        With 0 ticks, the newest tick was dispatched.
        """
        first_skip_at = int(self.now - ago)
        self.redis.hset(keys.SKIPS, keys.pair(cluster, scorer), f"{ticks} {first_skip_at} {int(self.now)} {reason}")
        if not ticks:
            self.redis.hdel(keys.SKIPS, keys.pair(cluster, scorer))
        notify_readers(self.redis, cluster, scorer)

    def cycle(self, cluster: str, scorer: str = SAMPLE, **values: object) -> None:
        """Add a cycle to the history of the pair; `values` replace fields of its HistoryEntry."""
        entry = HistoryEntry.model_validate({"run": make_run_id(self.now), "at": self.now, "outcome": "ok", **values})
        self.redis.lpush(keys.history_key(cluster, scorer), entry.dump())

    def set_counters(self, key: str, values: Mapping[str, int]) -> None:
        """Set counters in a hash, such as the number of rejected results."""
        self.redis.hset(key, mapping={name: str(number) for name, number in values.items()})


def good_fleet(client: redis.Redis, *, due_in: float = 5.0) -> Fleet:
    """Return a fleet in which sample-scorer is scheduled, and has succeeded, on both clusters."""
    fleet = Fleet(client)
    for cluster in CLUSTERS:
        fleet.entry(cluster, due_in=due_in)
        fleet.score(cluster)
        fleet.set_pair_fields(
            cluster, n__scheduled=7, n__ok=5, n__error=1, n__error__fetch__timeout=1, n__skipped__overlap=1
        )
        fleet.set_pair_fields(cluster, t__fetch__sum=0.5, t__fetch__count=6, n__refused__nan=2, n__clamped=3)
        fleet.cycle(cluster, timings={"fetch": 0.01, "score": 0.02}, counts={"series": 2, "bytes": 512})
    return fleet


def set_row(client: redis.Redis, cluster: str, scorer: str, fields: Mapping[str, object]) -> None:
    """Update the row of a pair as the scripts of the results worker do."""
    pair = keys.pair(cluster, scorer)
    stored_row: str | None = client.hget(keys.ROWS, pair)  # type: ignore[assignment]
    row = {name: str(value) for name, value in {**json.loads(stored_row or "{}"), **fields}.items()}
    client.hset(keys.ROWS, pair, json.dumps(row))
    notify_readers(client, cluster, scorer)


def notify_readers(client: redis.Redis, cluster: str, scorer: str) -> None:
    """Give a pair the next change number, so that readers of changes fetch it again."""
    number = client.incr(keys.SEQUENCE)
    if number == 1:
        # The first number is the time in microseconds, as in dsf/store/lua/rows.lua.
        number = time.time_ns() // 1000
        client.set(keys.SEQUENCE, number)
    client.zadd(keys.CHANGED, {keys.pair(cluster, scorer): number})
