"""A schedule under test: entries, its own clock, and the books."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

import redis

from dsf import keys
from dsf.beat.dispatch import Dispatcher
from dsf.messages import run_time
from dsf.store.entries import Entry
from dsf.store.pairs import Pairs, PairState
from dsf.store.registry import ClusterRecord, Registry, ScorerRecord
from dsf.store.schedule import ScheduleStore

START = 1_795_000_000.0


def entry(cluster: str, scorer: str = "s", interval: int = 30, **values: object) -> Entry:
    return Entry(cluster=cluster, scorer=scorer, score_name="score", interval=interval, **values)  # type: ignore[arg-type]


def register(client: redis.Redis, clusters: Iterable[str], scorers: Iterable[str] = ("s",)) -> None:
    """Make scorers and clusters known, as the hub controller does."""
    registry = Registry(client)
    for cluster in clusters:
        registry.put_cluster(ClusterRecord(name=cluster))
    for scorer in scorers:
        registry.put_scorer(ScorerRecord(name=scorer, score_name="score", interval=30, validity=300))


def pushed(client: redis.Redis, cluster: str) -> list[tuple[str, str]]:
    """(scorer, run id) of the ticks that wait in a cluster's queue, oldest first."""
    messages = client.lrange(keys.spoke_queue(cluster), 0, -1)
    return [tuple(json.loads(json.loads(message)["body"])[0][:2]) for message in reversed(messages)]


def books(client: redis.Redis, cluster: str, scorer: str = "s") -> PairState:
    return Pairs(client).read_state(cluster, scorer)


@dataclass
class Bench:
    """A dispatcher with its own clock."""

    client: redis.Redis
    queue_limit: int = 1000
    batch: int = 500
    spread_rate: float = 100.0
    now: float = START
    dispatcher: Dispatcher = field(init=False)
    store: ScheduleStore = field(init=False)

    def __post_init__(self) -> None:
        self.store = ScheduleStore(self.client, spread_rate=self.spread_rate)
        self.restart()

    def restart(self) -> None:
        """Replace the dispatcher as a beat that takes over would: its memory is lost."""
        self.dispatcher = Dispatcher(
            self.client,
            batch=self.batch,
            queue_limit=self.queue_limit,
            spread_rate=self.spread_rate,
            clock=lambda: self.now,
        )

    def run(self, seconds: float) -> None:
        """Let beat work for so long, jumping from one moment at which something is due to the next."""
        end = self.now + seconds
        while True:
            next_run = self.dispatcher.run()
            if next_run is None or next_run > end:
                break
            self.now = max(self.now, next_run)
        self.now = end


def run_times(bench: Bench, cluster: str) -> list[float]:
    """When the ticks that wait in a cluster's queue were scheduled, oldest first."""
    return [run_time(run) for _, run in pushed(bench.client, cluster)]
