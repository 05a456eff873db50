"""Commands that are denied to a thief of a credential."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

import pytest
import redis
from redis.exceptions import NoPermissionError

from dsf import keys
from dsf.redisacl.clusterusers import ClusterUsers
from dsf.redisacl.rules import cluster_user, hub_roles, hub_user
from tests.integration.security.fleet import MASTER
from tests.support.secureredis import SecureRedis

#: With the credential of c1.
SPOKE_FORBIDDEN = """LPUSH spoke.c1 x|LPUSH hub.results x|RPUSH hub.results x|SET hub.mail.c10.0 x
    PUBLISH hub.mail.c10 0
    LPUSH spoke.c10 x|LPUSH spoke.c2 x|LPUSH spoke.c x|LPUSH spoke.* x|LPUSH spoke.c1.x x|LPUSH spoke. x
    RPUSH spoke.c1 x|BRPOP spoke.c10 1|BRPOP spoke.c1 spoke.c10 1|RPOP spoke.c10|LLEN spoke.c10
    LRANGE spoke.c10 0 -1|LRANGE spoke.c1 0 -1|DEL spoke.c1|DEL spoke.c10|RENAME spoke.c1 spoke.c10
    COPY spoke.c1 spoke.c10|LMOVE hub.results spoke.c1 LEFT LEFT|RPOPLPUSH hub.results spoke.c1
    BLMOVE spoke.c1 hub.results LEFT LEFT 1|SORT hub.results STORE spoke.c1|BRPOP hub.results 1|RPOP hub.results
    LPOP hub.results|LRANGE hub.results 0 -1|LINDEX hub.results 0|LTRIM hub.results 0 0|LSET hub.results 0 x
    DEL hub.results|UNLINK hub.results|EXPIRE hub.results 1|DUMP hub.results|TYPE hub.results
    OBJECT ENCODING hub.results|HGETALL dsf:scorers|HGETALL dsf:clusters|HGETALL dsf:schedule:entries
    HSET dsf:schedule:overrides x y|ZADD dsf:schedule:due 0 c1/s|HGETALL dsf:pair:c1/sample
    HGETALL dsf:pair:c10/sample|HSET dsf:pair:c10/sample score x|SET dsf:schedule:lock x|LPUSH dsf:hub:wake 1
    GET anything|SET anything x|KEYS *|SCAN 0|RANDOMKEY|DBSIZE|INFO|CONFIG GET requirepass|CONFIG SET dir /tmp
    CONFIG REWRITE|EVAL "return 1" 0|EVALSHA e0e1f9fabfc9d4800c877a703b823ac0578ff8db 0|EVAL_RO "return 1" 0
    SCRIPT LOAD "return 1"|SCRIPT FLUSH|FUNCTION LIST|FCALL f 0|ACL LIST|ACL USERS|ACL WHOAMI|ACL GETUSER spoke-c10
    ACL SETUSER spoke-c1 on +@all ~*|ACL SETUSER evil on nopass +@all ~*|ACL DELUSER spoke-c10|ACL LOG|MONITOR
    CLIENT LIST|CLIENT ID|CLIENT INFO|CLIENT KILL USER spoke-c10|CLIENT PAUSE 1000|CLIENT NO-EVICT on
    CLIENT TRACKING on|CLIENT REPLY off|FLUSHALL|FLUSHDB|SWAPDB 0 1|SELECT 1|MOVE spoke.c1 1|SAVE|BGSAVE
    BGREWRITEAOF|SHUTDOWN NOSAVE|SLOWLOG GET|LATENCY LATEST|MEMORY USAGE hub.results|MODULE LIST
    REPLICAOF 127.0.0.1 6379|PSYNC x 0|SYNC|ROLE|MIGRATE 127.0.0.1 6379 spoke.c1 0 1000
    SUBSCRIBE /0.celeryev/worker.heartbeat|PSUBSCRIBE /0.celeryev/*|PSUBSCRIBE *|SUBSCRIBE /0.celery.pidbox
    PSUBSCRIBE /0.celery.pidbox|SSUBSCRIBE x|PUBLISH /0.celery.pidbox x|PUBLISH anything x|PUBSUB CHANNELS|MULTI
    WATCH hub.results|XADD s * a b|XADD dsf:changes * change x|XRANGE dsf:changes - +|XREVRANGE dsf:changes + -
    XREAD STREAMS dsf:changes 0|XLEN dsf:changes|XTRIM dsf:changes MAXLEN 0|DEL dsf:changes|GET dsf:changes:told
    COMMAND COUNT|WAIT 0 0|ECHO x"""

#: Commands that would exceed the role of each of the hub's users.
HUB_FORBIDDEN: dict[str, str] = {
    "beat": """BRPOP spoke.c1 1|LRANGE hub.results 0 -1|LPUSH hub.results x|HSET dsf:pair:c1/s score x
        HSET dsf:scorers x y|HSET dsf:schedule:entries x y|HSET dsf:schedule:overrides x y|ACL LIST|CONFIG GET *
        EVAL 'return 1' 0|KEYS *|XADD dsf:changes * a b|XREVRANGE dsf:changes + -""",
    # No tick can be made from a result, whatever is in it.
    "results": """LPUSH spoke.c1 x|RPUSH spoke.c1 x|LMOVE hub.results spoke.c1 LEFT LEFT|BRPOP spoke.c1 1|LLEN spoke.c1
        HSET dsf:scorers x y|HSET dsf:clusters x y|HSET dsf:schedule:entries x y|ZADD dsf:schedule:due 0 x|ACL LIST
        PSUBSCRIBE /0.celeryev/*|PUBLISH /0.celery.pidbox x|EVAL 'return 1' 0|CONFIG GET *|KEYS *
        XADD dsf:changes * a b|XREVRANGE dsf:changes + -""",
    "flower": """LPUSH spoke.c1 x|LPUSH hub.results x|LRANGE spoke.c1 0 -1|BRPOP spoke.c1 1|HGETALL dsf:scorers
        PUBLISH /0.celeryev/x x|PUBLISH /0.celery.pidbox x|PSUBSCRIBE *|HGETALL dsf:pair:c1/s|SCRIPT LOAD x|ACL LIST
        KEYS *|XADD dsf:changes * a b|XREVRANGE dsf:changes + -""",
    # A message that Flower pushes can only start a cycle.
    "flower-tasks": """RPUSH spoke.c1 x|LPUSH hub.results x|LRANGE spoke.c1 0 -1|BRPOP spoke.c1 1|HGETALL dsf:scorers
        PUBLISH /0.celeryev/x x|PSUBSCRIBE *|HGETALL dsf:pair:c1/s|SCRIPT LOAD x|ACL LIST|KEYS *
        XADD dsf:changes * a b|XREVRANGE dsf:changes + -""",
    # The optimizer sends ticks. The optimizer reads their scores from the hub's objects on the API server.
    "optimizer": """LRANGE spoke.c1 0 -1|BRPOP spoke.c1 1|RPUSH spoke.c1 x|DEL spoke.c1|LPUSH hub.results x
        LLEN hub.results|LRANGE hub.results 0 -1|HGETALL dsf:pair:c1/s|HGET dsf:pair:c1/s score
        HSET dsf:pair:c1/s score x|HDEL dsf:pair:c1/s score|LRANGE dsf:history:c1/s 0 -1|HSET dsf:scorers x y
        HSET dsf:clusters x y|HSET dsf:schedule:entries x y|HDEL dsf:schedule:entries x|HSET dsf:schedule:overrides x y
        ZADD dsf:schedule:due 0 x|ZREM dsf:runs:open x|ZRANGE dsf:runs:open 0 -1|DEL dsf:hub:wake
        XREVRANGE dsf:changes + -|XDEL dsf:changes 1-1|XTRIM dsf:changes MAXLEN 0|DEL dsf:changes
        HGETALL dsf:clusters:keys|HGETALL dsf:clusters:requests|PUBLISH /0.celeryev/x x|PSUBSCRIBE /0.celeryev/*
        ACL LIST|ACL SETUSER x|EVAL 'return 1' 0|CONFIG GET *|CLIENT LIST|FLUSHALL|MONITOR|KEYS *|SHUTDOWN""",
    # The hub is an admin of Redis: its rules only prevent mistaken use of commands that no service needs.
    "hub": """FLUSHALL|CONFIG GET *|EVAL 'return 1' 0|MONITOR|KEYS *|SHUTDOWN|SET anything x|LPUSH hub.queue x
        SELECT 1""",
    # The controller executes acts of annotations: it sends ticks and records changes.
    "controller": """LRANGE spoke.c1 0 -1|LPUSH hub.results x|LRANGE hub.results 0 -1|HSET dsf:pair:c1/s score x
        FLUSHALL|CONFIG GET *|EVAL 'return 1' 0|MONITOR|KEYS *|SHUTDOWN|SLOWLOG GET|DEL dsf:changes""",
    # The page acts for users: overrides, runs, its own sessions.
    "web": """LRANGE hub.results 0 -1|LPUSH hub.results x|BRPOP spoke.c1 1|LRANGE spoke.c1 0 -1|RPUSH spoke.c1 x
        HSET dsf:schedule:entries x y|HDEL dsf:schedule:entries x|DEL dsf:schedule:overrides|HSET dsf:pair:c1/s score x
        HSET dsf:scorers x y|HSET dsf:clusters x y|HSET dsf:clusters:requests x y|PUBLISH /0.celery.pidbox x
        ACL LIST|ACL SETUSER x|EVAL 'return 1' 0|CONFIG GET *|FLUSHALL|MONITOR|KEYS *|SHUTDOWN|CLIENT LIST
        XDEL dsf:changes 1-1|XTRIM dsf:changes MAXLEN 0|DEL dsf:changes|SET dsf:changes:told x""",
    "operator": """LRANGE hub.results 0 -1|LPUSH hub.results x|BRPOP spoke.c1 1|LRANGE spoke.c1 0 -1
        HSET dsf:schedule:entries x y|HDEL dsf:schedule:entries x|HSET dsf:scorers x y|HSET dsf:pair:c1/s score x
        ACL LIST|ACL SETUSER x|CONFIG GET *|FLUSHALL|MONITOR|KEYS *|SHUTDOWN|CLIENT LIST
        XDEL dsf:changes 1-1|XTRIM dsf:changes MAXLEN 0|DEL dsf:changes|SET dsf:changes:told x""",
    "sentinel": "GET x|LRANGE hub.results 0 -1|SHUTDOWN|ACL LIST|CONFIG SET dir /tmp|KEYS *",
    "replica": "GET x|LRANGE hub.results 0 -1|SHUTDOWN|ACL LIST|CONFIG GET *|KEYS *",
}


def commands_of(table: str) -> list[str]:
    """Return the commands of a table, between which there is `|` or the end of a line."""
    return re.split(r"[|\n] *", table)


def not_refused(client: redis.Redis, commands: Iterable[str]) -> list[str]:
    """Return the commands that are *not* denied for want of a right."""
    allowed = []
    for command in commands:
        # Commands of another server version are unknown, which is as good as refused.
        try:
            client.execute_command(*shlex.split(command))
        except NoPermissionError:
            continue
        except redis.ResponseError as error:
            if str(error).startswith("unknown "):
                continue
            allowed.append(f"{command}: {error}")
        else:
            allowed.append(command)
    return allowed


def test_cluster_user_is_limited_to_its_own_work(secure_redis: SecureRedis) -> None:
    users = ClusterUsers(secure_redis.client(hub_user("hub"), secure_redis.passwords["hub"]), MASTER)
    users.sync({"c1": [1], "c10": [1]})
    admin = secure_redis.client()
    admin.lpush("spoke.c10", "not yours")
    admin.lpush("hub.results", "not yours either")
    admin.hset("dsf:pair:c10/sample", "score", "theirs")
    before = admin.dbsize(), admin.acl_list()
    thief = secure_redis.client(cluster_user("c1"), users.derive_password("c1", 1))
    forbidden = commands_of(SPOKE_FORBIDDEN)
    assert len(forbidden) >= 100
    assert not_refused(thief, forbidden) == []
    assert (admin.dbsize(), admin.acl_list()) == before
    assert admin.acl_log()
    admin.acl_log_reset()
    # Its work:
    assert thief.ping()
    admin.lpush("spoke.c1", "a tick")
    assert thief.brpop(["spoke.c1"], timeout=1) == ("spoke.c1", "a tick")
    assert thief.set(keys.mail_slot("c1", 0), "a result")
    assert thief.exists(keys.mail_slot("c1", 0)) == 1
    thief.publish("/0.celeryev/task.received", "{}")
    assert admin.acl_log() == []


@pytest.mark.parametrize("role", HUB_FORBIDDEN)
def test_hub_users_have_only_needed_rights(secure_redis: SecureRedis, role: str) -> None:
    admin = secure_redis.client()
    admin.lpush("hub.results", "x")
    admin.lpush("spoke.c1", "x")
    client = secure_redis.client(hub_user(role), secure_redis.passwords[role])
    assert not_refused(client, commands_of(HUB_FORBIDDEN[role])) == []
    # A script does not circumvent the rules: Redis checks each of its commands.
    if role in ("beat", "results", "optimizer", "hub", "controller", "operator", "web"):
        commands = ["'SET', 'anything', 'x'", "'LPUSH', 'hub.queue', 'x'", "'DEL', 'hub.results'"]
        for command in commands[: 2 if role == "hub" else 3]:
            script = client.register_script(f"return redis.call({command})")
            with pytest.raises(redis.RedisError, match=r"can't (access|run)"):
                script()


def test_forbidden_commands_cover_all_users() -> None:
    assert {*HUB_FORBIDDEN} == {*hub_roles()}


def test_connection_without_a_password_is_denied(secure_redis: SecureRedis) -> None:
    for user, password in (("default", ""), ("default", "x"), ("spoke-c1", ""), ("spoke-c1", "wrong"), ("dsf-hub", "")):
        with pytest.raises(redis.AuthenticationError):
            secure_redis.client(user, password).ping()
