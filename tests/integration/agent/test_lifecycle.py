"""How an agent takes changes of its configuration, its Secrets and its key, and how it starts and ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from dsf.errors import MessageRejectedError
from tests.integration.agent.conftest import RESULTS, SERIES, AgentFactory
from tests.integration.agent.harness import CLUSTER, Agent, replace, summary
from tests.support.httpserver import Gate, ScriptedServer, answer, matrix
from tests.support.wait import wait_for


def test_a_tick_right_after_a_change_sees_the_change(
    agent: Agent, source: ScriptedServer, scorer: ScriptedServer
) -> None:
    with ScriptedServer(answer(RESULTS)) as other:
        for number in range(5):
            server = other if number % 2 else scorer
            agent.configure(summary("sample", source.url, f"{server.url}/v{number}"))
            agent.tick("sample")
            assert agent.result().outcome == "ok"
            assert server.paths()[-1] == f"/v{number}"


def test_configmap_manifest_and_kubernetes_mount(
    make_agent: AgentFactory, source: ScriptedServer, scorer: ScriptedServer, tmp_path: Path
) -> None:
    mount = tmp_path / "mount"

    def deliver(version: str, path: str) -> None:
        data = {"summaries": json.dumps([summary("sample", source.url, f"{scorer.url}/{path}")])}
        manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}, "data": data}
        replace(mount / version / "config.yaml", yaml.safe_dump(manifest))
        link = mount / "..new"
        link.symlink_to(version)
        link.rename(mount / "..data")

    deliver("..1", "one")
    (mount / "config.yaml").symlink_to("..data/config.yaml")
    with make_agent(agent_config=mount / "config.yaml") as agent:
        agent.tick("sample")
        assert agent.result().outcome == "ok"
        deliver("..2", "two")
        wait_for(lambda: agent.log().count("configuration loaded") == 2)
        agent.tick("sample")
        assert agent.result().outcome == "ok"
    assert scorer.paths() == ["/one", "/two"]


def test_a_configuration_that_cannot_be_used_leaves_the_last_good_one(agent: Agent) -> None:
    agent.tick("sample")
    agent.result()
    replace(agent.config, "[{not json")
    wait_for(lambda: "configuration cannot be used" in agent.log())
    agent.tick("sample")
    assert agent.result().outcome == "ok"
    assert agent.metrics("dynamic_scoring_config_valid") == ["dynamic_scoring_config_valid 0.0"]
    assert agent.log().count("configuration cannot be used") == 1
    assert len(agent.metrics("dynamic_score{")) == 1


def test_a_deleted_configuration_ends_everything(agent: Agent) -> None:
    agent.tick("sample")
    agent.result()
    assert len(agent.metrics("dynamic_score{")) == 1
    agent.config.unlink()
    assert agent.metrics("dynamic_score{") == []
    wait_for(lambda: "scorers=[]" in agent.log())
    # The agent looks again for as long as the tick lasts; more where that was over before the first look.
    for seconds in (3, 20):
        agent.tick("sample", expires=seconds)
        result = agent.result()
        if result.reason != "expired":
            break
    assert (result.outcome, result.stage, result.reason) == ("error", "fetch", "unknown_scorer")


def test_a_removed_scorer_leaves_no_gauges(agent: Agent, source: ScriptedServer, scorer: ScriptedServer) -> None:
    first = summary("sample", source.url, scorer.url)
    second = summary("second", source.url, scorer.url)
    agent.configure(first, second)
    for name in ("sample", "second"):
        agent.tick(name)
        agent.result()
    assert len(agent.metrics("dynamic_score{")) == 2
    agent.configure(second)
    assert [line.split("ds_score_name=")[1] for line in agent.metrics("dynamic_score{")] == ['"second-score"} 12.5']


def test_a_tick_that_is_faster_than_the_configuration(
    agent: Agent, source: ScriptedServer, scorer: ScriptedServer
) -> None:
    # Another one where this process was not as fast as the agent's five seconds.
    for name in ("late", "later", "latest"):
        sent = time.monotonic()
        run_id = agent.tick(name)
        time.sleep(0.3)
        agent.configure(summary(name, source.url, scorer.url))
        took = time.monotonic() - sent
        result = agent.result()
        if took < 4:
            break
    assert (result.run, result.outcome) == (run_id, "ok")


def test_secrets_are_read_when_they_are_used(agent: Agent, source: ScriptedServer, scorer: ScriptedServer) -> None:
    auth = {"scoringEndpointAuthName": "my-token", "scoringEndpointAuthKey": "token"}
    agent.configure(summary("sample", source.url, scorer.url, **auth))
    agent.tick("sample")
    result = agent.result()
    assert (result.stage, result.reason) == ("score", "secret_missing")
    assert "'token' of Secret 'my-token'" in result.message
    for token in ("first", "rotated"):
        agent.token("my-token", "token", token)
        agent.tick("sample")
        assert agent.result().outcome == "ok"
        assert scorer.requests[-1].headers["Authorization"] == f"Bearer {token}"
    agent.token("my-token", "token", None)
    agent.tick("sample")
    assert agent.result().reason == "secret_missing"
    assert len(scorer.requests) == 2
    agent.configure(summary("sample", source.url, scorer.url))
    agent.tick("sample")
    assert agent.result().outcome == "ok"
    assert "Authorization" not in scorer.requests[-1].headers


def test_the_signing_key_is_rotated_without_a_restart(agent: Agent) -> None:
    agent.tick("sample")
    assert agent.result().outcome == "ok"
    agent.rotate(2)
    agent.tick("sample")
    assert agent.result().outcome == "ok"
    agent.key_file.write_text("7:" + "ab" * 32)
    agent.tick("sample")
    with pytest.raises(MessageRejectedError):
        agent.result()


def test_probes_and_the_end(make_agent: AgentFactory, source: ScriptedServer, scorer: ScriptedServer) -> None:
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
    # The cycle that had begun was finished, and no other one was begun.
    result = agent.result()
    assert (result.run, result.outcome) == (run_id, "ok")


def test_a_queue_that_waits_is_not_lost_at_the_end(make_agent: AgentFactory, scorer: ScriptedServer) -> None:
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
            found = {agent.result().run for _ in range(4)}
    assert found == runs


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("cluster", "DSF_CLUSTER"),
        ("agent_config", "DSF_AGENT_CONFIG"),
        ("signing_key_file", "DSF_SIGNING_KEY_FILE"),
    ],
)
def test_a_missing_setting_is_named(make_agent: AgentFactory, missing: str, words: str) -> None:
    agent = make_agent()
    agent._settings.pop(missing)
    with pytest.raises(RuntimeError, match=f"ended with 2(.|\n)*{words}: "):
        agent.start()


def test_wrong_settings_are_named(make_agent: AgentFactory) -> None:
    agent = make_agent()
    agent.key_file.write_text("secret nonsense")
    with pytest.raises(RuntimeError, match="DSF_SIGNING_KEY") as caught:
        agent.start()
    assert "nonsense" not in str(caught.value)
    agent.rotate(1)
    with agent:
        taken = agent.port()
        code = subprocess.run(
            [sys.executable, "-m", "dsf.agent"],
            env={
                "DSF_CLUSTER": CLUSTER,
                "DSF_AGENT_CONFIG": str(agent.config),
                "DSF_SIGNING_KEY_FILE": str(agent.key_file),
                "DSF_AGENT_SPOOL_DIR": str(agent.folder / "other"),
                "DSF_LISTEN_HOST": "127.0.0.1",
                "DSF_LISTEN_PORT": str(taken),
                "PATH": "",
            },
            cwd=Path(__file__).parents[3],
            capture_output=True,
            text=True,
            check=False,
        )
    assert code.returncode == 2
    assert f"DSF_LISTEN_PORT: cannot listen on 127.0.0.1:{taken}" in code.stderr
