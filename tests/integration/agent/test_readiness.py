"""A real agent that is ready only while it scores."""

from __future__ import annotations

from tests.integration.agent.conftest import RESULTS, AgentFactory
from tests.integration.agent.harness import summary
from tests.support.httpserver import ScriptedServer, answer
from tests.support.wait import wait_for


def test_agent_is_ready_while_cycles_succeed(
    make_agent: AgentFactory, source: ScriptedServer, scorer: ScriptedServer
) -> None:
    agent = make_agent()
    # Ready for 15 s from its start: for as long as this process may need to see that.
    agent.configure(summary("sample", source.url, scorer.url, scoringInterval=5, maxRetries=0))
    with agent:
        # At its start it has time for a first cycle; afterwards it gets no tick.
        wait_for(lambda: not agent.ready.exists(), 20, "not to be ready without a cycle")
        assert "no scorer had a good cycle" in agent.log()
        # A failed cycle changes nothing, a successful one does at once.
        scorer.script(answer("broken", 500))
        agent.tick("sample")
        assert agent.result().outcome == "error"
        assert not agent.ready.exists()
        scorer.script(answer(RESULTS))
        agent.tick("sample")
        assert agent.result().outcome == "ok"
        wait_for(agent.ready.exists, 20, "ready again")
        assert agent.alive.exists()
    assert not agent.ready.exists()
