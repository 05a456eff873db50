"""All processes of one machine, with a Redis that listens on a Unix socket alone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from dsf.settings import Settings
from dsf.store.client import connect
from tests.faults.fleet import BY_HAND, Fleet, scores
from tests.support.fixtures import SettingsFactory
from tests.support.redisserver import SocketRedis


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    stack = Fleet(tmp_path / "stack", redis_server=SocketRedis())
    # Celery's way to write it.
    stack.settings["agent"] = {"redis_url": f"redis+socket://{stack.redis_server.dir}/Redis.sock?virtual_host=0"}
    stack.scorer("sample", scores(10), interval=BY_HAND)
    with stack:
        yield stack


def test_score_is_published_and_visible_through_a_unix_socket(fleet: Fleet) -> None:
    fleet.first_score("sample")
    before = fleet.redis.pubsub_numpat()
    fleet.run("flower")
    fleet.wait_ready("flower")
    fleet.until(lambda: fleet.redis.pubsub_numpat() > before, "Flower to listen")
    process = fleet.dsf("rescore", "sample", "--cluster", "c1", "--wait")
    assert process.returncode == 0, process.stdout + process.stderr
    assert fleet.items("sample") == {"n1": 10}
    fleet.until(
        lambda: any(task["name"] == "dsf.publish" for task in fleet.page("flower", "/api/tasks").json().values()),
        "Flower to show the cycle",
    )
    # Its page of queues has a separate connection.
    queues = fleet.page("flower", "/api/queues/length").json()["active_queues"]
    assert queues == [{"name": "spoke.c1", "messages": 0}]


def test_unusable_unix_socket_is_named_in_the_error(settings_factory: SettingsFactory, tmp_path: Path) -> None:
    def error_of(settings: Settings) -> str:
        client = connect(settings, retries=0)
        with pytest.raises(redis.ConnectionError) as caught:
            client.ping()
        client.close()
        return str(caught.value)

    path = tmp_path / "Redis.sock"
    settings = settings_factory(redis_url=f"unix://{path}")
    assert error_of(settings) == f"Redis cannot be reached at {path}: No such file or directory"
    with SocketRedis() as server:
        shutil.copy(server.dir / "log", path)
        assert error_of(settings) == f"Redis cannot be reached at {path}: Connection refused"
        assert connect(settings_factory(redis_url=server.url)).ping()
