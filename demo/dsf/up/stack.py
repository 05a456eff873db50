"""The hub on a folder of manifests, in one process with all its services, and Flower, on this machine.

Each cluster that the hub accepted has a local agent. Agents start and end with the clusters.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import redis

from dsf.agent.secrets import find_token_folder
from dsf.errors import ToolError
from dsf.redislink import address
from dsf.settings import Settings, make_child_environment
from dsf.store.client import connect
from dsf.store.registry import Registry
from dsf.up.embedded_redis import EmbeddedRedis
from dsf.up.httpcheck import make_http_check
from dsf.up.ports import LOCALHOST, Ports
from dsf.up.supervisor import Program, Supervisor
from dsf.worker import commands


@dataclass(frozen=True)
class StackOptions:
    """Options of a stack."""

    manifests: Path
    out_dir: Path
    #: Folder of Redis' data and of logs. It is outside of `manifests`, which is watched for changes.
    state_dir: Path
    #: URL of the Redis to use; None: an embedded server.
    redis_url: str | None = None
    agents: bool = True
    flower: bool = True
    #: Cluster -> port of its agent's /metrics; other agents get a free port.
    agent_ports: Mapping[str, int] = field(default_factory=dict)
    #: Cluster -> host aliases of its agent.
    host_aliases: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    #: Returns the command that runs the agent of a cluster.
    make_agent_command: Callable[[str], tuple[str, ...]] = lambda cluster: make_module_command("agent")


class Stack:
    """The processes of one hub. Call `start`, then `update_agents` periodically; the supervisor ends the processes.

    A context manager that closes its connections.
    """

    def __init__(self, options: StackOptions, supervisor: Supervisor, ports: Ports, say: Callable[[str], None]) -> None:
        """Prepare the stack. Raises SettingsError for an invalid URL of Redis."""
        self.options = options
        self._supervisor = supervisor
        self._ports = ports
        self._say = say
        self._embedded: EmbeddedRedis | None = None
        self._client: redis.Redis | None = None
        self._agents: set[str] = set()
        #: True if the last error about the clusters was reported.
        self._is_error_reported = False
        self.redis_url = options.redis_url or ""
        self.redis_address = str(address.parse(self.redis_url)) if self.redis_url else ""
        self._web_port = ports.choose(8080, "the page")
        self.web_url = f"http://{LOCALHOST}:{self._web_port}"
        self._flower_port = ports.choose(5555, "Flower") if options.flower else 0
        self.flower_url = f"http://{LOCALHOST}:{self._flower_port}" if options.flower else None

    @property
    def client(self) -> redis.Redis:
        """A client of the stack's Redis, once started; closed at the end."""
        if self._client is None:
            self._client = connect(Settings.load().with_redis(self.redis_url), name="dsf-up", retries=1)
        return self._client

    @property
    def process_names(self) -> list[str]:
        """Names of the framework's own processes that run or ran."""
        names = ["hub", "Flower"]
        return names + [f"agent {cluster}" for cluster in sorted(self._agents)]

    def start(self) -> None:
        """Start Redis, wait for it, then start the hub's processes. Raises ToolError."""
        if not self.redis_url:
            self._embedded = EmbeddedRedis(self.options.state_dir / "redis", self._ports.any())
            self.redis_url = self._embedded.url
            self.redis_address = self._embedded.address
            self._supervisor.start(self._embedded.program())
            # Redis may take long, if it loads a log.
            self._supervisor.wait_ready(30.0, "Redis")
        else:
            self._check_redis()
        for program in self._make_programs():
            self._supervisor.start(program)

    def update_agents(self) -> None:
        """Start and end agents with their clusters."""
        if not self.options.agents:
            return
        try:
            # The hub keeps a removed cluster for some minutes, but deletes its agent's credentials at once.
            accepted = {name for name in Registry(self.client).read_clusters() if self._get_key_file(name).exists()}
        except redis.RedisError as error:
            # All agents stay as they are.
            self._report_error(error)
            return
        self._is_error_reported = False
        for cluster in sorted(accepted - self._agents):
            if self._get_config_file(cluster).exists():
                self._supervisor.start(self._make_agent(cluster))
                self._agents.add(cluster)
        for cluster in sorted(self._agents - accepted):
            self._say(f"cluster {cluster} is gone; ending its agent")
            self._supervisor.stop(f"agent {cluster}")
            self._agents.discard(cluster)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _report_error(self, error: redis.RedisError) -> None:
        """Report an error that prevents reading the clusters, once, unless Redis is only restarting."""
        is_restarting = isinstance(error, redis.ConnectionError | redis.TimeoutError)
        if (is_restarting and not isinstance(error, redis.AuthenticationError)) or self._is_error_reported:
            return
        self._is_error_reported = True
        self._say(f"agents do not follow the clusters now, because Redis cannot be read: {error}")

    def _check_redis(self) -> None:
        try:
            self.client.ping()
        except (redis.RedisError, ValueError) as error:
            raise ToolError(f"cannot use Redis at {self.redis_address}: {error}; check the URL") from None

    def _make_programs(self) -> list[Program]:
        programs = [self._make_hub()]
        if self.flower_url is not None:
            environment = self._make_environment("flower")
            # Flower's read-only API needs no login on this machine.
            environment["FLOWER_UNAUTHENTICATED_API"] = "true"
            command = tuple(commands.make_flower_command(LOCALHOST, self._flower_port))
            programs.append(
                Program("Flower", command, environment, ready=make_http_check(f"{self.flower_url}/healthcheck"))
            )
        return programs

    def _make_hub(self) -> Program:
        return Program(
            "hub",
            make_module_command("hub"),
            self._make_environment(
                "hub",
                target="all",
                listen_host=LOCALHOST,
                listen_port=self._web_port,
                probe_port=0,
                # The page trusts users of this machine, as the command line does.
                web_auth="local",
                web_flower_url=self.flower_url or "",
            ),
            ready=make_http_check(f"{self.web_url}/healthz"),
        )

    def _make_agent(self, cluster: str) -> Program:
        port = self.options.agent_ports.get(cluster)
        return Program(
            f"agent {cluster}",
            self.options.make_agent_command(cluster),
            self._make_environment(
                "agent",
                cluster=cluster,
                agent_config=self._get_config_file(cluster),
                signing_key_file=self._get_key_file(cluster),
                agent_secrets_dir=find_token_folder(self.options.out_dir, cluster),
                listen_host=LOCALHOST,
                listen_port=self._ports.any() if port is None else port,
                agent_spool_dir=self.options.state_dir / "spool",
                agent_host_aliases=json.dumps(dict(self.options.host_aliases.get(cluster, {}))),
            ),
        )

    def _make_environment(self, role: str, **values: object) -> dict[str, str]:
        """Return the environment of one process; roles get no secrets of others."""
        common: dict[str, object] = {
            "role": role,
            "redis_url": self.redis_url,
            # The shell's own settings for Redis are ignored.
            "redis_username": None,
            "redis_password_file": None,
            "signing_key_file": None,
            "signing_secret": None,
            "signing_secret_file": None,
            # The shell's setting may be the address of another process.
            "listen_port": None,
            "backend": "dir",
            "manifests": self.options.manifests,
            "out_dir": self.options.out_dir,
        }
        environment = make_child_environment(**(common | values))
        # Unbuffered, because logs are read while they grow.
        environment["PYTHONUNBUFFERED"] = "1"
        return environment

    def _get_cluster_dir(self, cluster: str) -> Path:
        return self.options.out_dir / "clusters" / cluster

    def _get_config_file(self, cluster: str) -> Path:
        return self._get_cluster_dir(cluster) / "dynamic-scoring-config.yaml"

    def _get_key_file(self, cluster: str) -> Path:
        return self._get_cluster_dir(cluster) / "agent-credentials" / "signing-key"


def make_module_command(module: str, *arguments: str) -> tuple[str, ...]:
    """Return the command `python -m dsf.<module>` of this installation, which loads faster than the command line."""
    return (sys.executable, "-P", "-m", f"dsf.{module}", *arguments)
