"""The demo: two managed clusters, five scorers, two of them with an expression, and the stack that runs them."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING

from dsf.demo import extras, manifests
from dsf.demo.services import SCRAPE_INTERVAL, DemoCluster, ScorerService
from dsf.up.ports import Ports
from dsf.up.supervisor import Program, Supervisor

if TYPE_CHECKING:
    from dsf.up.stack import Stack

#: Scoring services and their preferred ports.
_SERVICES = {"sample-scorer": 8000, "static-scorer": 8001}
#: Seconds after which each Prometheus scrapes less often, as the first scores are there by then.
_FAST_SCRAPE_SECONDS = 12.0


class Fleet:
    """All processes of `dsf demo`; `with_extras` are names of `dsf.demo.extras.EXTRAS`.

    Call `prepare`, `start_clusters` and `start`, in this order. Prometheus scrapes no target in the first 5 s, so it
    starts before the modules of the stack are loaded.
    """

    def __init__(
        self,
        folder: Path,
        state_dir: Path,
        redis_url: str | None,
        supervisor: Supervisor,
        say: Callable[[str], None],
        with_extras: Collection[str] = (),
        *,
        has_flower: bool = True,
    ) -> None:
        self._supervisor = supervisor
        self._say = say
        self._state_dir = state_dir
        self._programs: list[Program] = []
        #: time.monotonic() after which each Prometheus scrapes less often; None if it does.
        self._slow_scrapes_at: float | None = None
        self._redis_url = redis_url
        self._has_flower = has_flower
        self._ports = ports = Ports(say)
        self.manifests = folder
        self.out_dir = folder / "_out"
        self.services = [ScorerService(name, ports.choose(port, name)) for name, port in _SERVICES.items()]
        self._extras = extras.select_extras(with_extras, folder)
        self.services += [
            ScorerService(extra.sample, ports.choose(extra.port, extra.sample), extra.environment)
            for extra in self._extras
        ]
        self.clusters = [DemoCluster.choose(name, index, ports) for index, name in enumerate(manifests.CLUSTERS)]
        self.host_aliases = {cluster.name: cluster.host_aliases for cluster in self.clusters}

    @functools.cached_property
    def stack(self) -> Stack:
        """The hub, the agents, and Flower if there is time to look at it."""
        from dsf.up.stack import Stack, StackOptions, make_module_command

        prometheus_urls = {cluster.name: cluster.prometheus_url for cluster in self.clusters}

        def make_agent_command(cluster: str) -> tuple[str, ...]:
            # A cluster that the user has added has no Prometheus of its own.
            if cluster in prometheus_urls:
                return make_module_command("demo.agent", prometheus_urls[cluster])
            return make_module_command("agent")

        options = StackOptions(
            manifests=self.manifests,
            out_dir=self.out_dir,
            state_dir=self._state_dir,
            redis_url=self._redis_url,
            flower=self._has_flower,
            agent_ports={cluster.name: cluster.agent_port for cluster in self.clusters},
            host_aliases=self.host_aliases,
            make_agent_command=make_agent_command,
        )
        return Stack(options, self._supervisor, self._ports, self._say)

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
        ports = {service.name: service.port for service in self.services}
        for note in manifests.prepare(self.manifests, ports, [extra.manifest for extra in self._extras]):
            self._say(note)

    def start_clusters(self) -> None:
        """Start the Prometheus and the node exporter of each cluster, without waiting for them. Raises ToolError."""
        for program in self._programs:
            self._supervisor.start(program)
        self._slow_scrapes_at = time.monotonic() + _FAST_SCRAPE_SECONDS

    def start(self) -> None:
        """Start everything else, without waiting for all. Raises ToolError."""
        for service in self.services:
            self._supervisor.start(service.program())
        self.stack.start()
        self.env_file.touch(mode=0o600)
        self.env_file.write_text(f"export DSF_REDIS_URL={self.stack.redis_url}\n", encoding="utf-8")

    def tick(self) -> None:
        """Start and end agents with their clusters, and restart dead programs. Call it periodically."""
        self.stack.update_agents()
        self._supervisor.check()
        if self._slow_scrapes_at is not None and time.monotonic() >= self._slow_scrapes_at:
            self._slow_scrapes_at = None
            self._slow_scrapes()

    def _slow_scrapes(self) -> None:
        for cluster in self.clusters:
            cluster.write_prometheus_config(self._state_dir / cluster.name, SCRAPE_INTERVAL)
            # A Prometheus that has just ended reads the file when it is started again.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._supervisor.pid(cluster.prometheus_name), signal.SIGHUP)
