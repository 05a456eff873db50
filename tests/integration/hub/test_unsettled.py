"""The pairs that a status is made from: what Redis leaves out succeeds by the one verdict."""

from __future__ import annotations

from itertools import product

import redis

from dsf import keys
from dsf.fleet.verdict import Verdict, verdict
from dsf.hub.cycles import Cycles
from dsf.store.pairs import Failure, Pairs

NOW = 1_800_000_000.0
FAILURE = Failure(run="r", stage="fetch", reason="timeout", message="late", at=NOW).model_dump_json()
FIELDS: dict[str, tuple[str | float | None, ...]] = {
    "last_success": (None, NOW - 20),
    "failing": (None, 0, 2),
    "failure": (None, FAILURE),
    "valid_until": (NOW, NOW + 0.5),
    "items": (None, 0, 3),
    "expired": (None, 3),
    "skips": (None, 0, 4),
    "unwritten": (None, "refused"),
}


def test_a_status_is_the_same_as_from_every_pair(redis_client: redis.Redis) -> None:
    states = [dict(zip(FIELDS, values, strict=True)) for values in product(*FIELDS.values())]
    names = [(f"c{number}", "s") for number in range(len(states))]
    with redis_client.pipeline(transaction=False) as pipe:
        for name, state in zip(names, states, strict=True):
            found = {field: str(value) for field, value in state.items() if value is not None}
            pipe.hset(keys.pair_key(*name), mapping={**found, "skips_since": "1", "skip_at:paused": "2"})
        pipe.execute()
    pairs = Pairs(redis_client)
    every, some = list(pairs.verdicts(names)), pairs.unsettled(names, NOW)
    assert 0 < len(some) < len(every)
    left = {state.cluster for state in every} - {state.cluster for state in some}
    assert {verdict(state, NOW) for state in every if state.cluster in left} == {Verdict.OK}
    assert Cycles.of(some, NOW, succeeding=len(left)) == Cycles.of(every, NOW)
    assert pairs.unsettled([("unknown", "s")], NOW) != []
