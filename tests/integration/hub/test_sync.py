"""When a /config was read, and reading it now: from a request on the command line to a running hub and back."""

from __future__ import annotations

import datetime
import json
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from dsf.cli.main import app
from dsf.fleet.queries import FleetQueries
from dsf.store.notices import Notices
from tests.integration.hub.world import HubHarness, remote_config
from tests.support.httpserver import ScriptedServer, answer


@pytest.fixture
def slow(world: HubHarness, api: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> HubHarness:
    """A hub that checks each scoring API once, and from then on when it is asked; commands use its Redis."""
    world.settings = world.settings.model_copy(update={"health_interval": 3600.0})
    world.config()
    world.cluster("a")
    world.scorer("cpu-scorer", api)
    world.start()
    world.until(lambda: world.pairs() == ["a/cpu-scorer"])
    monkeypatch.setenv("DSF_REDIS_URL", world.settings.redis_url.get_secret_value())
    return world


def dsf(*arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments, "-o", "json"])


def status(result: Result) -> dict[str, Any]:
    assert result.stdout, result.output
    [scorer_status] = json.loads(result.stdout)["scorers"]
    return dict(scorer_status)


def test_sync_reads_the_config_now_and_shows_the_time_of_the_read(slow: HubHarness, api: ScriptedServer) -> None:
    slow.until(lambda: Notices(slow.client).read_config_read("cpu-scorer") is not None)
    first = status(dsf("status", "cpu-scorer"))["configRead"]
    assert first is not None
    slow.until(lambda: datetime.datetime.now(datetime.UTC).isoformat() > first)  # Times are shown by the second.
    api.script(answer(remote_config("cpu", 17)), path="/config")
    result = dsf("sync", "cpu-scorer", "--note", "new query")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert (report["problem"], report["configRead"] > first) == ("", True)
    slow.until(lambda: slow.record("cpu-scorer").interval == 17)
    assert status(dsf("status", "cpu-scorer"))["configRead"] == report["configRead"]
    text = CliRunner().invoke(app, ["status", "cpu-scorer"]).stdout
    assert "cpu-scorer: config read " in text
    [change] = json.loads(dsf("changes", "cpu-scorer").stdout)["changes"]
    assert (change["action"], change["note"]) == ("sync", "new query")
    assert len([request for request in api.requests if request.path == "/config"]) == 2


def test_sync_of_an_invalid_config_reports_it_and_keeps_the_time_of_the_last_valid_read(
    slow: HubHarness, api: ScriptedServer
) -> None:
    slow.until(lambda: Notices(slow.client).read_config_read("cpu-scorer") is not None)
    [before] = FleetQueries(slow.client).scorers().scorers
    api.script(answer("not json"), path="/config")
    result = dsf("sync", "cpu-scorer")
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert "not JSON" in report["problem"]
    [after] = FleetQueries(slow.client).scorers("cpu-scorer").scorers
    assert after.config_read == before.config_read is not None


def test_sync_without_a_hub_ends_with_advice(slow: HubHarness) -> None:
    slow.stop()
    result = dsf("sync", "cpu-scorer", "--timeout", "1")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "check that the controller runs" in result.stderr
    assert dsf("sync", "nobody").exit_code == 1


def test_sync_of_an_unread_configuration_fails(slow: HubHarness, api: ScriptedServer) -> None:
    scoring = {"params": {"name": "cpu", "interval": 30}}
    slow.scorer("cpu-scorer", api, mode="None", scoring=scoring)
    slow.until(lambda: "not read" in (_read(slow).problem))
    result = dsf("sync", "cpu-scorer")
    assert (result.exit_code, json.loads(result.stdout)["configRead"]) == (1, None)
    slow.remove("scorers/cpu-scorer.yaml")
    slow.until(lambda: Notices(slow.client).read_config_read("cpu-scorer") is None)


def _read(world: HubHarness) -> Any:
    config_read = Notices(world.client).read_config_read("cpu-scorer")
    assert config_read is not None
    return config_read
