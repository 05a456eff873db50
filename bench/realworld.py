"""The fleet of `bench.fleet` with real agents: `--real`.

Each agent is a process that reads the data that the hub has written for its cluster. A single server is the Prometheus
and the scoring API of all agents.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Final

from bench.fleetprocesses import Processes
from bench.fleetworld import Agents, World
from bench.hub import ScoringApi
from dsf.store.pairs import OUTCOMES, Pairs

#: Name of their processes, which do not belong to the hub.
AGENTS: Final = "agents"
SERIES: Final = 100
_SAMPLES: Final = [[1_790_000_000 + 60 * step, "0.5"] for step in range(11)]
_MATRIX: Final = json.dumps(
    {
        "status": "success",
        "data": {
            "resultType": "matrix",
            "result": [{"metric": {"node": f"node{n}"}, "values": _SAMPLES} for n in range(SERIES)],
        },
    }
).encode()
_ITEMS: Final = 10
#: Share of the responses that differ from the previous one.
_CHANGING: Final = 0.05


class RealApi(ScoringApi):
    """Prometheus and scoring API."""

    def do_GET(self) -> None:  # noqa: N802
        """Respond to a range query, and otherwise like the base class."""
        if self.path.startswith("/api/"):
            self.respond(_MATRIX)
        else:
            super().do_GET()

    def do_POST(self) -> None:  # noqa: N802
        """Respond with ten results."""
        length = int(self.headers.get("Content-Length") or 0)
        self.rfile.read(length)
        shift = random.randrange(80) if random.random() < _CHANGING else 0
        results = [{"metric": {"node": f"node{n}"}, "score": n + shift + 0.5} for n in range(_ITEMS)]
        self.respond(json.dumps({"results": results}).encode())

    def source(self) -> str:
        """Return the address of this server."""
        return f"http://{self.headers['Host']}"


class RealAgents(Agents):
    """A process for each cluster. The counters come from the hub's data about their cycles."""

    def __init__(self, world: RealWorld, processes: Processes) -> None:
        super().__init__()
        self._world = world
        self._processes = processes

    @property
    def counts(self) -> Counter[str]:
        """Return the ticks and results so far."""
        states = Pairs(self._world.client).read_states(self._world.pairs)
        results = sum(state.count(outcome) for state in states for outcome in OUTCOMES)
        return Counter(results=results, ticks=sum(state.scheduled for state in states))

    def stop(self) -> None:
        """End them."""
        self._processes.stop(AGENTS)


class RealWorld(World):
    """A World with a process for each agent."""

    def _agents(self) -> Agents:
        folders = {name: self.out / "clusters" / name for name in self.clusters}
        configs = {name: folder / "dynamic-scoring-config.yaml" for name, folder in folders.items()}
        keys = {name: folder / "agent-credentials" / "signing-key" for name, folder in folders.items()}
        self._wait_until(lambda: all(file.exists() for file in (*configs.values(), *keys.values())), "every delivery")
        for name in self.clusters:
            environment = self._environment(
                role="agent",
                cluster=name,
                agent_config=configs[name],
                signing_key_file=keys[name],
                agent_spool_dir=self.folder / "spool" / name,
                listen_host="127.0.0.1",
                listen_port=0,
                **self._make_redis_settings(),
            )
            self.processes.start(AGENTS, "dsf.agent", environment)
        return RealAgents(self, self.processes)

    def _make_redis_settings(self) -> dict[str, object]:
        """Return the settings with which the next agent reaches Redis."""
        return {}
