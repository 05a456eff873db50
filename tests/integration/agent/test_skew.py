"""An agent with a hub of a neighbouring version: recorded ticks and summaries are understood."""

from __future__ import annotations

import json

import pytest

from dsf import keys
from tests.cases.skew import NAMES, recorded
from tests.integration.agent.conftest import AgentFactory
from tests.integration.agent.harness import CLUSTER
from tests.support.httpserver import ScriptedServer


def test_ticks_and_summaries_of_neighbouring_versions_are_understood(
    make_agent: AgentFactory, scorer: ScriptedServer
) -> None:
    agent = make_agent()
    agent.configure()
    with agent:
        for number, name in enumerate(NAMES):
            # Each tick as recorded, except for its run id, which must be unique.
            text = json.dumps(recorded(name))
            case = json.loads(text.replace("1800000000000", f"180000000000{number}").replace("SCORING_URL", scorer.url))
            agent.configure(*case["summaries"])
            agent.redis.lpush(keys.spoke_queue(CLUSTER), json.dumps(case["tick"]))
            result = agent.result()
            assert (result.outcome, result.run[:13]) == ("ok", f"180000000000{number}"), name
        assert len(scorer.requests) == len(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_recorded_ticks_are_for_this_cluster(name: str) -> None:
    assert recorded(name)["tick"]["properties"]["delivery_info"]["routing_key"] == keys.spoke_queue(CLUSTER)
