"""An agent whose connection to Redis ends: its messages, and the fate of running cycles."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.agent.conftest import RESULTS, SERIES
from tests.integration.agent.harness import CLUSTER, Agent, summary
from tests.support.forwarder import Forwarder
from tests.support.httpserver import Gate, ScriptedServer, answer, matrix
from tests.support.mail import MailboxReader
from tests.support.redisserver import RedisServer
from tests.support.wait import wait_for

#: Cycles that have begun; one more thread is free, so that the agent listens to Redis.
BUSY = 2


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A Redis that the test may kill."""
    with RedisServer(aof=True) as running:
        yield running


@pytest.fixture
def busy(
    server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Agent, Gate, ScriptedServer]]:
    """An agent with two of its three threads waiting at the gate."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    gate = Gate(matrix(SERIES))
    with ScriptedServer(gate) as source, ScriptedServer(answer(RESULTS)) as scorer:
        agent = Agent(tmp_path, server.url, agent_concurrency=BUSY + 1)
        names = [f"s{number}" for number in range(BUSY)]
        agent.configure(*(summary(name, source.url, scorer.url) for name in [*names, "later"]))
        with agent:
            try:
                for name in names:
                    agent.tick(name)
                wait_for(lambda: len(source.requests) == BUSY, 20, "the threads to be busy")
                yield agent, gate, source
            finally:
                gate.opened.set()


def left_over(folder: Path) -> list[str]:
    """Return the files to which kombu writes messages that it cannot put back."""
    return sorted(path.name for path in (folder / "tmp").iterdir() if not path.name.startswith(("dsf", ".")))


def test_killed_redis_leaves_neither_log_noise_nor_files(
    busy: tuple[Agent, Gate, ScriptedServer], server: RedisServer, tmp_path: Path
) -> None:
    agent, gate, source = busy
    server.kill()
    stopped_at = time.time()
    wait_for(lambda: "Cannot connect to" in agent.log(), 15, "the agent to say that Redis is away")
    wait_for(lambda: not agent.ready.exists(), 10, "the readiness file to go")
    wait_for(lambda: agent.alive.stat().st_mtime > stopped_at + 5, 10, "the liveness file to be touched all the while")
    server.restart()
    gate.opened.set()
    source.script(matrix(SERIES))
    wait_for(agent.ready.exists, 15, "the agent to take ticks again")
    # Running cycles go on.
    scorers = {agent.result().scorer for _ in range(BUSY)}
    assert scorers == {f"s{number}" for number in range(BUSY)}
    run = agent.tick("later")
    assert agent.result().run == run
    log = agent.log()
    assert "Cannot connect to redis://127.0.0.1:" in log or "Cannot connect to redis://localhost:" in log
    for noise in ("UNABLE TO RESTORE", "EMERGENCY DUMP", "DeprecationWarning", "Transport://", "Traceback"):
        assert noise not in log, log
    assert left_over(tmp_path) == []


def test_cut_connection_does_not_end_running_cycles(busy: tuple[Agent, Gate, ScriptedServer]) -> None:
    """As after the removal of a password: running cycles continue."""
    agent, gate, source = busy
    for client in agent.redis.client_list():
        if str(client["name"]).startswith("dsf-agent"):
            agent.redis.client_kill_filter(_id=client["id"])
    wait_for(lambda: "Trying to re-establish" in agent.log() or "Connection to broker lost" in agent.log(), 10, "cut")
    gate.opened.set()
    source.script(matrix(SERIES))
    scorers = {agent.result().scorer for _ in range(BUSY)}
    assert scorers == {f"s{number}" for number in range(BUSY)}
    assert agent.no_result()


def test_agent_at_rest_has_three_connections(server: RedisServer, tmp_path: Path) -> None:
    """The connections are for ticks, for remote commands, and for results, events and the clock."""
    agent = Agent(tmp_path, server.url)
    agent.configure()
    agent.start()
    try:
        # Events are sent once a second, the first when the worker is ready.
        wait_for(lambda: "publish" in [client["cmd"] for client in agent.redis.client_list()], 20, "the first events")
        names = [client["name"] for client in agent.redis.client_list() if client["name"].startswith("dsf")]
        assert sorted(names) == ["dsf-agent-worker01"] * 2 + ["dsf-control"]
    finally:
        agent.stop()


def test_agent_never_has_more_than_four_connections(busy: tuple[Agent, Gate, ScriptedServer]) -> None:
    """Redis must allow this number of connections for each cluster (`redis.maxClients`)."""
    agent, gate, source = busy
    agent.tick("later")
    wait_for(lambda: len(source.requests) == BUSY + 1, 20, "all threads to be busy")
    # All cycles publish their results at once, and have to wait.
    agent.redis.client_pause(60_000, all=False)
    gate.opened.set()
    wait_for(
        lambda: [connection["cmd"] for connection in agent.redis.client_list()].count("set") == 2, 20, "two to write"
    )
    connections = [
        str(connection["name"]) for connection in agent.redis.client_list() if str(connection["name"]).startswith("dsf")
    ]
    assert sorted(connections) == ["dsf-agent-worker01"] * 3 + ["dsf-control"]
    agent.redis.client_unpause()
    assert {agent.result().scorer for _ in range(BUSY + 1)} == {"s0", "s1", "later"}


def test_agent_reconnects_if_its_redis_becomes_a_replica(server: RedisServer, tmp_path: Path) -> None:
    """A planned switchover behind one address: the old primary continues, and so do all connections to it."""
    gate = Gate(matrix(SERIES))
    with (
        RedisServer() as other,
        Forwarder(server.port) as address,
        ScriptedServer(gate) as source,
        ScriptedServer(answer(RESULTS)) as scorer,
    ):
        agent = Agent(tmp_path, server.url)
        agent._settings["redis_url"] = address.url
        agent.configure(*(summary(name, source.url, scorer.url) for name in ("begun", "later")))
        with agent:
            run = agent.tick("begun", expires=120)
            assert gate.entered.wait(60)
            old, new = server.client(), other.client()
            old.replicaof("127.0.0.1", other.port)
            wait_for(lambda: agent.log().count("Connection to broker lost") > 1, 20, "the agent to see it")
            address.target = other.port
            gate.opened.set()
            agent.redis, agent.sent = new, MailboxReader(new, CLUSTER)
            result = agent.result()
            assert (result.run, result.outcome) == (run, "ok")
            run = agent.tick("later", expires=120)
            assert agent.result().run == run
            assert "Traceback" not in agent.log()
