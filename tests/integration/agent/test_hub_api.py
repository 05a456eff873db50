"""An agent that reaches Redis through an API server: what interrupts its connections, and how it returns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.integration.agent.harness import Agent, summary
from tests.support.forgetfulrelay import ForgetfulRelay
from tests.support.httpserver import ScriptedServer
from tests.support.portforwardserver import POD, PortForwardServer, serving, write_kubeconfig
from tests.support.redisserver import RedisServer, free_port
from tests.support.wait import wait_for

#: Seconds within which an agent returns.
_BACK = 30.0


class _Site(NamedTuple):
    agent: Agent
    api_server: PortForwardServer
    balancer: ForgetfulRelay

    def returns(self) -> bool:
        """Send a tick, and return True if there is a result: ticks that Redis gave to a dead connection are lost."""
        self.agent.tick("s")
        return self.agent.sent.take() is not None


@pytest.fixture
def site(tmp_path: Path, source: ScriptedServer, scorer: ScriptedServer) -> Iterator[_Site]:
    """A ready agent, whose only way to Redis is a load balancer in front of an API server."""
    with (
        RedisServer() as server,
        serving(server.port) as api_server,
        ForgetfulRelay(api_server.port, 3600, resets=False) as balancer,
    ):
        kubeconfig = tmp_path / "kubeconfig"
        write_kubeconfig(kubeconfig, balancer.port, "token")
        agent = Agent(tmp_path, server.url, redis_pod=POD, hub_kubeconfig=kubeconfig, redis_socket_timeout=4)
        agent._settings["redis_url"] = f"redis://127.0.0.1:{free_port()}/0"
        agent.configure(summary("s", source.url, scorer.url))
        with agent:
            run = agent.tick("s")
            assert agent.result().run == run
            yield _Site(agent, api_server, balancer)
            assert agent.process is not None
            assert agent.process.is_running


def test_agent_returns_after_a_load_balancer_has_dropped_its_connections(site: _Site) -> None:
    """Without a word to either end, as after the idle limit or a failover."""
    connections = site.balancer.connections
    site.balancer.forget()
    wait_for(site.returns, _BACK, "a result over a new connection", interval=1)
    assert site.balancer.connections > connections


def test_agent_returns_after_the_api_server_has_restarted(site: _Site) -> None:
    site.api_server.stop()
    wait_for(lambda: not site.agent.ready.exists(), _BACK, "the agent to be unready")
    site.api_server.start()
    wait_for(site.returns, _BACK, "a result over a new connection", interval=1)
    wait_for(site.agent.ready.exists, 10, "the agent to be ready")
