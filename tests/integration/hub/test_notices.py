"""Notices that the hub controller publishes in Redis: conditions of scorers, labels of clusters, reasons of absent
pairs.
"""

from __future__ import annotations

import redis

from dsf import keys
from dsf.fleet.queries import FleetQueries
from dsf.store.notices import ClusterNotice, Notices
from tests.integration.hub.world import HubHarness, scoring_api
from tests.support.httpserver import answer


def _conditions(client: redis.Redis, scorer: str) -> dict[str, str]:
    scorer_notices = Notices(client).read_scorer(scorer)
    return {condition.type: condition.reason for condition in scorer_notices.conditions} if scorer_notices else {}


def test_scorer_conditions_and_unready_scorers_are_published(running: HubHarness, redis_client: redis.Redis) -> None:
    running.until(lambda: _conditions(redis_client, "cpu-scorer").get("Distributed") == "Distributed")
    conditions = {condition.type: condition for condition in FleetQueries(redis_client).scorer("cpu-scorer").conditions}
    assert (conditions["Healthy"].status, conditions["Healthy"].reason) == ("True", "HealthCheckPassed")
    with scoring_api() as incomplete:
        incomplete.script(answer({"scoring": {"params": {"name": "x"}}}), path="/config")
        running.scorer("broken", incomplete)
        running.until(lambda: "MissingInterval" in _conditions(redis_client, "broken").values())
    [unready] = FleetQueries(redis_client).summary().unready
    assert unready.name == "broken"
    assert next(condition.type for condition in unready.conditions if condition.status == "False") == "ConfigSynced"
    running.remove("scorers/broken.yaml")
    running.until(lambda: _conditions(redis_client, "broken") == {})


def test_cluster_labels_and_masks_are_published(running: HubHarness, redis_client: redis.Redis) -> None:
    running.until(lambda: {"a", "b"} <= Notices(redis_client).read_clusters().keys())
    running.cluster("a", labels={"env": "prod", "feature.open-cluster-management.io/addon-x": "available"})
    running.until(lambda: FleetQueries(redis_client).cluster("a").labels == {"env": "prod"})
    running.config(("a", "cpu"))
    running.until(
        lambda: "masked on this cluster" in FleetQueries(redis_client).cluster("a").absent.get("cpu-scorer", "")
    )
    # The next resync publishes the lost notices again.
    redis_client.delete(keys.CLUSTER_NOTICES)
    running.until(lambda: {"a", "b"} <= Notices(redis_client).read_clusters().keys())
    # An older copy in Redis is replaced too.
    older = ClusterNotice(name="a", labels={"env": "old"}).model_dump_json()
    redis_client.hset(keys.CLUSTER_NOTICES, "a", older)
    running.until(lambda: FleetQueries(redis_client).cluster("a").labels == {"env": "prod"})
