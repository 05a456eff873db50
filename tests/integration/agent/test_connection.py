"""What an agent does when its connection to Redis ends: what it says, what becomes of what it has begun."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dsf.celery import make_app
from tests.conftest import SettingsFactory
from tests.integration.agent.conftest import RESULTS, SERIES
from tests.integration.agent.harness import CLUSTER, Agent, summary
from tests.support.forwarder import Forwarder
from tests.support.httpserver import Gate, ScriptedServer, answer, matrix
from tests.support.mail import Sent
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
    """An agent two of whose three threads wait at the gate."""
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
    """Files that kombu writes what it cannot put back into."""
    return sorted(path.name for path in (folder / "tmp").iterdir() if not path.name.startswith(("dsf", ".")))


def test_a_killed_redis_leaves_neither_noise_nor_files(
    busy: tuple[Agent, Gate, ScriptedServer], server: RedisServer, tmp_path: Path
) -> None:
    agent, gate, source = busy
    server.kill()
    wait_for(lambda: "Cannot connect to" in agent.log(), 15, "the agent to say that Redis is away")
    server.restart()
    gate.opened.set()
    source.script(matrix(SERIES))
    wait_for(agent.ready.exists, 15, "the agent to take ticks again")
    # What had begun goes on.
    found = {agent.result().scorer for _ in range(BUSY)}
    assert found == {f"s{number}" for number in range(BUSY)}
    log = agent.log()
    assert "Cannot connect to redis://127.0.0.1:" in log or "Cannot connect to redis://localhost:" in log
    for noise in ("UNABLE TO RESTORE", "EMERGENCY DUMP", "DeprecationWarning", "Transport://", "Traceback"):
        assert noise not in log, log
    assert left_over(tmp_path) == []


def test_a_cut_connection_ends_no_cycle(busy: tuple[Agent, Gate, ScriptedServer]) -> None:
    """As when a password is withdrawn: what has begun goes on."""
    agent, gate, source = busy
    for client in agent.redis.client_list():
        if str(client["name"]).startswith("dsf-agent"):
            agent.redis.client_kill_filter(_id=client["id"])
    wait_for(lambda: "Trying to re-establish" in agent.log() or "Connection to broker lost" in agent.log(), 10, "cut")
    gate.opened.set()
    source.script(matrix(SERIES))
    found = {agent.result().scorer for _ in range(BUSY)}
    assert found == {f"s{number}" for number in range(BUSY)}
    assert agent.no_result()


def test_the_waits_between_two_tries_stay_short(server: RedisServer, tmp_path: Path) -> None:
    """Kombu's own grow by two seconds each: 2, 4, 6, ... up to 30."""
    agent = Agent(tmp_path, server.url)
    agent.configure()
    with agent:
        server.kill()
        wait_for(lambda: agent.log().count("Trying again") >= 6, 60, "six tries")
        # What it says of each wait is the same however slow the machine is; one of less than a second is "now".
        waits = re.findall(r"Trying again in ([\d.]+) (\w+)", agent.log())
        assert all(unit.startswith("second") and float(number) <= 6 for number, unit in waits), waits
        server.restart()
        wait_for(agent.ready.exists, 10, "the agent to be back")


@pytest.mark.parametrize("role", ["agent", "results"])
def test_an_event_without_a_connection_is_not_waited_for(
    settings_factory: SettingsFactory, server: RedisServer, role: str
) -> None:
    app = make_app(settings_factory(role=role, cluster="c1", redis_url=server.url))
    with app.connection_for_write() as connection:
        dispatcher = app.events.Dispatcher(connection, hostname="worker@c1", enabled=True)
        dispatcher.send("worker-online")
        server.kill()
        # As Celery's heartbeats are sent. In a thread, which would try for ever.
        options: dict[str, Any] = {"type": "worker-heartbeat", "retry": True}
        sending = threading.Thread(target=dispatcher.send, kwargs=options, daemon=True)
        sending.start()
        sending.join(60)
        assert not sending.is_alive()
        server.restart()
        with contextlib.closing(server.client().pubsub()) as listener:
            listener.psubscribe("*worker.heartbeat")
            assert listener.get_message(timeout=300) is not None
            dispatcher.send("worker-heartbeat")
            assert listener.get_message(timeout=300) is not None
    app.close()


def test_a_redis_that_has_become_a_replica_is_left(server: RedisServer, tmp_path: Path) -> None:
    """A planned switchover behind one address: the old primary lives on, and so do all connections to it."""
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
            agent.redis, agent.sent = new, Sent(new, CLUSTER)
            result = agent.result()
            assert (result.run, result.outcome) == (run, "ok")
            run = agent.tick("later", expires=120)
            assert agent.result().run == run
            assert "Traceback" not in agent.log()
