"""The stages of a cycle are tasks inside one worker: Redis sees one pop and one push."""

from __future__ import annotations

import json
import re
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import redis

from dsf import keys
from dsf.redisacl.rules import cluster_rules
from tests.integration.agent.conftest import RESULTS, SERIES
from tests.integration.agent.harness import CLUSTER, Agent, summary
from tests.support.httpserver import Gate, ScriptedServer, answer, matrix
from tests.support.redisserver import RedisServer
from tests.support.wait import wait_for

QUEUE = keys.spoke_queue(CLUSTER)


def test_cycle_costs_one_pop_and_one_push(agent: Agent) -> None:
    agent.tick("sample")
    agent.result()
    with agent.redis.monitor() as monitor:
        runs = {agent.tick("sample")}
        runs.add(agent.result().run)
        agent.redis.echo("the end")
        commands: Counter[str] = Counter()
        for entry in monitor.listen():
            command_parts = entry["command"].split()
            if command_parts[0] == "ECHO":
                break
            commands[" ".join(command_parts[:2])] += 1
    assert len(runs) == 1
    # The first push is the test's own.
    assert commands[f"LPUSH {QUEUE}"] == 1
    assert sum(count for command, count in commands.items() if command.startswith("LPUSH")) == 1
    # The other one is a result in the mailbox.
    mail = [command for command in commands.elements() if command.startswith("SET hub.mail.")]
    # In one round trip: the result, and the flag of the mailbox.
    assert [command.rpartition(".")[2].isdigit() for command in mail] == [True, False]


def test_each_stage_is_a_task_for_whoever_listens(own_agent: Agent, scorer: ScriptedServer) -> None:
    scorer.script(answer(RESULTS), answer("no", 404))
    with own_agent.redis.pubsub() as listener:
        listener.psubscribe("/0.celeryev/task.*")
        runs = []
        for outcome in ("ok", "error"):
            runs.append(own_agent.tick("sample"))
            assert own_agent.result().outcome == outcome
        # 12 of a cycle with three stages, 9 of one whose second stage fails.
        events = _events(listener, 21)
    whole, events_of_failed_cycle = ([event for event in events if event["run"] == run] for run in runs)
    begun = [(f"task-{event_name}", "dsf.cycle") for event_name in ("received", "started")]
    stages = [
        (f"task-{event_name}", f"dsf.{name}")
        for name in ("fetch", "score", "publish")
        for event_name in ("received", "started", "succeeded")
    ]
    assert [(event["type"], event["name"]) for event in whole] == [*begun, *stages, ("task-succeeded", "dsf.cycle")]
    failures = [("task-failed", "dsf.score"), ("task-failed", "dsf.cycle")]
    assert [(event["type"], event["name"]) for event in events_of_failed_cycle] == [*begun, *stages[:5], *failures]
    received = [event for event in whole if event["type"] == "task-received"]
    ids = [event["uuid"] for event in received]
    assert len(set(ids)) == 4
    assert [event["root_id"] for event in received] == [ids[0]] * 4
    assert [event["parent_id"] for event in received] == [None, *[ids[0]] * 3]
    assert {event["hostname"] for event in events} == {f"spoke@{CLUSTER}"}
    results = [event for event in whole if event["type"] == "task-succeeded"]
    # The cycle itself is argument and result of its stages. Events show scorer and run id, and the sizes of its data.
    fetch, score, publish = (event["args"] for event in received[1:])
    assert (fetch, publish) == (f"(sample {runs[0]},)", f"(sample {runs[0]}: 1 results,)")
    assert re.fullmatch(rf"\(sample {runs[0]}: [0-9]+ series, [0-9]+ bytes,\)", score)
    assert [event["result"] for event in results[1:]] == [f"sample {runs[0]}: 1 results", "'ok'", "'ok'"]
    assert all(event["runtime"] > 0 for event in results)
    assert all("404" in event["exception"] for event in events_of_failed_cycle[-2:])


def _events(listener: Any, number: int) -> list[dict[str, Any]]:
    """Return this number of task events in order of creation, each with the name and the run of its task."""
    received_events: list[dict[str, Any]] = []

    def heard() -> bool:
        message = listener.get_message(ignore_subscribe_messages=True)
        received_events.extend(json.loads(json.loads(message["data"])["body"]) if message else ())
        return len(received_events) >= number

    wait_for(heard, 30, "the last event")
    tasks = {event["uuid"]: event for event in received_events if event["type"] == "task-received"}
    for event in received_events:
        task = tasks[event["uuid"]]
        (run,) = re.findall(r"[0-9]{13}-[0-9a-f]{8}", task["args"])
        event |= {"name": task["name"], "run": run}
    return received_events


def _url(agent: Agent) -> str:
    port = agent.redis.connection_pool.connection_kwargs["port"]
    return f"redis://127.0.0.1:{port}/0"


def test_agent_needs_no_right_to_write_to_its_queue(
    tmp_path: Path, source: ScriptedServer, scorer: ScriptedServer
) -> None:
    rules = cluster_rules(CLUSTER)
    assert not any("lpush" in rule and QUEUE in rule for rule in rules)
    with RedisServer(aof=False) as server:
        admin = redis.Redis.from_url(server.url, decode_responses=True)
        admin.execute_command("ACL", "SETUSER", "spoke", "reset", "on", ">secret", *rules)
        url = f"redis://spoke:secret@127.0.0.1:{server.port}/0"
        agent = Agent(tmp_path, server.url)
        agent._settings["redis_url"] = url
        agent.configure(summary("sample", source.url, scorer.url))
        gate = Gate(answer(RESULTS))
        with agent:
            source.script(answer("busy", 503), matrix(SERIES))
            scorer.script(gate)
            run = agent.tick("sample")
            assert gate.entered.wait(60)
            assert agent.process is not None
            agent.process.signal(signal.SIGTERM)
            gate.opened.set()
            result = agent.result()
            assert (result.run, result.outcome) == (run, "ok")
        denied_commands = {(entry["reason"], entry["object"]) for entry in admin.acl_log()}
        assert denied_commands == set()
        admin.close()
