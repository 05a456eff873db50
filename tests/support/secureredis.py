"""A real Redis as in production: TLS only, the default user off, our users from an ACL file."""

from __future__ import annotations

import os
import signal

import redis

from dsf.redisacl.rules import hub_roles, hub_user
from dsf.redisacl.users import hash_password, make_hub_users, render_acl_file
from dsf.redislink.connection import TlsConnection
from tests.support import programs
from tests.support.redisserver import AT_ONCE, Server
from tests.support.tlsca import Certificate, TestCa
from tests.support.wait import PATIENCE

ADMIN_PASSWORD = "test-admin-password"
_ADMIN = f"user admin on #{hash_password(ADMIN_PASSWORD)} ~* &* +@all"


def find_tls_server() -> str:
    """Return a server program with TLS: on PATH, otherwise Debian's, which is fetched if needed."""
    return os.environ.get("DSF_TEST_REDIS_SERVER") or str(programs.find("redis-server"))


def path_with_redis() -> str:
    """Return PATH with the folders of redis-server and redis-cli in front, as in Redis' image."""
    programs_of_image = ("redis-server", "redis-cli")
    folders = dict.fromkeys(str(programs.find(name).parent) for name in programs_of_image)
    return os.pathsep.join((*folders, os.environ["PATH"]))


class SecureRedis(Server):
    """A Redis server with the hub's users, whose passwords are in `passwords`. The user `admin` has all rights."""

    def __init__(
        self,
        ca: TestCa,
        *,
        certificate: Certificate | None = None,
        passwords: dict[str, str] | None = None,
        aclfile: bool = True,
        options: tuple[str, ...] = (),
    ) -> None:
        super().__init__()
        # Looked up once, because another program may be unable to read the data.
        self._program = find_tls_server()
        self.ca = ca
        self.passwords = passwords or {role: f"password-of-{role}" for role in hub_roles()}
        self.certificate = certificate or ca.issue("localhost", "127.0.0.1")
        self._aclfile = aclfile
        self._options = options

    def url(self, user: str = "", password: str = "") -> str:
        """Return `rediss://user:password@localhost:port/0`; by default without user."""
        return f"rediss://{f'{user}:{password}@' if user else ''}localhost:{self.port}/0"

    def hub_url(self, role: str) -> str:
        """Return the URL of one of the hub's users."""
        return self.url(hub_user(role), self.passwords[role])

    def start_as_replica(self, port: int) -> None:
        """Start as a replica of the server on another port of this machine."""
        self._options += ("--replicaof", f"localhost {port}")
        self.start()

    def _command(self) -> list[str]:
        text = render_acl_file(make_hub_users(self.passwords)) + _ADMIN + "\n"
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
        return [
            self._program,
            *("--port", "0", "--tls-port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.dir)),
            *("--tls-cert-file", str(self.certificate.cert), "--tls-key-file", str(self.certificate.key)),
            *("--tls-ca-cert-file", str(self.ca.cert), "--tls-auth-clients", "optional"),
            *("--save", "", "--appendonly", "yes", "--appendfsync", "always", "--acllog-max-len", "500"),
            *acl,
            *self._options,
        ]

    def _probe(self) -> redis.Redis:
        return self._connect("admin", ADMIN_PASSWORD)

    def client(self, user: str = "admin", password: str = ADMIN_PASSWORD) -> redis.Redis:
        """Return a client as this user; closed by `stop`."""
        return self._register(self._connect(user, password))

    def _connect(self, user: str, password: str) -> redis.Redis:
        pool = redis.ConnectionPool(
            connection_class=TlsConnection,
            host="localhost",
            port=self.port,
            username=user,
            password=password,
            ssl_ca_certs=str(self.ca.cert),
            decode_responses=True,
            socket_timeout=PATIENCE,
            retry=AT_ONCE,
        )
        return redis.Redis.from_pool(pool)

    def restart(self, certificate: Certificate | None = None) -> None:
        """Start again on the same port and in the same folder, with another certificate if given."""
        self.certificate = certificate or self.certificate
        super().restart()

    def restart_with_untrusted(self, certificate: Certificate) -> None:
        """Start again with a certificate that clients do not accept."""
        self._end(signal.SIGTERM)
        self.certificate = certificate
        self._spawn()
