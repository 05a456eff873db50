"""A real Redis as it stands in production: TLS only, the default user off, our users from an ACL file."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from dsf.demo import binaries
from dsf.redisacl.rules import HUB_ROLES, HubRole, hub_user
from dsf.redisacl.users import hub_users, password_hash, render_acl_file
from tests.support.child import Child
from tests.support.redisserver import free_port
from tests.support.tlsca import Certificate, TestCa
from tests.support.wait import wait_for

ADMIN_PASSWORD = "test-admin-password"
_ADMIN = f"user admin on #{password_hash(ADMIN_PASSWORD)} ~* &* +@all"


def find_tls_server() -> str:
    """A server program that speaks TLS: on PATH, else Debian's in the demo's cache (fetched if need be)."""
    return os.environ.get("DSF_TEST_REDIS_SERVER") or str(binaries.find("redis-server"))


class SecureRedis:
    """One server with the hub's users; their passwords are in `passwords`. The user `admin` may do everything."""

    def __init__(
        self,
        ca: TestCa,
        *,
        certificate: Certificate | None = None,
        passwords: dict[HubRole, str] | None = None,
        aclfile: bool = True,
        options: tuple[str, ...] = (),
    ) -> None:
        self.dir = Path(tempfile.mkdtemp(prefix="dsf-secure-redis-"))
        self.port = free_port()
        self.ca = ca
        self.passwords = passwords or {role: f"password-of-{role}" for role in HUB_ROLES if role != "probe"}
        self.certificate = certificate or ca.issue("localhost", "127.0.0.1")
        self._aclfile = aclfile
        self._options = options
        self._process: Child | None = None
        self._clients: list[redis.Redis] = []

    def url(self, user: str = "", password: str = "") -> str:
        """`rediss://user:password@localhost:port/0`; without arguments, without user."""
        return f"rediss://{f'{user}:{password}@' if user else ''}localhost:{self.port}/0"

    def hub_url(self, role: HubRole) -> str:
        """The URL of one of the hub's users."""
        return self.url(hub_user(role), self.passwords[role])

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> SecureRedis:
        """Start the server and wait until it answers."""
        self._spawn()
        wait_for(self._answers, 15, f"redis to answer on port {self.port}")
        return self

    def start_as_replica(self, port: int) -> None:
        """Start as a replica of the server on another port of this machine."""
        self._options += ("--replicaof", f"localhost {port}")
        self.start()

    def _spawn(self) -> None:
        text = render_acl_file(hub_users(self.passwords)) + _ADMIN + "\n"
        acl: tuple[str, ...]
        if self._aclfile:
            file = self.dir / "users.acl"
            if not file.exists():
                file.write_text(text)
            acl = ("--aclfile", str(file))
        else:
            config = self.dir / "users.conf"
            config.write_text(text)
            acl = ("--include", str(config))
        self._process = Child(
            [
                find_tls_server(),
                *("--port", "0", "--tls-port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.dir)),
                *("--tls-cert-file", str(self.certificate.cert), "--tls-key-file", str(self.certificate.key)),
                *("--tls-ca-cert-file", str(self.ca.cert), "--tls-auth-clients", "optional"),
                *("--save", "", "--appendonly", "yes", "--appendfsync", "always", "--acllog-max-len", "500"),
                *acl,
                *self._options,
            ],
            self.dir / "log",
        )

    def _answers(self) -> bool:
        process = self._process
        if process is None or not process.is_running:
            raise RuntimeError(f"the server ended: {(self.dir / 'log').read_text(errors='replace')[-2000:]}")
        with contextlib.closing(self._connect("admin", ADMIN_PASSWORD)) as probe:
            try:
                return bool(probe.ping())
            except redis.RedisError:
                return False

    def client(self, user: str = "admin", password: str = ADMIN_PASSWORD) -> redis.Redis:
        """A client as this user; closed by `stop`."""
        client = self._connect(user, password)
        self._clients.append(client)
        return client

    def _connect(self, user: str, password: str) -> redis.Redis:
        return redis.Redis(
            host="localhost",
            port=self.port,
            username=user,
            password=password,
            ssl=True,
            ssl_ca_certs=str(self.ca.cert),
            decode_responses=True,
            socket_timeout=10,
            # What is refused is refused at once.
            retry=Retry(NoBackoff(), 0),
        )

    def kill(self) -> None:
        """SIGKILL, as a power cut would be."""
        self._end(signal.SIGKILL)

    def restart(self, certificate: Certificate | None = None) -> None:
        """Start again on the same port and in the same folder, if given with another certificate."""
        self._end(signal.SIGTERM)
        self.certificate = certificate or self.certificate
        self.start()

    def restart_blindly(self, certificate: Certificate) -> None:
        """Start again with a certificate that nobody accepts."""
        self._end(signal.SIGTERM)
        self.certificate = certificate
        self._spawn()

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

    def __enter__(self) -> SecureRedis:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
