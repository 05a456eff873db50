"""What the optimiser proposed and what is in force, as the page gets it: in Redis, by namespace."""

from __future__ import annotations

import redis

from dsf import keys
from dsf.cli.optimizer import board, recorder
from dsf.fleet.changes import read
from dsf.fleet.plans import PlanComparison, read_plans, remember
from dsf.settings import Settings
from tests.integration.optimizer.bed import POWER, Bed
from tests.support.redisserver import RedisServer


def test_a_proposal_is_shown_beside_what_is_in_force(
    bed: Bed, redis_server: RedisServer, redis_client: redis.Redis
) -> None:
    settings = Settings(redis_url=redis_server.url)  # type: ignore[arg-type]
    service = bed.service(board=board(settings), record=recorder(settings, "cli", "ann"))
    proposed = service.propose(bed.params())
    (shown,) = read_plans(redis_client)
    assert (shown.namespace, shown.plan_id, shown.applied) == (bed.namespace, proposed.plan_id, False)
    assert {one.change for one in shown.moves} == {"is placed"}
    assert shown.score_proposed == proposed.objective_value
    assert read(redis_client).changes == []
    service.apply(bed.params())
    (shown,) = read_plans(redis_client)
    assert shown.applied
    assert not any(one.changes for one in shown.clusters)
    other = service.propose(bed.params(POWER))
    (shown,) = read_plans(redis_client)
    assert (shown.plan_id, shown.applied) == (other.plan_id, False)
    assert any(one.change == "moves" for one in shown.moves)
    # Nobody's name was checked here.
    (change,) = read(redis_client).changes
    assert (change.action, change.who, change.namespace) == ("plan-applied", "ann (claimed)", bed.namespace)
    assert change.reference == proposed.plan_id
    service.reset(bed.namespace)
    assert read_plans(redis_client) == []
    assert [one.action for one in read(redis_client).changes] == ["plan-reset", "plan-applied"]


def test_a_redis_that_is_away_stops_no_plan(bed: Bed, redis_server: RedisServer) -> None:
    settings = Settings(redis_url="redis://127.0.0.1:1/0")  # type: ignore[arg-type]
    service = bed.service(board=board(settings), record=recorder(settings, "cli"))
    assert service.apply(bed.params()).applied


def test_what_cannot_be_read_is_left_out_and_too_many_are_not_kept(redis_client: redis.Redis) -> None:
    report = {"namespace": "b", "plan_id": "x", "applied": True, "gap": 0.0, "warnings": [], "status": "Optimal"}
    none = {"clusters": [], "moves": [], "score_now": 0, "score_proposed": 0}
    redis_client.hset(keys.PLANS, "a", "{")
    assert remember(redis_client, PlanComparison.of(report, none))
    assert [one.namespace for one in read_plans(redis_client)] == ["b"]
    redis_client.hset(keys.PLANS, mapping={f"n{number}": "{" for number in range(98)})
    assert not remember(redis_client, PlanComparison.of(report | {"namespace": "new"}, none))
    assert remember(redis_client, PlanComparison.of(report, none))
