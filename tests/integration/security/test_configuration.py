"""A real Redis with deploy/redis/redis.conf and deploy/redis/users.acl.example."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
import yaml
from redis.exceptions import NoPermissionError

from dsf.redisacl.clusterusers import ClusterUsers
from dsf.redisacl.rules import hub_user
from tests.integration.security.fleet import MASTER
from tests.support.child import Child
from tests.support.redisserver import AT_ONCE, free_port
from tests.support.secureredis import find_tls_server
from tests.support.tlsca import TestCa
from tests.support.wait import wait_for

FOLDER = Path(__file__).parents[3] / "deploy" / "redis"


class Configured:
    """The server, in a folder instead of a pod."""

    def __init__(self, folder: Path, ca: TestCa) -> None:
        self.port = free_port()
        self.ca = ca
        self._folder = folder
        certificate = ca.issue("localhost")
        shutil.copy(certificate.cert, folder / "tls.crt")
        shutil.copy(certificate.key, folder / "tls.key")
        shutil.copy(ca.cert, folder / "ca.crt")
        shutil.copy(FOLDER / "users.acl.example", folder / "users.acl")
        text = (FOLDER / "redis.conf").read_text().replace("/etc/redis-tls", str(folder)).replace("/data", str(folder))
        text = text.replace("bind * -::*", "bind 127.0.0.1").replace("6379", str(self.port))
        # A test may not open that many files.
        (folder / "redis.conf").write_text(text.replace("maxclients 20000", "maxclients 200"))
        secret = next(yaml.safe_load_all((FOLDER / "secrets.example.yaml").read_text()))
        self.passwords: dict[str, str] = secret["stringData"]

    def start(self) -> None:
        self._process = Child([find_tls_server(), str(self._folder / "redis.conf")], self._folder / "log")
        wait_for(self._answers, 15, "redis to answer")

    def _answers(self) -> bool:
        assert self._process.is_running, self._process.tail()
        with contextlib.closing(self.client("operator", "wrong")) as probe:
            try:
                return bool(probe.ping())
            except redis.AuthenticationError:
                return True
            except redis.ConnectionError:
                return False

    def client(self, user: str, password: str) -> redis.Redis:
        return redis.Redis(
            host="localhost",
            port=self.port,
            username=user,
            password=password,
            ssl=True,
            ssl_ca_certs=str(self.ca.cert),
            decode_responses=True,
            retry=AT_ONCE,
        )

    def kill(self) -> None:
        self._process.kill()


@pytest.fixture
def configured(tmp_path: Path, ca: TestCa) -> Iterator[Configured]:
    server = Configured(tmp_path, ca)
    server.start()
    yield server
    server.kill()


def test_data_and_users_survive_a_crash(configured: Configured) -> None:
    with contextlib.closing(configured.client(hub_user("hub"), configured.passwords["hub"])) as hub:
        users = ClusterUsers(hub, MASTER)
        users.sync({"c1": [1]})
        with contextlib.closing(configured.client("spoke-c1", users.derive_password("c1", 1))) as agent:
            agent.set("hub.mail.c1.0", "a result")
        with hub.pipeline(transaction=True) as pipe:
            pipe.hset("dsf:scorers", "a", "1")
            pipe.hset("dsf:clusters", "b", "2")
            pipe.execute()
    # Redis writes to disk once a second.
    wait_for(lambda: "dsf:clusters" in _log(configured), 5)
    configured.kill()
    configured.start()
    with contextlib.closing(configured.client(hub_user("hub"), configured.passwords["hub"])) as hub:
        assert hub.hgetall("dsf:scorers") == {"a": "1"}
        assert hub.hgetall("dsf:clusters") == {"b": "2"}
        assert not ClusterUsers(hub, MASTER).sync({"c1": [1]})


def test_single_command_cannot_fill_the_memory(configured: Configured) -> None:
    with contextlib.closing(configured.client(hub_user("hub"), configured.passwords["hub"])) as hub:
        users = ClusterUsers(hub, MASTER)
        users.sync({"c1": [1]})
    with contextlib.closing(configured.client("spoke-c1", users.derive_password("c1", 1))) as agent:
        agent.set("hub.mail.c1.0", "x" * 6_000_000)
        with pytest.raises((redis.ConnectionError, redis.ResponseError)):
            agent.set("hub.mail.c1.1", "x" * 20_000_000)
        assert agent.exists("hub.mail.c1.0", "hub.mail.c1.1") == 1


def _log(configured: Configured) -> str:
    return "".join(path.read_text(errors="replace") for path in configured._folder.glob("appendonlydir/*.incr.aof"))


def test_refused_and_slow_commands_leave_little_in_memory(configured: Configured) -> None:
    """ACL LOG and SLOWLOG keep long texts of clients, which no limit of memory for clients counts."""
    with contextlib.closing(configured.client(hub_user("hub"), configured.passwords["hub"])) as hub:
        users = ClusterUsers(hub, MASTER)
        users.sync({"c1": [1]})
        before = int(hub.info("memory")["used_memory"])
        with contextlib.closing(configured.client("spoke-c1", users.derive_password("c1", 1))) as agent:
            for number in range(60):
                with pytest.raises(NoPermissionError):
                    agent.set(f"{number}".rjust(4_000_000), "x")
        assert int(hub.info("memory")["used_memory"]) - before < 50_000_000
    text = (FOLDER / "redis.conf").read_text()
    assert "\nslowlog-max-len 8\n" in text
