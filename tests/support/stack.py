"""All processes of production on this machine: real Redis, the hub's services, agents.

Each service is a process. Processes have names: `hub` (the controller), `beat`, `results`, `web`, and `agent
<cluster>`; a second one of a kind is `beat 2`. With `single` there is `whole` in place of the first four. The processes
are never restarted, so that a test sees the effect of a death alone.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import psutil
import redis
import requests
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from dsf.settings import ENV_PREFIX
from dsf.up.httpcheck import make_http_check
from tests.support import forked
from tests.support.child import Child
from tests.support.redisserver import RedisServer, free_port
from tests.support.wait import PATIENCE, wait_for

ROOT = Path(__file__).resolve().parents[2]
_ALTERED = Path(__file__).with_name("altered.py")
_MODULES = {
    "hub": ("dsf.hub",),
    "agent": ("dsf.agent",),
    "flower": ("dsf.cli", "flower"),
}
#: Processes of the hub, and their value of --target. `whole` has all services.
_TARGETS = {"hub": "controller", "beat": "beat", "results": "results", "web": "web", "whole": "all"}
#: Shorter than in production, so that a test reaches each of them.
_SETTINGS: dict[str, object] = {
    "backend": "dir",
    "health_interval": 0.5,
    "beat_lock_timeout": 2,
    "lost_after": 1,
    "redis_polling_interval": 1,
}


class Stack:
    """A hub and the agents of `clusters`, on a folder of manifests. A context manager. A context manager.

    `settings` are by process name or by its first word (`agent c1` before `agent`); `altered` are arguments for
    `tests/support/altered.py`, by process name likewise.
    """

    #: Starts a process. A bench starts fresh ones, which share no memory.
    child: Callable[..., Child] = staticmethod(forked.child)

    def __init__(
        self,
        folder: Path,
        clusters: Sequence[str] = ("c1",),
        *,
        settings: Mapping[str, Mapping[str, object]] | None = None,
        altered: Mapping[str, Sequence[str]] | None = None,
        redis_options: Sequence[str] = (),
        redis_server: RedisServer | None = None,
        single: bool = False,
    ) -> None:
        self.folder = folder
        self.manifests = folder / "manifests"
        self.out = self.manifests / "_out"
        self.logs = folder / "logs"
        for subfolder in (self.manifests, self.logs):
            subfolder.mkdir(parents=True)
        self.clusters = tuple(clusters)
        #: True if one process, `whole`, has all services.
        self.single = single
        self.settings = {name: dict(values) for name, values in (settings or {}).items()}
        self.altered = {name: tuple(arguments) for name, arguments in (altered or {}).items()}
        self.redis_server = redis_server or RedisServer(aof=True, options=tuple(redis_options))
        self.processes: dict[str, Child] = {}
        self._ports: dict[str, int] = {}
        self._http = requests.Session()
        self._http.trust_env = False
        self._client: redis.Redis | None = None

    # --- processes -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start everything and wait until it works. Raises AssertionError with the end of a log."""
        self.redis_server.start()
        first = ("whole",) if self.single else ("hub", "beat", "web")
        for name in first:
            self.run(name)
        agents = [f"agent {cluster}" for cluster in self.clusters]
        # Agents need files that the hub writes.
        files = [self.out / ".hub" / "signing-secret", *(self._key_file(cluster) for cluster in self.clusters)]
        wait_for(lambda: all(file.exists() for file in files), 30, f"the hub's files; {self.tail(first[0])}")
        for name in agents if self.single else ("results", *agents):
            self.run(name)
        for name in (first[-1], *agents):
            self.wait_ready(name)

    @property
    def web(self) -> str:
        """Name of the process with the web service."""
        return "whole" if self.single else "web"

    def run(self, name: str) -> None:
        """Start one process without waiting for it."""
        # -P: modules must not be found in the folder of altered.py.
        program = (
            ("-P", str(_ALTERED), *self._get_by_name(self.altered, name, ())) if self._is_altered(name) else ("-m",)
        )
        arguments = ("--port", str(self.port(name))) if name == "flower" else ()
        command = (sys.executable, *program, *_MODULES["hub" if _role(name) in _TARGETS else _role(name)], *arguments)
        log = self.logs / f"{name.replace(' ', '-')}.log"
        self.processes[name] = self.child(command, log, self.environment(name), inherit=False)

    def wait_ready(self, name: str, timeout: float = 30.0) -> None:
        """Wait until a process is ready, if it reports that."""

        def ready() -> bool:
            if not self.processes[name].is_running:
                raise RuntimeError(f"{name} ended: {self.tail(name)}")
            return self._is_responding(name)

        wait_for(ready, timeout, f"{name} to be ready; {self.tail(name)}")

    def kill(self, name: str) -> None:
        """Kill a process with SIGKILL."""
        self.processes.pop(name).kill()
        # Only a process that exits regularly removes its ready file.
        self._ready_file(name).unlink(missing_ok=True)

    def stop(self, *names: str) -> list[int]:
        """Send SIGTERM to all of them at once, and return their exit codes."""
        ending = [self.processes.pop(name) for name in names]
        for process in ending:
            process.signal(signal.SIGTERM)
        return [process.wait(PATIENCE) for process in ending]

    def restart(self, name: str) -> None:
        """Start a process again, after killing it if it runs, and wait until it is ready."""
        if name in self.processes:
            self.kill(name)
        self.run(name)
        self.wait_ready(name)

    def pid(self, name: str) -> int:
        """Return its process id."""
        return self.processes[name].pid

    def memory(self, name: str) -> int:
        """Return its resident memory in bytes."""
        return int(psutil.Process(self.pid(name)).memory_info().rss)

    def tail(self, name: str) -> str:
        """Return the end of its log."""
        return self.processes[name].tail()

    def log(self, name: str) -> str:
        """Return its whole log."""
        return (self.logs / f"{name.replace(' ', '-')}.log").read_text(errors="replace")

    def port(self, name: str) -> int:
        """Return the port on which it serves; it stays the same after a restart."""
        return self._ports.setdefault(name, free_port())

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            process.kill()
        self._http.close()
        self.redis_server.stop()

    # --- reads of state ------------------------------------------------------------------------------------------

    @property
    def redis(self) -> redis.Redis:
        """A client that decodes to str."""
        if self._client is None:
            self._client = self.redis_server.client()
        return self._client

    def spooled(self, cluster: str) -> list[str]:
        """Return the names of the files in the agents' folders for payloads, which must be empty."""
        del cluster
        return sorted(path.name for path in (self.folder / "spool").iterdir())

    def page(self, name: str, path: str) -> requests.Response:
        """Return the response of a process's HTTP server."""
        return self._http.get(f"http://127.0.0.1:{self.port(name)}{path}", timeout=300)

    def samples(self, name: str) -> Iterator[Sample]:
        """Yield all samples of a process's /metrics, parsed as Prometheus' text format."""
        response = self.page(name, "/metrics")
        assert response.status_code == 200
        for family in text_string_to_metric_families(response.text):
            yield from family.samples

    def metric(self, process: str, sample: str, **labels: str) -> float | None:
        """Return the sum of the samples with this name and these labels; None if there is none."""
        values = [
            metric.value
            for metric in self.samples(process)
            if metric.name == sample and all(metric.labels.get(label) == value for label, value in labels.items())
        ]
        return sum(values) if values else None

    def dsf(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the command line as a user does."""
        return forked.dsf(arguments, self.environment("cli"), timeout=300)

    def data(self, *arguments: str) -> Any:
        """Run a command with `-o json` and return its parsed output. Raises AssertionError when it prints none."""
        process = self.dsf(*arguments, "-o", "json")
        try:
            return json.loads(process.stdout)
        except ValueError:
            raise AssertionError(f"dsf {' '.join(arguments)}: {process.stdout}{process.stderr}") from None

    # --- details -------------------------------------------------------------------------------------------------

    def environment(self, name: str) -> dict[str, str]:
        """Return all variables of one process, without `DSF_` variables of the shell."""
        role, _, cluster = name.partition(" ")
        values = _SETTINGS | {"role": role, "redis_url": self.redis_server.url, "manifests": self.manifests}
        if role in _TARGETS:
            values |= {"role": "hub", "target": _TARGETS[role], "probe_port": 0, "listen_port": self.port(name)}
        if role == "results":
            values["signing_secret_file"] = self.out / ".hub" / "signing-secret"
        elif role == "agent":
            values |= {
                "cluster": cluster,
                "agent_config": self._cluster_dir(cluster) / "dynamic-scoring-config.yaml",
                "signing_key_file": self._key_file(cluster),
                "agent_secrets_dir": self.folder / "secrets" / cluster,
                "agent_spool_dir": self.folder / "spool",
                "listen_host": "127.0.0.1",
                "listen_port": self.port(name),
                "probe_dir": self._ready_file(name).parent,
            }
        values |= self._get_by_name(self.settings, name, {})
        environment = {variable: value for variable, value in os.environ.items() if not variable.startswith(ENV_PREFIX)}
        # Separate state, because a demo may run on this machine.
        environment |= {"XDG_STATE_HOME": str(self.folder / "state"), "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        if role == "flower":
            environment["FLOWER_UNAUTHENTICATED_API"] = "true"
        return environment | {ENV_PREFIX + variable.upper(): str(value) for variable, value in values.items()}

    def _is_responding(self, name: str) -> bool:
        match _role(name):
            case "agent":
                return self._ready_file(name).exists()
            case "web" | "whole":
                return make_http_check(f"http://127.0.0.1:{self.port(name)}/readyz")()
            case "flower":
                return make_http_check(f"http://127.0.0.1:{self.port(name)}/healthcheck")()
        return True

    def _is_altered(self, name: str) -> bool:
        return name in self.altered or _role(name) in self.altered

    @staticmethod
    def _get_by_name(values: Mapping[str, Any], name: str, default: Any) -> Any:
        return values.get(name, values.get(_role(name), default))

    def _cluster_dir(self, cluster: str) -> Path:
        return self.out / "clusters" / cluster

    def _key_file(self, cluster: str) -> Path:
        return self._cluster_dir(cluster) / "agent-credentials" / "signing-key"

    def _ready_file(self, name: str) -> Path:
        folder = self.folder / "probes" / name.replace(" ", "-")
        folder.mkdir(parents=True, exist_ok=True)
        return folder / "ready"


def _role(name: str) -> str:
    return name.partition(" ")[0]


def pass_time(seconds: float) -> None:
    """Sleep, where the passing of time itself is tested."""
    time.sleep(seconds)
