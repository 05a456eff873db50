"""Redis cannot save and refuses writes (MISCONF): readers still see everything."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from dsf import keys
from tests.integration.cli.conftest import Dsf, dsf
from tests.integration.exporter.fleet import good_fleet
from tests.integration.exporter.server import ApiProcess
from tests.support.redisserver import RedisServer
from tests.support.wait import wait_for

__all__ = ["dsf"]


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    """A Redis with a healthy fleet, whose folder has been removed."""
    with RedisServer() as server:
        client = server.client()
        good_fleet(client)
        # Due for long: beat cannot take it either.
        pairs = client.zrange(keys.DUE, 0, -1)
        client.zadd(keys.DUE, {pairs[0]: time.time() - 100})
        client.config_set("save", "3600 1")
        shutil.rmtree(server.dir)
        client.bgsave()
        wait_for(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err", 10, "a save that fails")
        with pytest.raises(redis.ResponseError, match="MISCONF"):
            client.set("x", "y")
        yield server.url


@pytest.mark.parametrize(
    ("command", "expected_text"),
    [
        ("status", "sample-scorer"),
        ("status sample-scorer", "worker01"),
        ("scores", "worker01"),
        ("schedule list", "worker01"),
        ("history sample-scorer --cluster worker01", "scheduled 7 = ok 5"),
    ],
)
def test_reading_commands_work_while_redis_cannot_save(
    dsf: Dsf, redis_url: str, command: str, expected_text: str
) -> None:
    assert expected_text in dsf(*command.split()).stdout


def test_exporter_works_while_redis_cannot_save(redis_url: str, tmp_path: Path) -> None:
    with ApiProcess(redis_url, tmp_path / "log") as exporter:
        for _ in range(2):
            page = exporter.get("/metrics")
            assert page.status_code == 200
            assert "dynamic_scoring_up 1.0" in page.text
            assert 'dynamic_scoring_cycles_total{ds_cluster="worker01"' in page.text
        assert exporter.get("/readyz").status_code == 200


def test_status_names_the_cause_and_does_not_blame_beat(dsf: Dsf, redis_url: str) -> None:
    status = dsf("status")
    assert status.exit_code == 1
    assert "Redis rejects writes (MISCONF" in " ".join(status.stdout.split())
    assert "beat" not in status.stdout + status.stderr
