"""Proposed and applied plans in Redis, by namespace, as the page reads them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import pytest
import redis

from dsf.fleet.changes import read_changes
from dsf.optimizer.hubredis import HubRedis
from dsf.optimizer.plans import PlanComparison, read_plans, store_comparison
from dsf.optimizer.redisrights import PLANS
from dsf.settings import Settings
from tests.support.redisserver import RedisServer
from tests.support.wait import wait_for

from .bed import POWER, OptimizerHarness


def test_proposal_is_stored_beside_the_applied_plan(
    bed: OptimizerHarness, redis_server: RedisServer, redis_client: redis.Redis
) -> None:
    settings = Settings(redis_url=redis_server.url)  # type: ignore[arg-type]
    service = bed.service(hub=HubRedis.of(settings), owner="ann")
    proposed = service.propose(bed.params())
    (stored_plan,) = read_plans(redis_client)
    assert (stored_plan.namespace, stored_plan.plan_id, stored_plan.applied) == (bed.namespace, proposed.plan_id, False)
    assert {move.change for move in stored_plan.moves} == {"is placed"}
    assert stored_plan.score_proposed == proposed.objective_value
    assert read_changes(redis_client).changes == []
    service.apply(bed.params())
    (stored_plan,) = read_plans(redis_client)
    assert stored_plan.applied
    assert not any(cluster.changes for cluster in stored_plan.clusters)
    other = service.propose(bed.params(POWER))
    (stored_plan,) = read_plans(redis_client)
    assert (stored_plan.plan_id, stored_plan.applied) == (other.plan_id, False)
    assert any(move.change == "moves" for move in stored_plan.moves)
    # The author's name is not verified here.
    (change,) = read_changes(redis_client).changes
    assert (change.action, change.who, change.namespace) == ("plan-applied", "ann (claimed)", bed.namespace)
    assert change.reference == proposed.plan_id
    service.reset(bed.namespace)
    assert read_plans(redis_client) == []
    assert [change.action for change in read_changes(redis_client).changes] == ["plan-reset", "plan-applied"]


def test_unreachable_redis_does_not_prevent_a_plan(bed: OptimizerHarness, redis_server: RedisServer) -> None:
    settings = Settings(redis_url="redis://127.0.0.1:1/0")  # type: ignore[arg-type]
    service = bed.service(hub=HubRedis.of(settings))
    assert service.apply(bed.params()).applied


def plan(namespace: str = "n", **fields: Any) -> PlanComparison:
    values = {"namespace": namespace, "at": 1e9, "plan_id": "x", "applied": True, "gap": 0.0, "status": "Optimal"}
    return PlanComparison.model_validate({**values, "score_now": 0, "score_proposed": 0, **fields})


def test_unreadable_plans_are_skipped_and_the_number_of_plans_is_limited(redis_client: redis.Redis) -> None:
    redis_client.hset(PLANS, "a", "{")
    assert store_comparison(redis_client, plan("b"))
    assert [stored_plan.namespace for stored_plan in read_plans(redis_client)] == ["b"]
    redis_client.hset(PLANS, mapping={f"n{number}": "{" for number in range(98)})
    assert not store_comparison(redis_client, plan("new"))
    assert store_comparison(redis_client, plan("b"))


class SlowOnce(HubRedis):
    """Delays the write of the first plan until it is released, which a real Redis does not do on demand."""

    is_asked, may_write = threading.Event(), threading.Event()

    def store_plan(self, comparison: PlanComparison) -> None:
        self.is_asked.set()
        assert self.may_write.wait(60)
        super().store_plan(comparison)


@pytest.mark.parametrize("action", ["apply", "propose"])
def test_late_plan_is_not_shown_after_its_reset(
    bed: OptimizerHarness, redis_server: RedisServer, redis_client: redis.Redis, action: str
) -> None:
    slow = SlowOnce(Settings(redis_url=redis_server.url))  # type: ignore[arg-type]
    slow.is_asked.clear()
    slow.may_write.clear()
    service = bed.service(hub=slow)
    bed.service().apply(bed.params())
    with ThreadPoolExecutor(2) as threads:
        late = threads.submit(getattr(service, action), bed.params())
        assert slow.is_asked.wait(60)
        reset = threads.submit(service.reset, bed.namespace)
        wait_for(lambda: bed.objects() == {}, 30, "the reset has deleted the objects")
        # The reset ends within this time only if it does not wait for the board's lock.
        wait([reset], timeout=1)
        slow.may_write.set()
        late.result(60)
        reset.result(60)
    assert read_plans(redis_client) == []


def test_oversized_plan_is_truncated_and_replaces_the_older_plan(redis_client: redis.Redis) -> None:
    assert store_comparison(redis_client, plan(plan_id="old"))
    block = {"workload": "w" * 200, "replicas": 1, "score": 1.0, "share": 0.1}

    def clusters(count: int, blocks: int) -> list[dict[str, Any]]:
        column = {"cluster": "c", "blocks": [block] * blocks}
        return [{"cluster": "c", "now": column, "proposed": column, "changes": True}] * count

    for count, blocks, expected_clusters in ((190, 15, 100), (1, 10_000, 0)):
        large = plan(plan_id=f"new-{count}", clusters=clusters(count, blocks))
        assert store_comparison(redis_client, large)
        (stored_plan,) = read_plans(redis_client)
        assert (stored_plan.plan_id, len(stored_plan.clusters), stored_plan.more_clusters) == (
            f"new-{count}",
            expected_clusters,
            count - expected_clusters,
        )
    # The warnings alone exceed the limit.
    assert not store_comparison(redis_client, plan(warnings=["w" * 2_000_000]))
    assert read_plans(redis_client) == []
