"""A whole worker whose queue is full of invalid messages: it drops and counts them, and runs the next valid tick."""

from __future__ import annotations

import json
import random
from typing import Any

from dsf import keys
from dsf.messages import make_run_id
from dsf.store.ticks import make_tick_message
from tests.integration.agent.harness import CLUSTER, Agent
from tests.support.httpserver import ScriptedServer
from tests.support.wait import wait_for

QUEUE = keys.spoke_queue(CLUSTER)
REFUSED = "dynamic_scoring_messages_refused_total"
#: Messages that a fuzzer makes of an honest one.
MANY = 1000
SEED = 20261122

_VALUES = [None, True, 0, -1, 1e308, 10**40, "", "x", "\ud800", "\0", [], {}, [[]], {"a": {}}, ["sample"], "../..", "7"]
_VALUES.append({"__type__": "x", "__value__": "y"})


def tick(scorer: str = "sample", deadline: float = 4102444800.0) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(make_tick_message(CLUSTER, scorer, make_run_id(), deadline))
    return message


def test_thousands_of_malformed_messages(agent: Agent, source: ScriptedServer, scorer: ScriptedServer) -> None:
    draw = random.Random(SEED)
    process = agent.process
    assert process is not None
    with agent.redis.pipeline(transaction=False) as pipe:
        for _ in range(MANY):
            pipe.lpush(QUEUE, _fuzzed(draw))
        pipe.execute()

    def queue_is_empty() -> bool:
        # Some are expired ticks, whose results a hub takes.
        while agent.sent.take():
            pass
        return agent.redis.llen(QUEUE) == 0 or not process.is_running

    wait_for(queue_is_empty, 120, "all of it to be taken")
    run = agent.tick("sample")

    def answered() -> bool:
        return agent.result().run == run

    wait_for(answered, 60, "the honest tick's result")
    assert process.is_running
    (counted,) = agent.metrics(REFUSED)
    assert float(counted.split()[1]) > MANY / 2
    # The log is throttled, and contains nothing of the pushed messages.
    assert agent.log().count("message refused") < MANY / 10
    assert "Traceback" not in agent.log()
    assert agent.spooled() == []


def _fuzzed(draw: random.Random) -> bytes:
    """Return an honest tick with some of it replaced, removed, cut or turned into noise."""
    document: Any = tick(draw.choice(["sample", "sample", "unknown"]), 1577836800.0)
    for _ in range(draw.randint(1, 3)):
        container = draw.choice([document, document.get("headers"), document.get("properties")])
        if isinstance(container, dict) and container:
            name = draw.choice(list(container))
            if draw.random() < 0.2:
                del container[name]
            else:
                container[name] = draw.choice([*_VALUES, json.dumps(draw.choice(_VALUES))])
    item = json.dumps(document).encode()
    kind = draw.random()
    if kind < 0.1:
        return item[: draw.randrange(len(item))]
    if kind < 0.2:
        at = draw.randrange(len(item))
        return item[:at] + draw.randbytes(4) + item[at + 4 :]
    return draw.randbytes(draw.randint(0, 300)) if kind < 0.25 else item
