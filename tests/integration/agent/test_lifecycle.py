"""How an agent takes changes of its configuration, its Secrets and its key, and how it starts and ends."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dsf.errors import MessageRejectedError
from tests.integration.agent.conftest import RESULTS, SERIES, AgentFactory
from tests.integration.agent.harness import CLUSTER, Agent, summary
from tests.support.httpserver import Gate, ScriptedServer, answer, matrix
from tests.support.wait import wait_for


def test_deleted_configuration_removes_all_scorers_and_scores(agent: Agent) -> None:
    agent.tick("sample")
    agent.result()
    assert len(agent.metrics("dynamic_score{")) == 1
    agent.config.unlink()
    # The agent notices it without a tick or a scrape.
    wait_for(lambda: "scorers=[]" in agent.log())
    assert agent.metrics("dynamic_score{") == []
    # The agent retries as long as the tick lasts; longer if that was over before the first attempt.
    for seconds in (3, 20):
        agent.tick("sample", expires=seconds)
        result = agent.result()
        if result.reason != "expired":
            break
    assert (result.outcome, result.stage, result.reason) == ("error", "fetch", "unknown_scorer")


def test_tick_waits_for_the_configuration_of_its_scorer(
    agent: Agent, source: ScriptedServer, scorer: ScriptedServer
) -> None:
    # Try the next tick if this process was slower than the agent's five seconds.
    for name in ("late", "later", "latest"):
        sent_at = time.monotonic()
        run_id = agent.tick(name)
        time.sleep(0.3)
        agent.configure(summary(name, source.url, scorer.url))
        duration = time.monotonic() - sent_at
        result = agent.result()
        if duration < 4:
            break
    assert (result.run, result.outcome) == (run_id, "ok")


def test_signing_key_is_rotated_without_a_restart(agent: Agent) -> None:
    agent.tick("sample")
    assert agent.result().outcome == "ok"
    agent.rotate(2)
    agent.tick("sample")
    assert agent.result().outcome == "ok"
    agent.key_file.write_text("7:" + "ab" * 32)
    agent.tick("sample")
    with pytest.raises(MessageRejectedError):
        agent.result()


def test_probe_files_disappear_when_the_agent_stops(
    make_agent: AgentFactory, source: ScriptedServer, scorer: ScriptedServer
) -> None:
    agent = make_agent()
    agent.configure(summary("sample", source.url, scorer.url))
    agent.start()
    assert agent.alive.exists()
    gate = Gate(answer(RESULTS))
    scorer.script(gate)
    run_id = agent.tick("sample")
    assert gate.entered.wait(60)
    assert agent.process is not None
    process, agent.process = agent.process, None
    process.signal(signal.SIGTERM)
    wait_for(lambda: not agent.ready.exists(), 10, "the readiness file to go")
    gate.opened.set()
    assert process.wait(60) == 0
    assert not agent.alive.exists()
    # The running cycle was finished, and no other one was started.
    result = agent.result()
    assert (result.run, result.outcome) == (run_id, "ok")


def test_queued_ticks_survive_a_restart_of_the_agent(make_agent: AgentFactory, scorer: ScriptedServer) -> None:
    gate = Gate(matrix(SERIES))
    with ScriptedServer(gate) as source:
        agent = make_agent(agent_concurrency=1)
        agent.configure(*(summary(f"s{number}", source.url, scorer.url) for number in range(4)))
        agent.start()
        runs = {agent.tick(f"s{number}") for number in range(4)}
        assert gate.entered.wait(60)
        assert agent.process is not None
        agent.process.signal(signal.SIGTERM)
        wait_for(lambda: not agent.ready.exists(), 10, "the readiness file to go")
        gate.opened.set()
        assert agent.process.wait(60) == 0
        agent.process = None
        with agent:
            run_ids = {agent.result().run for _ in range(4)}
    assert run_ids == runs


def test_port_in_use_is_named_in_the_error(agent: Agent) -> None:
    occupied_port = agent.port()
    process = subprocess.run(
        [sys.executable, "-m", "dsf.agent"],
        env={
            "DSF_CLUSTER": CLUSTER,
            "DSF_AGENT_CONFIG": str(agent.config),
            "DSF_SIGNING_KEY_FILE": str(agent.key_file),
            "DSF_AGENT_SPOOL_DIR": str(agent.folder / "other"),
            "DSF_LISTEN_HOST": "127.0.0.1",
            "DSF_LISTEN_PORT": str(occupied_port),
            "PATH": "",
        },
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 2
    assert f"DSF_LISTEN_PORT: cannot listen on 127.0.0.1:{occupied_port}" in process.stderr
