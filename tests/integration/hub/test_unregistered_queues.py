"""Calls of a plain Celery, without the checks of this project, into queues of clusters that are not registered."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from tests.integration.hub.world import HubHarness
from tests.support.httpserver import ScriptedServer


@pytest.fixture
def world(world: HubHarness) -> HubHarness:
    """A hub on a folder with one configuration and no cluster."""
    world.config()
    return world


def call_with_plain_celery(redis_url: str, queue: str, folder: Path) -> None:
    arguments = ["-b", redis_url, "call", "dsf.cycle", "--args", '["cpu-scorer"]', "--queue", queue]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DSF_")}
    subprocess.run(
        [sys.executable, "-m", "celery", *arguments], cwd=folder, env=environment, check=True, capture_output=True
    )


def test_queue_of_an_unknown_cluster_expires_and_others_stay(
    world: HubHarness, redis_client: redis.Redis, redis_url: str, tmp_path: Path
) -> None:
    # Every twentieth resync is a full one.
    world.resync = 0.05
    world.cluster("a")
    world.start()
    world.until(lambda: world.cluster_record("a"))
    call_with_plain_celery(redis_url, "spoke.a", tmp_path)
    call_with_plain_celery(redis_url, "spoke.typo", tmp_path)
    redis_client.lpush("spoke.other", "no message of Celery")
    redis_client.lpush("other.list", "x")
    world.until(lambda: not redis_client.exists("spoke.typo", "spoke.other"), "the queues to be deleted", 60)
    assert redis_client.llen("spoke.a") == 1
    assert redis_client.llen("other.list") == 1


def test_new_cluster_runs_no_call_from_before_its_registration(
    world: HubHarness, api: ScriptedServer, redis_client: redis.Redis, redis_url: str, tmp_path: Path
) -> None:
    # No full resync during the test.
    world.resync = 3600
    call_with_plain_celery(redis_url, "spoke.later", tmp_path)
    assert redis_client.llen("spoke.later") == 1
    world.cluster("later")
    world.scorer("cpu-scorer", api)
    world.start()
    world.until(lambda: world.pairs() == ["later/cpu-scorer"])
    assert not redis_client.exists("spoke.later")


def test_restarted_hub_keeps_the_queue_of_a_registered_cluster(world: HubHarness, redis_client: redis.Redis) -> None:
    world.resync = 3600
    world.cluster("a")
    world.start()
    world.until(lambda: world.cluster_record("a"))
    world.stop()
    redis_client.lpush("spoke.a", "tick")
    world.cluster("b")
    world.start()
    world.until(lambda: world.cluster_record("b"))
    assert redis_client.llen("spoke.a") == 1
