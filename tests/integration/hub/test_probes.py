"""The hub controller's probes and metrics, and agents that are too old, in its status."""

from __future__ import annotations

import contextlib
import signal
import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from dsf.process.launch import EXIT_USAGE
from dsf.services.process import run
from dsf.store.agents import AgentRecord, Agents
from tests.integration.hub.world import HubHarness, hub_process
from tests.support.httpserver import ScriptedServer
from tests.support.redisserver import free_port
from tests.support.wait import wait_for


def page(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=300) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError:
        return 0, ""


def test_hub_process_answers_probes_and_recovers_from_kill(
    world: HubHarness, api: ScriptedServer, tmp_path: Path
) -> None:
    port = free_port()
    world.config()
    world.cluster("a")
    world.scorer("cpu-scorer", api)
    first = hub_process(world, tmp_path / "log", port)
    try:
        world.until(lambda: world.pairs() == ["a/cpu-scorer"], timeout=30)
    finally:
        first.kill()
    world.cluster("b")
    process = hub_process(world, tmp_path / "log", port)
    try:
        wait_for(lambda: page(port, "/readyz") == (200, "ok\n"), 30, process.tail())
        world.until(lambda: world.pairs() == ["a/cpu-scorer", "b/cpu-scorer"], timeout=30)
        assert page(port, "/healthz") == (200, "ok\n")
        status, text = page(port, "/metrics")
        assert status == 200
        assert "dynamic_scoring_hub_leading 1.0" in text
        assert "dynamic_scoring_hub_redis_up 1.0" in text
        counted = 'dynamic_scoring_hub_reconciliations_total{queue="clusters"'
        wait_for(lambda: counted in page(port, "/metrics")[1], 20, "a reconciliation to be counted")
        assert page(port, "/else")[0] == 404
        process.signal(signal.SIGTERM)
        assert process.wait() == 0
        assert "Traceback" not in process.tail()
    finally:
        process.kill()


def test_occupied_probe_port_is_reported(world: HubHarness, capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.closing(socket.create_server(("0.0.0.0", 0))) as occupied_socket:
        update = {"target": "controller", "listen_host": "0.0.0.0", "probe_port": occupied_socket.getsockname()[1]}
        assert run(world.settings.model_copy(update=update)) == EXIT_USAGE
    assert "DSF_PROBE_PORT: cannot listen on" in capsys.readouterr().err


def test_outdated_agent_is_named_in_the_status(running: HubHarness) -> None:
    agents = Agents(running.client)
    name = "dynamic-scoring-config"
    running.until(lambda: running.config_condition(name, "Distributed")[0] == "True")
    assert running.config_condition(name, "AgentsSupported") == ("", "", "")
    agents.write_all({"b": (AgentRecord(schema_version=-1, version="0.0.1"), 1)})
    agents.write_all({"gone": (AgentRecord(schema_version=-1), 1)})
    running.until(lambda: running.config_condition(name, "AgentsSupported")[0] == "False")
    _, reason, message = running.config_condition(name, "AgentsSupported")
    assert reason == "AgentVersionNotSupported"
    assert message.startswith("b: its agent (0.0.1) speaks version -1 of the messages, the hub 0 to 2")
    assert "gone" not in message
    running.until(lambda: (name, "AgentVersionNotSupported", "Warning") in running.events())
    agents.write_all({"b": (AgentRecord(version="0.1.0"), 1)})
    running.until(lambda: running.config_condition(name, "AgentsSupported")[:2] == ("True", "AgentsSupported"))
    assert running.config_condition(name, "Distributed")[0] == "True"
