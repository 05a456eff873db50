"""A cluster's credential fills Redis outside of its mailbox; the hub controller frees the memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import redis
from redis.exceptions import NoPermissionError, OutOfMemoryError

from dsf import keys
from dsf.redisacl.clusterusers import ClusterUsers
from dsf.redisacl.memoryrelief import MOST_CONNECTIONS, MemoryRelief
from dsf.redisacl.rules import cluster_user, hub_user
from dsf.store.registry import ClusterRecord, Registry
from tests.integration.security.fleet import MASTER
from tests.support.secureredis import SecureRedis
from tests.support.tlsca import TestCa

_MEGABYTE = 1024 * 1024
_LIMIT = 64 * _MEGABYTE


class _Site:
    """A Redis with little memory, its hub, and two clusters: a thief has the credential of `c1`."""

    def __init__(self, server: SecureRedis) -> None:
        self.server = server
        self.hub = server.client(hub_user("controller"), server.passwords["controller"])
        self.users = ClusterUsers(self.hub, MASTER)
        self.users.sync({"c1": [1], "c2": [1]})
        for name in ("c1", "c2"):
            Registry(self.hub).put_cluster(ClusterRecord(name=name, key_ids=(1,)))
        self.relief = MemoryRelief(self.hub)

    def client(self, cluster: str) -> redis.Redis:
        return self.server.client(cluster_user(cluster), self.users.password(cluster, 1))

    def write_result(self) -> None:
        """The other cluster's agent sends a result. Raises OutOfMemoryError."""
        self.client("c2").set(keys.mail_slot("c2", 0), "a result")


@pytest.fixture
def site(ca: TestCa) -> Iterator[_Site]:
    with SecureRedis(ca, options=("--maxmemory", str(_LIMIT), "--maxmemory-policy", "noeviction")) as server:
        yield _Site(server)


def test_logs_of_redis_filled_by_refused_commands_are_emptied(site: _Site) -> None:
    thief = site.client("c1")
    for number in range(70):
        with pytest.raises((NoPermissionError, OutOfMemoryError)):
            thief.set(f"{number}".rjust(_MEGABYTE), "x")
    with pytest.raises(OutOfMemoryError):
        site.write_result()
    assert "ACL LOG 1" in site.relief.relieve()
    site.write_result()
    assert len(site.server.client().acl_log()) < 5


def test_logs_of_redis_filled_by_slow_commands_are_emptied(site: _Site) -> None:
    site.server.client().config_set("slowlog-log-slower-than", 0)
    thief = site.client("c1")
    thief.execute_command("CLIENT SETNAME", "x" * _MEGABYTE)
    for _ in range(70):
        thief.ping()
    thief.execute_command("CLIENT SETNAME", "")
    with pytest.raises(OutOfMemoryError):
        site.write_result()
    assert site.relief.relieve()
    site.write_result()


def test_connections_whose_names_fill_redis_are_closed_and_their_cluster_is_named(site: _Site) -> None:
    thieves = [site.client("c1") for _ in range(MOST_CONNECTIONS + 15)]
    for thief in thieves:
        thief.execute_command("CLIENT SETNAME", "x" * _MEGABYTE)
    with pytest.raises(OutOfMemoryError):
        site.write_result()
    assert f"c1 ({len(thieves)})" in site.relief.relieve()
    site.write_result()
    # People read it also when the memory is free again.
    assert "c1 (" in site.relief.relieve()


def test_connections_stay_while_data_fills_redis(site: _Site) -> None:
    agent = site.client("c2")
    agent.ping()
    connection_id = _newest_connection(site, "c2")
    _fill(site.server.client())
    # Closing them is tried once.
    assert site.relief.relieve() == ""
    agent.ping()
    connection_id, before = _newest_connection(site, "c2"), connection_id
    assert connection_id != before
    assert site.relief.relieve() == ""
    agent.ping()
    assert _newest_connection(site, "c2") == connection_id


def test_nothing_is_emptied_while_memory_is_free(site: _Site) -> None:
    with pytest.raises(NoPermissionError):
        site.client("c1").set("foreign", "x")
    assert site.relief.relieve() == ""
    assert len(site.server.client().acl_log()) == 1


def _fill(admin: redis.Redis) -> None:
    with contextlib.suppress(OutOfMemoryError):
        for number in range(100):
            admin.set(f"data {number}", "x" * _MEGABYTE)


def _newest_connection(site: _Site, cluster: str) -> str:
    connections = site.server.client().client_list()
    return str([entry["id"] for entry in connections if entry["user"] == cluster_user(cluster)][-1])
