"""A cluster's credential fills or blocks Redis; the hub controller frees its memory and switches the credential off."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from redis.exceptions import AuthenticationError, NoPermissionError, OutOfMemoryError

from dsf import keys
from dsf.hub.rediswatch import RedisWatch
from dsf.process.hubclock import HubClock
from dsf.process.outage import Outage
from dsf.redisacl import misuse
from dsf.redisacl.clusterusers import ClusterUsers
from dsf.redisacl.misuse import MAX_AGENT_CONNECTIONS, MisuseWatch
from dsf.redisacl.rules import cluster_user, hub_user
from dsf.settings import Settings
from dsf.store.agents import AgentKeys, KeyRequest
from dsf.store.registry import ClusterRecord, Registry
from dsf.store.server import CREDENTIALS, MEMORY, read_problems
from tests.integration.security.fleet import MASTER
from tests.support.secureredis import SecureRedis
from tests.support.tlsca import TestCa
from tests.support.wait import wait_for

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
        self.revoked: list[str] = []
        self.watch = MisuseWatch(self.hub, lambda clusters, _: self.revoked.extend(clusters))

    def client(self, cluster: str) -> redis.Redis:
        return self.server.client(cluster_user(cluster), self.users.derive_password(cluster, 1))

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
    site.watch.check()
    assert "ACL LOG 1" in site.watch.get_problems()[MEMORY]
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
    site.watch.check()
    assert MEMORY in site.watch.get_problems()
    site.write_result()


def test_connections_whose_names_fill_redis_are_closed_and_their_cluster_is_revoked(site: _Site) -> None:
    thieves = [site.client("c1") for _ in range(MAX_AGENT_CONNECTIONS + 15)]
    for thief in thieves:
        thief.execute_command("CLIENT SETNAME", "x" * _MEGABYTE)
    with pytest.raises(OutOfMemoryError):
        site.write_result()
    # While the buffers of the connections are large too, the second check counts.
    wait_for(lambda: site.watch.check() or site.revoked, message="a revocation")
    assert f"c1 ({len(thieves)} connections" in site.watch.get_problems()[CREDENTIALS]
    assert site.revoked == ["c1"]
    site.write_result()


def test_credential_whose_commands_have_many_keys_is_switched_off(site: _Site) -> None:
    thief = site.client("c1")
    _send_keys(thief, 1_500_000)
    admin = site.server.client()
    wait_for(lambda: admin.info("memory")["mem_clients_normal"] > 20 * _MEGABYTE, message="Redis to read the command")
    site.watch.check()
    assert site.watch.is_urgent
    # They may be large results of many agents, for a moment.
    assert not site.revoked
    wait_for(lambda: site.watch.check() or site.revoked, message="a revocation")
    assert site.revoked == ["c1"]
    # Other checks of Redis are not delayed any longer.
    assert not site.watch.is_urgent
    with pytest.raises(redis.ConnectionError):
        thief.ping()
    with pytest.raises(AuthenticationError):
        site.client("c1").ping()
    site.write_result()
    # With new credentials the user is on again.
    site.users.ensure("c1", [2])
    assert site.server.client(cluster_user("c1"), site.users.derive_password("c1", 2)).ping()


def test_credential_with_many_connections_is_switched_off(site: _Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(misuse, "_HUB_CONNECTIONS", MAX_AGENT_CONNECTIONS)
    thieves = [site.client("c1") for _ in range(2 * MAX_AGENT_CONNECTIONS)]
    for thief in thieves:
        thief.ping()
    site.watch.check()
    assert site.revoked == ["c1"]
    with pytest.raises(AuthenticationError):
        site.client("c1").ping()


def test_memory_that_a_thief_frees_meanwhile_is_not_counted_for_another_cluster(
    site: _Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin, innocent = site.server.client(), site.client("c1")
    thieves = [site.client("c2") for _ in range(MAX_AGENT_CONNECTIONS + 15)]
    for thief in thieves:
        thief.execute_command("CLIENT SETNAME", "x" * _MEGABYTE)
    assert innocent.ping()

    class ClustersReadLate(Registry):
        def read_clusters(self) -> dict[str, ClusterRecord]:
            for thief in thieves:
                thief.close()
            wait_for(lambda: admin.info("memory")["used_memory"] < _LIMIT / 2, message="the thief's connections to end")
            return super().read_clusters()

    monkeypatch.setattr(misuse, "Registry", ClustersReadLate)
    for _ in range(2):
        site.watch.check()
    assert not site.revoked
    assert site.client("c1").ping()


def test_credentials_of_agents_that_send_large_results_stay(site: _Site) -> None:
    agents = [site.client(cluster) for cluster in ("c1", "c2") for _ in range(12)]
    for agent in agents:
        _send(agent, b"*3\r\n$3\r\nSET\r\n", b"$2097152\r\n" + b"x" * 2_000_000)
    site.watch.check()
    site.watch.check()
    assert not site.revoked
    assert site.client("c1").ping()


def test_connections_without_login_are_closed_and_those_of_agents_stay(
    site: _Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(misuse, "_HUB_CONNECTIONS", MAX_AGENT_CONNECTIONS)
    agent = site.client("c2")
    agent.ping()
    connection_id = _newest_connection(site, "c2")
    admin = site.server.client()
    with contextlib.ExitStack() as strangers:
        for _ in range(2 * MAX_AGENT_CONNECTIONS):
            strangers.enter_context(socket.create_connection(("localhost", site.server.port)))
        wait_for(
            lambda: _count_connections(admin) > 2 * MAX_AGENT_CONNECTIONS, message="Redis to accept the connections"
        )
        site.watch.check()
        assert _count_connections(admin) < MAX_AGENT_CONNECTIONS
    assert _newest_connection(site, "c2") == connection_id
    assert not site.revoked


def test_connections_of_the_hub_stay_where_it_is_the_default_user(
    redis_client: redis.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(misuse, "_HUB_CONNECTIONS", 0)
    with contextlib.closing(redis.Redis.from_url(redis_url)) as results:
        connection_id = results.client_id()
        MisuseWatch(redis_client).check()
        assert results.client_id() == connection_id


def test_hub_revokes_a_misused_credential(
    site: _Site, settings_factory: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsf.hub.rediswatch._CHECK_SECONDS", 0.1)
    monkeypatch.setattr("dsf.hub.rediswatch._URGENT_CHECK_SECONDS", 0.1)
    settings = settings_factory(redis_url=site.server.hub_url("controller"), redis_manage_users=True)
    watch = RedisWatch(site.hub, settings, HubClock(site.hub), Outage("Redis"), pytest.fail)
    # A check during an incomplete command closes its connection, and the thief reconnects.
    monkeypatch.setattr(misuse, "_PAUSE_SECONDS", 0.0)
    admin = site.server.client()
    assert admin.ping()

    def read_requests_after_an_attack() -> dict[str, KeyRequest]:
        # The connection is closed before all is sent, and so is a new one of the hub that has not yet logged in.
        with contextlib.suppress(OSError, redis.RedisError):
            _send_keys(site.client("c1"), 1_500_000)
        with contextlib.suppress(redis.ConnectionError):
            return AgentKeys(site.hub).read_requests()
        return {}

    def is_reported() -> bool:
        with contextlib.suppress(redis.ConnectionError):
            return CREDENTIALS in read_problems(admin)
        return False

    watch.start(MASTER)
    try:
        request = wait_for(read_requests_after_an_attack, message="a request for new credentials")["c1"]
        assert (request.action, request.by) == ("revoke", "the hub")
        wait_for(is_reported, message="the problem to be reported")
    finally:
        watch.stop()


def test_connections_stay_while_data_fills_redis(site: _Site) -> None:
    agent = site.client("c2")
    agent.ping()
    connection_id = _newest_connection(site, "c2")
    _fill(site.server.client())
    # Closing them is tried once.
    site.watch.check()
    assert not site.watch.get_problems()
    agent.ping()
    connection_id, before = _newest_connection(site, "c2"), connection_id
    assert connection_id != before
    site.watch.check()
    assert not site.watch.get_problems()
    agent.ping()
    assert _newest_connection(site, "c2") == connection_id


def test_nothing_is_emptied_while_memory_is_free(site: _Site) -> None:
    with pytest.raises(NoPermissionError):
        site.client("c1").set("foreign", "x")
    site.watch.check()
    assert not site.watch.get_problems()
    assert len(site.server.client().acl_log()) == 1


def _send(client: redis.Redis, *parts: bytes) -> None:
    """Send bytes on a connection of this client, which stays open."""
    connection: Any = client.connection_pool.get_connection()
    for part in parts:
        connection._sock.sendall(part)
    client.connection = connection  # type: ignore[assignment]


def _send_keys(client: redis.Redis, count: int) -> None:
    """Send a command with this many keys, but for its end."""
    _send(client, b"*%d\r\n$5\r\nBRPOP\r\n" % (count + 3), b"$8\r\nspoke.c1\r\n" * count)


def _count_connections(admin: redis.Redis) -> int:
    return int(admin.info("clients")["connected_clients"])


def _fill(admin: redis.Redis) -> None:
    with contextlib.suppress(OutOfMemoryError):
        for number in range(100):
            admin.set(f"data {number}", "x" * _MEGABYTE)


def _newest_connection(site: _Site, cluster: str) -> str:
    connections = site.server.client().client_list()
    return str([entry["id"] for entry in connections if entry["user"] == cluster_user(cluster)][-1])
