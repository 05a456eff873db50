"""Metrics of Redis from its INFO, without a server."""

from __future__ import annotations

import pytest

from dsf.fleetmetrics.server import make_server_families


@pytest.mark.parametrize(
    ("info", "aof", "rdb"),
    [
        ({}, 1, 1),
        ({"aof_last_write_status": "err"}, 0, 1),
        ({"aof_last_write_status": "ok", "aof_last_bgrewrite_status": "err"}, 0, 1),
        ({"rdb_last_bgsave_status": "err"}, 1, 0),
    ],
)
def test_errors_of_files_are_shown(info: dict[str, str], aof: int, rdb: int) -> None:
    samples = {
        (sample.name, sample.labels.get("file")): sample.value
        for family in make_server_families(info, 0)
        for sample in family.samples
    }
    assert samples["dynamic_scoring_redis_files_written", "aof"] == aof
    assert samples["dynamic_scoring_redis_files_written", "rdb"] == rdb
