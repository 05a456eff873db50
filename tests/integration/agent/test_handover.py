"""The stages of a cycle follow each other inside the worker: Redis sees one pop and one push."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import redis

from dsf import keys
from dsf.redisacl.rules import cluster_rules
from tests.integration.agent.conftest import RESULTS, SERIES, AgentFactory
from tests.integration.agent.harness import CLUSTER, Agent, summary
from tests.support.httpserver import Gate, ScriptedServer, answer, matrix
from tests.support.redisserver import RedisServer
from tests.support.wait import wait_for

QUEUE = keys.spoke_queue(CLUSTER)


def test_a_cycle_costs_one_pop_and_one_push(agent: Agent, redis_client: redis.Redis) -> None:
    agent.tick("sample")
    agent.result()
    with redis_client.monitor() as monitor:
        runs = {agent.tick("sample")}
        runs.add(agent.result().run)
        redis_client.echo("the end")
        seen: Counter[str] = Counter()
        for entry in monitor.listen():
            words = entry["command"].split()
            if words[0] == "ECHO":
                break
            seen[" ".join(words[:2])] += 1
    assert len(runs) == 1
    # The first push is the test's own.
    assert seen[f"LPUSH {QUEUE}"] == 1
    assert sum(count for command, count in seen.items() if command.startswith("LPUSH")) == 1
    # The other one is a result in the mailbox.
    assert sum(count for command, count in seen.items() if command.startswith("SET hub.mail.")) == 1


def test_another_try_does_not_go_through_redis(agent: Agent, source: ScriptedServer) -> None:
    source.script(answer("busy", 503), matrix(SERIES))
    user = redis.Redis.from_url(_url(agent))
    agent.tick("sample")
    result = agent.result()
    assert (result.outcome, result.counts["retries"]) == ("ok", 1)
    assert len(source.requests) == 2
    assert user.llen(QUEUE) == 0
    user.close()


def _url(agent: Agent) -> str:
    port = agent.redis.connection_pool.connection_kwargs["port"]
    return f"redis://127.0.0.1:{port}/0"


def test_an_agent_needs_no_right_to_write_to_its_queue(
    tmp_path: Path, source: ScriptedServer, scorer: ScriptedServer
) -> None:
    rules = cluster_rules(CLUSTER)
    assert not any("lpush" in rule and QUEUE in rule for rule in rules)
    with RedisServer(aof=False) as server:
        admin = redis.Redis.from_url(server.url, decode_responses=True)
        admin.execute_command("ACL", "SETUSER", "spoke", "reset", "on", ">secret", *rules)
        url = f"redis://spoke:secret@127.0.0.1:{server.port}/0"
        agent = Agent(tmp_path, server.url, retry_backoff=0.1)
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
        refused = {(entry["reason"], entry["object"]) for entry in admin.acl_log()}
        assert refused == set()
        admin.close()


def test_a_cycle_goes_on_after_a_restart_of_redis(make_agent: AgentFactory, scorer: ScriptedServer) -> None:
    gate = Gate(matrix(SERIES))
    with RedisServer(aof=True) as server, ScriptedServer(gate) as source:
        agent = make_agent(redis_url=server.url)
        agent.configure(summary("sample", source.url, scorer.url))
        agent.start()
        run_id = agent.tick("sample", expires=60)
        assert gate.entered.wait(60)
        server.kill()
        gate.opened.set()
        wait_for(lambda: "Cannot connect to" in agent.log(), 30, "the agent to miss Redis")
        server.restart()
        result = agent.result(60)
        assert (result.run, result.outcome) == (run_id, "ok")
        assert agent.stop() == 0
