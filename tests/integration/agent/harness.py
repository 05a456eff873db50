"""A real agent process on a real Redis, for tests that drive it with real ticks."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import redis

from dsf import keys
from dsf.messages import Result, derive_key, make_run_id, verify
from dsf.settings import ENV_PREFIX
from dsf.store.ticks import make_tick_message
from tests.support.forked import Forked
from tests.support.mail import MailboxReader
from tests.support.wait import PATIENCE, wait_for

CLUSTER = "worker01"
MASTER = bytes(range(32))


def summary(name: str, source: str, scoring: str, **values: Any) -> dict[str, Any]:
    """Return a ScorerSummary as the hub delivers it."""
    return {
        "name": name,
        "scoreName": f"{name}-score",
        "sourceType": "Prometheus",
        "sourceEndpoint": source,
        "sourceQuery": "up",
        "sourceRange": 3600,
        "sourceStep": 60,
        "scoringEndpoint": scoring,
        "scoringInterval": 30,
    } | values


class Agent:
    """An agent: its folder, its process, and the hub's end of its queues."""

    def __init__(self, folder: Path, redis_url: str, **settings: object) -> None:
        self.folder = folder
        self.config = folder / "config.json"
        self.secrets = folder / "secrets"
        self.spool = folder / "spool"
        self.key_file = folder / "signing-key"
        self.ready = folder / "ready"
        self.alive = folder / "alive"
        self.log_file = folder / "log"
        self.redis: redis.Redis = redis.Redis.from_url(redis_url, decode_responses=True, socket_timeout=PATIENCE)
        self.sent = MailboxReader(self.redis, CLUSTER)
        self.process: Forked | None = None
        self._log_from = 0
        self._settings = {
            "redis_url": redis_url,
            "cluster": CLUSTER,
            "agent_config": self.config,
            "agent_secrets_dir": self.secrets,
            "agent_spool_dir": self.spool,
            "listen_host": "127.0.0.1",
            "listen_port": 0,
            "probe_dir": folder,
            "signing_key_file": self.key_file,
            "redis_polling_interval": 1,
        } | settings
        self.rotate(1)

    def rotate(self, key_id: int) -> None:
        """Deliver the signing key with this id."""
        replace(self.key_file, derive_key(MASTER, CLUSTER, key_id).dump())

    def configure(self, *summaries: dict[str, Any]) -> None:
        """Deliver these summaries."""
        replace(self.config, json.dumps(summaries))

    def token(self, name: str, key: str, value: str | None) -> None:
        """Create, change or (None) delete a Secret's key; its tokens may be sent to this machine."""
        file = self.secrets / name / key
        file.parent.mkdir(parents=True, exist_ok=True)
        replace(file.with_name("usable-for"), "127.0.0.1\n")
        file.unlink() if value is None else replace(file, value)

    def start(self) -> Agent:
        """Start the process and wait until it takes ticks."""
        self.launch()
        self.wait_ready()
        return self

    def begin(self, *summaries: dict[str, Any]) -> None:
        """Reset the agent for a new test: with these summaries, an empty Redis and an empty log."""
        self.redis.flushall()
        self.rotate(1)
        self.configure(*summaries)
        self._log_from = len(self._whole_log())
        self.sent = MailboxReader(self.redis, CLUSTER)

    def launch(self) -> None:
        """Start the process without waiting for it."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX)}
        environment |= {ENV_PREFIX + name.upper(): str(value) for name, value in self._settings.items()}
        self.process = Forked("dsf.agent", self.log_file, environment, inherit=False)

    def wait_ready(self) -> None:
        """Wait until the process takes ticks."""
        wait_for(self._is_ready, 90, "the agent to be ready")

    def _is_ready(self) -> bool:
        if self.process is not None and not self.process.is_running:
            raise RuntimeError(f"the agent ended with {self.process.wait()}: {self.log()[-3000:]}")
        return self.ready.exists()

    def kill(self) -> None:
        """SIGKILL."""
        self._end(signal.SIGKILL)
        self.ready.unlink(missing_ok=True)

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        process, self.process = self.process, None
        if process is None:
            return 0
        process.signal(number)
        return process.wait(PATIENCE)

    def __enter__(self) -> Agent:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.stop()
        self.redis.close()

    def log(self) -> str:
        """Return everything that it logged in this test."""
        return self._whole_log()[self._log_from :]

    def _whole_log(self) -> str:
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    def tick(self, scorer: str, *, expires: float = 30.0, run_id: str | None = None) -> str:
        """Send a tick as beat does; returns its run id."""
        run_id = run_id or make_run_id()
        self.redis.lpush(keys.spoke_queue(CLUSTER), make_tick_message(CLUSTER, scorer, run_id, time.time() + expires))
        return run_id

    def result(self, timeout: float = 30.0) -> Result:
        """Return the next result, verified as the hub does it."""

        raw = wait_for(self.sent.take, timeout, "a result")
        return verify(raw.encode(), MASTER).result

    def no_result(self, seconds: float = 0.5) -> bool:
        """True if no result arrives for a while."""
        time.sleep(seconds)
        return self.sent.count() == 0

    def port(self) -> int:
        """Return the port of its /metrics, from its log."""

        def announced_port() -> int | None:
            lines = [line for line in self._whole_log().splitlines() if "metrics served" in line]
            return int(lines[-1].split("port=")[1].split()[0]) if lines else None

        return wait_for(announced_port, 30, "the port of /metrics")

    def page(self, path: str = "/metrics") -> tuple[int, str]:
        """Status and body of a page of its HTTP server."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port()}{path}", timeout=300) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def metrics(self, prefix: str) -> list[str]:
        """Lines of /metrics that begin with this."""
        return [line for line in self.page()[1].splitlines() if line.startswith(prefix)]

    def spooled(self) -> list[str]:
        """Return the names of the files in its spool."""
        return sorted(path.name for path in self.spool.iterdir())


def replace(path: Path, text: str) -> None:
    """Write a file atomically, as Kubernetes and the hub do."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".new")
    draft.write_text(text)
    draft.rename(path)
