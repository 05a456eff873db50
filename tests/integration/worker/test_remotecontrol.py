"""Celery's own commands from the hub: queries and changes that users may send to agents, and that agents may not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import redis
from celery import Celery

from dsf import keys
from dsf.redisacl.rules import cluster_rules, hub_rules
from dsf.settings import Settings
from dsf.store.registry import ClusterRecord, Registry
from dsf.worker.remotecontrol import FlowerControl
from tests.integration.agent.conftest import RESULTS, SERIES
from tests.integration.agent.harness import CLUSTER, Agent, summary
from tests.support import forked
from tests.support.httpserver import Gate, ScriptedServer, answer, matrix
from tests.support.redisserver import RedisServer
from tests.support.wait import wait_for

WORKER = f"spoke@{CLUSTER}"
#: Celery itself waits for a second. With a destination the first reply ends it.
PATIENT = ("--timeout", "60", "--destination", WORKER)


class RemoteControlSetup:
    """An agent and a user, each with a separate Redis user."""

    def __init__(self, server: RedisServer, agent: Agent, source: ScriptedServer) -> None:
        self.server, self.agent, self.source = server, agent, source

    def url(self, user: str) -> str:
        return f"redis://{user}:secret@127.0.0.1:{self.server.port}/0"

    def celery(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DSF_")}
        environment |= {"DSF_ROLE": "cli", "DSF_REDIS_URL": self.url("dsf-operator")}
        return forked.celery(arguments, environment)

    def inspect(self, *arguments: str) -> Any:
        process = self.celery("inspect", *arguments, "--json", *PATIENT)
        assert process.returncode == 0, process.stdout + process.stderr
        return json.loads(process.stdout)[WORKER]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteControlSetup]:
    with (
        ScriptedServer(matrix(SERIES)) as source,
        ScriptedServer(answer(RESULTS)) as scorer,
        RedisServer(aof=False) as server,
    ):
        with server.client() as admin:
            for user, rules in (("spoke", cluster_rules(CLUSTER)), ("dsf-operator", hub_rules("operator"))):
                admin.execute_command("ACL", "SETUSER", user, "reset", "on", ">secret", *rules)
            Registry(admin).put_cluster(ClusterRecord(name=CLUSTER))
        agent = Agent(tmp_path_factory.mktemp("agent"), server.url)
        agent._settings["redis_url"] = f"redis://spoke:secret@127.0.0.1:{server.port}/0"
        # A machine with other work takes its time for each command.
        agent.configure(summary("sample", source.url, scorer.url, timeoutSeconds=300, scoringInterval=600))
        with agent:
            wait_for(lambda: agent.redis.pubsub_numsub(keys.CONTROL.commands)[0][1], 30, "the agent to listen")
            yield RemoteControlSetup(server, agent, source)


@pytest.fixture
def bed(world: RemoteControlSetup) -> Iterator[RemoteControlSetup]:
    """The same agent for all tests. Redis denies no command, neither to the agent nor to the person."""
    yield world
    assert world.agent.redis.acl_log() == []


def test_operators_inspect_and_control_an_agent(bed: RemoteControlSetup) -> None:
    source = bed.source
    gate = Gate(matrix(SERIES))
    source.script(gate)
    run = bed.agent.tick("sample", expires=600)
    assert gate.entered.wait(60)
    (active,) = bed.inspect("active")
    assert active["name"] == "dsf.cycle"
    assert run in str(active["args"])
    assert {f"dsf.{name}" for name in ("cycle", "fetch", "score", "publish")} <= set(bed.inspect("registered"))
    assert bed.inspect("stats")["pool"]["max-concurrency"] == 8
    assert bed.inspect("reserved") == []
    process = bed.celery("status", *PATIENT)
    assert (process.returncode, "1 node online" in process.stdout) == (0, True), process.stdout + process.stderr
    gate.opened.set()
    assert bed.agent.result().outcome == "ok"
    source.script(matrix(SERIES))
    # With a limit of one an hour, the first tick runs, and the second one waits.
    process = bed.celery("control", "rate_limit", "dsf.cycle", "1/h", *PATIENT)
    assert "new rate limit set successfully" in process.stdout, process.stdout + process.stderr
    before = len(source.requests)
    runs = [bed.agent.tick("sample", expires=600) for _ in range(2)]
    wait_for(lambda: not bed.agent.redis.exists(keys.spoke_queue(CLUSTER)), 30, "both to be taken")
    assert bed.agent.result().outcome == "ok"
    assert bed.agent.no_result()
    assert len(source.requests) == before + 1
    # A new limit applies at once: the waiting tick does not stay for the hour of the old one, nor does it delay others.
    bed.celery("control", "rate_limit", "dsf.cycle", "0", *PATIENT)
    waited = bed.agent.result()
    assert (waited.run, waited.outcome) == (runs[1], "ok")
    for _ in range(10):
        bed.agent.tick("sample")
        assert bed.agent.result().outcome == "ok"


def test_forbidden_remote_command_is_refused(bed: RemoteControlSetup) -> None:
    process = bed.celery("control", "shutdown")
    assert process.returncode != 0 or "is not possible here" in process.stdout + process.stderr or not process.stdout
    bed.agent.tick("sample")
    assert bed.agent.result().outcome == "ok"
    assert bed.agent.process is not None
    assert bed.agent.process.is_running


def test_agent_credential_controls_no_worker(bed: RemoteControlSetup) -> None:
    with redis.Redis.from_url(bed.url("spoke"), decode_responses=True) as thief:
        permission_error = redis.exceptions.NoPermissionError
        with pytest.raises(permission_error):
            thief.publish(keys.CONTROL.commands, "{}")
        for channel in (keys.CONTROL.questions, keys.CONTROL.reply("spoke@other"), keys.CONTROL.reply("results@hub")):
            with pytest.raises(permission_error):
                thief.publish(channel, "{}")
        for pattern in (keys.CONTROL.reply("*"), keys.CONTROL.reply(WORKER)):
            for command in ("SUBSCRIBE", "PSUBSCRIBE"):
                with pytest.raises(permission_error):
                    thief.execute_command(command, pattern)
    bed.agent.redis.acl_log_reset()


def test_flower_asks_single_workers_and_changes_nothing(bed: RemoteControlSetup) -> None:
    with bed.server.client() as admin:
        admin.execute_command("ACL", "SETUSER", "dsf-flower", "reset", "on", ">secret", *hub_rules("flower"))
    control = Celery("flower", control=FlowerControl, set_as_current=False).control
    settings = Settings(role="flower", redis_url=bed.url("dsf-flower"))
    with mock.patch("dsf.worker.remotecontrol.settings", return_value=settings):
        assert "dsf.cycle" in str(control.inspect(destination=[WORKER], timeout=60).registered())
        # Flower also sends this query, which gets no response.
        assert "conf is not possible here" in str(control.inspect(destination=[WORKER], timeout=60).conf())
        # Listeners for events request them.
        assert control.enable_events() is None
        assert control.broadcast("heartbeat") is None
        # At its start it would ask all of a large fleet.
        assert control.inspect(timeout=60).registered() is None
        with pytest.raises(redis.exceptions.NoPermissionError):
            control.rate_limit("dsf.cycle", "1/h", destination=[WORKER])
    with redis.Redis.from_url(bed.url("dsf-flower"), decode_responses=True) as thief, thief.pubsub() as replies:
        replies.psubscribe(keys.CONTROL.reply("*"))
        replies.get_message(timeout=300)
        command = {"method": "rate_limit", "arguments": {"task_name": "dsf.cycle", "rate_limit": "1/h"}, "ticket": "t"}
        thief.publish(keys.CONTROL.questions, json.dumps({**command, "reply_to": {"exchange": "", "routing_key": "t"}}))
        reply = wait_for(lambda: replies.get_message(ignore_subscribe_messages=True, timeout=1), 30, "the refusal")
        assert "rate_limit is not possible here" in reply["data"]
    bed.agent.redis.acl_log_reset()


def test_remote_control_can_be_disabled(tmp_path: Path, redis_url: str) -> None:
    agent = Agent(tmp_path, redis_url, remote_control=False)
    agent.configure(summary("sample", "http://127.0.0.1:1", "http://127.0.0.1:1"))
    with agent:
        assert agent.redis.pubsub_numsub(keys.CONTROL.commands)[0][1] == 0


def test_manual_call_without_a_queue_names_the_queue(bed: RemoteControlSetup) -> None:
    process = bed.celery("call", "dsf.cycle", "--args", '["sample"]')
    assert process.returncode != 0
    assert "queue='spoke.<cluster>'" in process.stderr
    assert bed.agent.no_result()


def test_manual_call_runs_a_cycle(bed: RemoteControlSetup) -> None:
    process = bed.celery("call", "dsf.cycle", "--args", '["sample"]', "--queue", f"spoke.{CLUSTER}")
    assert process.returncode == 0, process.stderr
    assert bed.agent.result().results == [({"node": "n1", "pod": "a"}, 12.5)]


@pytest.mark.parametrize(
    ("role", "queue", "expected_error"),
    [
        ("agent", f"spoke.{CLUSTER}", "an agent is started with `dsf agent`"),
        ("cli", f"spoke.{CLUSTER}", "DSF_ROLE=cli is no worker"),
        # The role without any setting.
        ("results", f"spoke.{CLUSTER}", f"this worker takes hub.results only, not spoke.{CLUSTER}"),
    ],
)
def test_plain_celery_worker_command_is_refused(redis_url: str, role: str, queue: str, expected_error: str) -> None:
    environment = {"DSF_ROLE": role, "DSF_CLUSTER": CLUSTER, "DSF_REDIS_URL": redis_url, "PATH": os.environ["PATH"]}
    process = forked.celery(["worker", "-Q", queue, "-c", "1"], environment)
    assert process.returncode != 0
    assert expected_error in process.stderr
    assert "Traceback" not in process.stderr
    assert "task_create_missing_queues" not in process.stderr


@pytest.mark.parametrize(
    ("command", "possible", "impossible"),
    [("control", ("rate_limit", "revoke"), "shutdown"), ("inspect", ("active", "ping"), "conf")],
)
def test_help_of_remote_control_names_its_commands(
    redis_url: str, command: str, possible: tuple[str, ...], impossible: str
) -> None:
    environment = {"DSF_REDIS_URL": redis_url, "PATH": os.environ["PATH"]}
    for option in ("--help", "--list"):
        process = forked.celery([command, option], environment)
        assert process.returncode == 0, process.stderr
        assert all(f"  {name}" in process.stdout for name in possible), process.stdout
        assert impossible not in process.stdout
    assert "RabbitMQ" not in process.stdout
    process = forked.celery([command, impossible], environment)
    assert f"Available {command} commands" in process.stderr
    assert all(name in process.stderr for name in possible)


def test_results_worker_started_by_celery_responds_under_its_own_name(tmp_path: Path) -> None:
    """Under the Redis user of results workers, which may answer as `results@...` only."""
    with RedisServer(aof=False) as server, server.client() as admin:
        for user in ("results", "operator"):
            rules = hub_rules(user)
            admin.execute_command("ACL", "SETUSER", f"dsf-{user}", "reset", "on", ">secret", *rules)
        url = f"redis://dsf-results:secret@127.0.0.1:{server.port}/0"
        environment = {
            "PATH": os.environ["PATH"],
            "DSF_REDIS_URL": url,
            "DSF_SIGNING_SECRET": "ab" * 32,
            "DSF_BACKEND": "dir",
            "DSF_MANIFESTS": str(tmp_path),
        }
        command = [sys.executable, "-m", "celery", "-A", "dsf.celery", "worker", "-Q", "hub.results"]
        worker = forked.child(command, tmp_path / "log", environment, inherit=False)
        try:
            wait_for(
                lambda: admin.pubsub_numsub(keys.CONTROL.commands)[0][1] or not worker.is_running, 60, "it to listen"
            )
            environment |= {"DSF_ROLE": "cli", "DSF_REDIS_URL": url.replace("dsf-results", "dsf-operator")}
            process = forked.celery(["inspect", "ping", "--json", "--timeout", "10"], environment)
            assert process.returncode == 0, process.stdout + process.stderr + worker.tail()
            [name] = json.loads(process.stdout)
            assert name.startswith("results@")
            assert admin.acl_log() == []
        finally:
            worker.signal(signal.SIGTERM)
            assert worker.wait() == 0
