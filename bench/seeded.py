"""A fleet in Redis with the data that a hub writes: registry, schedule, pairs with rows, scores and past cycles."""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from dsf import keys
from dsf.messages import make_run_id
from dsf.settings import make_child_environment
from dsf.store.client import split_into_batches
from dsf.store.entries import Entry
from dsf.store.history import HistoryEntry
from dsf.store.notices import CLUSTER_SET, ClusterNotice
from dsf.store.pairs import PairFailure, PairScore
from dsf.store.registry import ClusterRecord, ScorerRecord
from dsf.up.embedded_redis import EmbeddedRedis
from dsf.up.ports import Ports
from dsf.up.supervisor import Supervisor

INTERVAL = 30
#: One in this many pairs fails, is empty, or never ran.
ODD = 20


@contextmanager
def start_redis() -> Iterator[tuple[redis.Redis, Ports, dict[str, str], Path]]:
    """Yield a client of an empty Redis, free ports, the environment of processes that use it, and a folder for logs."""
    with tempfile.TemporaryDirectory() as folder:
        supervisor = Supervisor(Path(folder), lambda _: None)
        ports = Ports(lambda _: None)
        server = EmbeddedRedis(Path(folder) / "redis", ports.any())
        try:
            supervisor.start(server.program())
            supervisor.wait_ready(30)
            environment = make_child_environment(redis_url=server.url) | {"XDG_STATE_HOME": folder}
            # With compiled bytecode, as in installations by pip and in the images.
            environment |= {"PYTHONPYCACHEPREFIX": f"{folder}/bytecode", "PYTHONDONTWRITEBYTECODE": ""}
            client: redis.Redis = redis.Redis.from_url(server.url, decode_responses=True)
            yield client, ports, environment, Path(folder)
        finally:
            supervisor.stop_all()


def seed(client: redis.Redis, clusters: int, scorers: int, items: int) -> None:
    """Write `clusters` x `scorers` pairs with `items` items each. Most are ok, some fail for one of three reasons."""
    now = time.time()
    names = [f"cluster-{number:04}" for number in range(clusters)]
    kinds = [f"scorer-{number:02}" for number in range(scorers)]
    client.hset(keys.CLUSTERS, mapping={name: ClusterRecord(name=name).model_dump_json() for name in names})
    # A ClusterSet has a hundred clusters, and every third set is for tests.
    notices = {
        name: ClusterNotice(
            name=name, labels={CLUSTER_SET: f"set-{number // 100:02}", "env": "prod" if number % 3 else "test"}
        )
        for number, name in enumerate(names)
    }
    client.hset(keys.CLUSTER_NOTICES, mapping={name: notice.model_dump_json() for name, notice in notices.items()})
    client.hset(
        keys.SCORERS,
        mapping={
            name: ScorerRecord(
                name=name, score_name=f"{name}-score", dimension_formats=("${node}",), interval=INTERVAL, validity=900
            ).model_dump_json()
            for name in kinds
        },
    )
    pairs = ((cluster, scorer) for cluster in names for scorer in kinds)
    for batch in split_into_batches(pairs, 500):
        with client.pipeline(transaction=False) as pipe:
            for number, (cluster, scorer) in enumerate(batch):
                _pair(pipe, cluster, scorer, number, items, now)
            pipe.execute()


def _pair(pipe: redis.client.Pipeline, cluster: str, scorer: str, number: int, items: int, now: float) -> None:
    dice = random.Random(f"{cluster}/{scorer}")
    entry = Entry(cluster=cluster, scorer=scorer, score_name=f"{scorer}-score", interval=INTERVAL)
    pipe.hset(keys.ENTRIES, entry.pair, entry.dump())
    pipe.zadd(keys.DUE, {entry.pair: now + 3600 + dice.uniform(0, INTERVAL)})
    at = now - dice.uniform(0, INTERVAL)
    run = make_run_id(at)
    fields: dict[str, str | int | float] = {"n:scheduled": 120, "n:ok": 110, "n:error": 10, "n:error:fetch:timeout": 10}
    fields |= {f"t:{stage}:sum": 1.5 for stage in ("fetch", "score", "publish")}
    fields |= {f"t:{stage}:count": 120 for stage in ("fetch", "score", "publish")}
    row: dict[str, str] = {}
    kind = number % ODD
    if kind != 1:
        results = [({"node": f"node-{n:03}", "meta": "mean"}, dice.uniform(-120, 120)) for n in range(items)]
        values = [] if kind == 2 else results
        scored = [(labels["node"], max(-100, min(100, int(value)))) for labels, value in values]
        score = PairScore(
            run=run, score_name=f"{scorer}-score", at=at, valid_until=at + 900, results=values, items=scored
        )
        row |= {"last_success": str(at), "valid_until": str(at + 900), "items": str(len(scored)), "failing": "0"}
        fields |= {"score": score.model_dump_json(), "last_run": run, "state_run": run, "score_run": run}
    if kind == 0:
        reason = dice.choice(["bad_query", "timeout", "http_500"])
        failure = PairFailure(run=run, stage="fetch", reason=reason, message=f"{reason}: " + "why " * 20, at=at)
        row |= {"failing": "3", "failure": failure.model_dump_json()}
    pipe.hset(keys.pair_key(cluster, scorer), mapping=fields)
    pipe.hset(keys.ROWS, entry.pair, json.dumps(row))
    pipe.rpush(keys.history_key(cluster, scorer), *_cycles(at))


def _cycles(at: float) -> Iterator[str]:
    for number in range(50):
        entry = HistoryEntry(
            run=make_run_id(at - number * INTERVAL),
            at=at - number * INTERVAL,
            outcome="ok",
            timings={"fetch": 0.012, "score": 0.034, "publish": 0.001},
            counts={"series": 10, "items": 10},
            value=float(number),
        )
        yield entry.dump()
