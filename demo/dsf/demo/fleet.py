"""The demo: two managed clusters, five scorers, two of them with an expression, and the stack that runs them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from pathlib import Path

from dsf.demo import extras, manifests
from dsf.demo.services import DemoCluster, ScorerService
from dsf.up.ports import Ports
from dsf.up.stack import Stack, StackOptions
from dsf.up.supervisor import Program, Supervisor

#: Scoring services and their preferred ports.
_SERVICES = {"sample-scorer": 8000, "static-scorer": 8001}

#: Seconds that agents wait for the first samples of their cluster's Prometheus.
_DATA_TIMEOUT_SECONDS = 15.0


class Fleet:
    """All processes of `dsf demo`; `with_extras` are names of `dsf.demo.extras.EXTRAS`."""

    def __init__(
        self,
        folder: Path,
        state_dir: Path,
        redis_url: str | None,
        supervisor: Supervisor,
        say: Callable[[str], None],
        with_extras: Collection[str] = (),
    ) -> None:
        self._supervisor = supervisor
        self._say = say
        self._state_dir = state_dir
        self._programs: list[Program] = []
        ports = Ports(say)
        self.manifests = folder
        self.out_dir = folder / "_out"
        self.services = [ScorerService(name, ports.choose(port, name)) for name, port in _SERVICES.items()]
        self._extras = extras.select_extras(with_extras, folder)
        self.services += [
            ScorerService(extra.sample, ports.choose(extra.port, extra.sample), extra.environment)
            for extra in self._extras
        ]
        self.clusters = [DemoCluster.choose(name, index, ports) for index, name in enumerate(manifests.CLUSTERS)]
        self._without_data = {cluster.name: cluster for cluster in self.clusters}
        self._started = time.monotonic()
        self.host_aliases = {cluster.name: cluster.host_aliases for cluster in self.clusters}
        options = StackOptions(
            manifests=folder,
            out_dir=self.out_dir,
            state_dir=state_dir,
            redis_url=redis_url,
            agent_ports={cluster.name: cluster.agent_port for cluster in self.clusters},
            host_aliases=self.host_aliases,
            agent_may_start=self._may_start_agent,
        )
        self.stack = Stack(options, supervisor, ports, say)

    @property
    def env_file(self) -> Path:
        """A file of variables to source, for programs such as `celery` that find Redis only by the environment."""
        return self._state_dir / "env"

    @property
    def logs(self) -> Path:
        """Folder of the logs of all programs."""
        return self._supervisor.logs

    def prepare(self) -> None:
        """Find the programs, download missing ones, and write the manifests. Raises ToolError."""
        self._programs = [
            program for cluster in self.clusters for program in cluster.programs(self._state_dir / cluster.name)
        ]
        self._programs += [service.program() for service in self.services]
        ports = {service.name: service.port for service in self.services}
        for note in manifests.prepare(self.manifests, ports, [extra.manifest for extra in self._extras]):
            self._say(note)

    def start(self) -> None:
        """Start everything, without waiting for all. Raises ToolError."""
        self._started = time.monotonic()
        for program in self._programs:
            self._supervisor.start(program)
        self.stack.start()
        self.env_file.touch(mode=0o600)
        self.env_file.write_text(f"export DSF_REDIS_URL={self.stack.redis_url}\n", encoding="utf-8")

    def _may_start_agent(self, cluster: str) -> bool:
        # The first ticks wait for an agent, but not for data: without data the first scores would be empty, and the
        # next ones an interval later.
        waiting = self._without_data.get(cluster)
        if waiting is not None and (waiting.has_data or time.monotonic() > self._started + _DATA_TIMEOUT_SECONDS):
            del self._without_data[cluster]
        return cluster not in self._without_data

    def tick(self) -> None:
        """Start and end agents with their clusters, and restart dead programs. Call it periodically."""
        self.stack.update_agents()
        self._supervisor.check()
