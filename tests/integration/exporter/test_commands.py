"""Commands that query the JSON API of a running web service instead of Redis."""

from __future__ import annotations

import pytest
import redis
from typer.testing import CliRunner

from dsf.cli.main import app
from tests.integration.exporter.fleet import SAMPLE, good_fleet
from tests.integration.exporter.server import ApiProcess


def test_reading_commands_with_the_api_need_no_redis(
    exporter: ApiProcess, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    good_fleet(redis_client, due_in=300).failure("worker02", message="invalid parameter query")
    monkeypatch.setenv("DSF_API_URL", exporter.url)
    monkeypatch.setenv("DSF_REDIS_URL", "redis://127.0.0.1:1/0")

    def dsf(*arguments: str) -> str:
        result = CliRunner().invoke(app, list(arguments), prog_name="dsf")
        assert result.exit_code in (0, 1), result.output
        return result.stdout

    assert SAMPLE in dsf("status")
    assert "bad_query" in dsf("status", SAMPLE)
    assert "worker02" in dsf("scores")
    assert "worker02" in dsf("schedule", "list")
    assert "scheduled 7" in dsf("history", SAMPLE, "--cluster", "worker01")
    assert CliRunner().invoke(app, ["changes"], prog_name="dsf").exit_code == 0
