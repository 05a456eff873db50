"""Score now, by an assistant: a tick in a real Redis."""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis

from dsf import keys
from dsf.errors import SettingsError
from dsf.fleet.changes import read_changes
from dsf.optimizer.hubredis import HubRedis
from dsf.store.pairs import Pairs
from tests.integration.exporter.fleet import SAMPLE, good_fleet
from tests.support.assistant import Assistant
from tests.support.fixtures import SettingsFactory

from .conftest import OptimizerHarness


def tick(client: redis.Redis, cluster: str) -> list[Any]:
    """Scorer and run id of the one tick that waits."""
    (message,) = client.lrange(keys.spoke_queue(cluster), 0, -1)
    return list(json.loads(json.loads(message)["body"])[0][:2])


def test_rescore_on_one_cluster_sends_its_tick(near: Assistant, redis_client: redis.Redis) -> None:
    """Everywhere: test_stdio.py."""
    fleet = good_fleet(redis_client)
    report = near.ask("rescore", scorer=SAMPLE, cluster="worker01")
    (run,) = report["runs"]
    assert (report["scorer"], run["cluster"], run["message"]) == (SAMPLE, "worker01", "")
    assert tick(fleet.redis, "worker01") == [SAMPLE, run["run_id"]]
    assert fleet.redis.llen(keys.spoke_queue("worker02")) == 0
    assert fleet.redis.zscore(keys.OPEN_RUNS, keys.run_member("worker01", SAMPLE, run["run_id"]))
    assert Pairs(fleet.redis).read_state("worker01", SAMPLE).scheduled == 8
    (change,) = read_changes(fleet.redis).changes
    assert (change.action, change.scorer, change.clusters) == ("rescore", SAMPLE, ["worker01"])
    # The caller was not authenticated, so the name is only claimed.
    assert (change.way, change.who, change.reference) == ("mcp", "anonymous (claimed)", run["run_id"])


def test_rescore_without_redis_names_the_setting(settings_factory: SettingsFactory, bed: OptimizerHarness) -> None:
    service = bed.service(hub=HubRedis.of(settings_factory()))
    with pytest.raises(SettingsError, match="DSF_REDIS_URL is not set"):
        service.rescore(SAMPLE)
