"""Redis with a replica and three Sentinels, all with TLS and separate users, for a real failover."""

from __future__ import annotations

import contextlib
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import redis

from dsf.redisacl.rules import hub_user
from dsf.redisacl.users import hash_password
from tests.support.child import Child
from tests.support.redisserver import free_port
from tests.support.secureredis import SecureRedis, find_tls_server
from tests.support.tlsca import TestCa
from tests.support.wait import wait_for

#: The shipped example is the configuration under test.
_EXAMPLE = Path(__file__).parents[3] / "deploy" / "redis" / "sentinel.conf.example"

MASTER_NAME = "hub"
#: Passwords of the Sentinels themselves, and of the user as which processes query them.
SENTINEL_PASSWORD = "password-of-the-sentinels"
CLIENT_USER = "dsf-client"
CLIENT_PASSWORD = "password-of-those-who-ask"
#: Milliseconds after which a silent server counts as dead: not too few, for one without CPU for a while, and not too
#: many, for one that a test kills.
_PATIENT, _IMPATIENT = 20_000, 1500


class SentinelRedis:
    """A failover setup: `first` is the primary at the beginning and `second` its replica. A context manager."""

    def __init__(self, ca: TestCa) -> None:
        self.ca = ca
        self.dir = Path(tempfile.mkdtemp(prefix="dsf-sentinel-"))
        certificate = ca.issue("localhost", "127.0.0.1")
        tls = ("--tls-replication", "yes", "--replica-announce-ip", "localhost")
        self.first = SecureRedis(ca, certificate=certificate, options=(*tls, *self._replication()))
        self.second = SecureRedis(ca, certificate=certificate, options=(*tls, *self._replication(self.first.port)))
        self._certificate = certificate
        self._sentinels: dict[int, Child] = {}
        self._password_file = self.dir / "client-password"
        self._password_file.write_text(CLIENT_PASSWORD)

    def _replication(self, port: int | None = None) -> tuple[str, ...]:
        master_credentials = ("--masteruser", hub_user("replica"), "--masterauth", "password-of-replica")
        return master_credentials if port is None else (*master_credentials, "--replicaof", f"localhost {port}")

    @property
    def url(self) -> str:
        """`sentinel://localhost:port;sentinel://localhost:port;.../0`."""
        return ";".join(f"sentinel://localhost:{port}" for port in self._sentinels) + "/0"

    def settings(self) -> dict[str, object]:
        """Settings of every process that uses it, without user and password."""
        return {
            "redis_url": self.url,
            "redis_sentinel_master": MASTER_NAME,
            "redis_sentinel_tls": True,
            "redis_sentinel_username": CLIENT_USER,
            "redis_sentinel_password_file": self._password_file,
            "redis_ca_file": self.ca.cert,
        }

    def start(self) -> SentinelRedis:
        """Start all five and wait until the Sentinels agree."""
        self.first.start()
        self.second.start()
        for _ in range(3):
            self._start_sentinel()
        wait_for(self._is_settled, 30, "three Sentinels that know each other and the replica")
        return self

    def _start_sentinel(self) -> None:
        port = free_port()
        config = self.dir / f"{port}.conf"
        config.write_text(self._configuration(port))
        self._sentinels[port] = Child([find_tls_server(), str(config), "--sentinel"], self.dir / f"{port}.log")

    def _configuration(self, port: int) -> str:
        """deploy/redis/sentinel.conf.example with our places, ports and passwords."""
        text = _EXAMPLE.read_text()
        for example_text, replacement in {
            "tls-port 26379": f"tls-port {port}\nbind 127.0.0.1",
            "announce-port 26379": f"announce-port {port}",
            "sentinel-0.example.com": "localhost",
            "redis-0.example.com 6379": f"localhost {self.first.port}",
            "/etc/redis-tls/tls.crt": str(self._certificate.cert),
            "/etc/redis-tls/tls.key": str(self._certificate.key),
            "/etc/redis-tls/ca.crt": str(self.ca.cert),
            "dir /data": f"dir {self.dir}",
            "requirepass change-me-sentinels-0000": f"requirepass {SENTINEL_PASSWORD}",
            hash_password("change-me-sentinel-clients"): hash_password(CLIENT_PASSWORD),
            "auth-pass hub change-me-sentinel-00000": "auth-pass hub password-of-sentinel",
            "down-after-milliseconds hub 5000": f"down-after-milliseconds hub {_PATIENT}",
            "failover-timeout hub 60000": "failover-timeout hub 6000",
        }.items():
            assert text.count(example_text) == 1, f"{example_text!r} is not once in {_EXAMPLE.name}"
            text = text.replace(example_text, replacement)
        return text

    def _is_settled(self) -> bool:
        for port in self._sentinels:
            with contextlib.closing(self._sentinel(port)) as client:
                try:
                    state = client.sentinel_master(MASTER_NAME)
                except redis.RedisError:
                    return False
                if (state["num-other-sentinels"], state["num-slaves"]) != (2, 1) or state["flags"] not in (
                    "master",
                    {"master"},
                ):
                    return False
        return True

    @contextlib.contextmanager
    def administrators(self) -> Iterator[list[redis.Redis]]:
        """A client of each Sentinel that may do everything."""
        with contextlib.ExitStack() as stack:
            yield [stack.enter_context(contextlib.closing(self._sentinel(port))) for port in self._sentinels]

    def look(self, *, closely: bool) -> None:
        """Set whether the Sentinels soon treat a silent server as dead; at first they do not."""
        milliseconds = _IMPATIENT if closely else _PATIENT
        with self.administrators() as admins:
            for admin in admins:
                admin.execute_command("SENTINEL", "SET", MASTER_NAME, "down-after-milliseconds", milliseconds)

    def _sentinel(self, port: int) -> redis.Redis:
        return redis.Redis(
            host="localhost",
            port=port,
            password=SENTINEL_PASSWORD,
            ssl=True,
            ssl_ca_certs=str(self.ca.cert),
            decode_responses=True,
            socket_timeout=10,
        )

    def in_step(self) -> bool:
        """True if the replica has all data of the primary."""
        first_replication, other = (server.client().info("replication") for server in (self.first, self.second))
        return bool(first_replication["master_repl_offset"] == other.get("slave_repl_offset"))

    def stop(self) -> None:
        """End everything."""
        for child in self._sentinels.values():
            child.signal(signal.SIGKILL)
            child.wait()
        self.first.stop()
        self.second.stop()
        shutil.rmtree(self.dir, ignore_errors=True)

    def __enter__(self) -> SentinelRedis:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *_: object) -> None:
        self.stop()
