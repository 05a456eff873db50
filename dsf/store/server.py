"""Checks the Redis server: version, mode, owner, eviction policy and persistence.

The hub controller runs the checks at its start and periodically. Problems that prevent the hub from working raise
SettingsError. The others are stored as sentences by kind in `dsf.keys.HUB_PROBLEMS`, for `dsf status`, the page, the
JSON API and an alert.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import redis
from pydantic import BaseModel, ConfigDict

from dsf import keys
from dsf.errors import SettingsError
from dsf.store.client import parse_stored, run_atomically

#: The first version of Redis with script flags, ACL selectors and `SET ... NX GET`. All versions of Valkey have them.
NEEDED_VERSION: Final = (7, 0)
#: Milliseconds after which the claim of an installation expires unless it is renewed.
OWNER_LIFE: Final = 120_000

# Kinds of problems.
CLOCK: Final = "clock"
CRDS: Final = "crds"
CREDENTIALS: Final = "credentials"
MEMORY: Final = "memory"
EVICTION: Final = "eviction"
PERSISTENCE: Final = "persistence"


class Owner(BaseModel):
    """The installation that uses a database."""

    model_config = ConfigDict(frozen=True)

    v: int = keys.SCHEMA_VERSION
    #: Equal in all hub controllers of an installation.
    id: str
    #: Text for messages, such as `the hub of /srv/manifests on host a`.
    name: str
    #: The hub controller of the installation that is elected; it differs after each start.
    instance: str = ""


def check_server(info: Mapping[str, Any]) -> None:
    """Raise SettingsError if the server with this INFO cannot be used."""
    version = str(info.get("redis_version", ""))
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers and numbers < NEEDED_VERSION:
        raise SettingsError(
            f"DSF_REDIS_URL: this server is Redis {version}, and version 7.0 or later is needed (or Valkey): no cycle "
            "would succeed; upgrade it, or use another server"
        )
    if info.get("redis_mode") == "cluster" or str(info.get("cluster_enabled", "0")) == "1":
        raise SettingsError(
            "DSF_REDIS_URL: this server is part of a Redis Cluster, on which Celery's queues do not work; use a single "
            "server, or one with replicas and Sentinel"
        )


def describe_refusal(error: redis.RedisError) -> str:
    """Return a sentence if the server will always refuse something that every hub needs; otherwise an empty string."""
    text = str(error)
    if isinstance(error, redis.exceptions.NoPermissionError):
        return f"the user of this Redis lacks a right that the hub needs ({text}); docs/redis.md says which it needs"
    if re.search(r"DB index|SELECT is not allowed", text):
        return f"the server does not have this database ({text}); use one that it has, such as 0"
    if match := re.match(r"unknown command '(\w+)'", text):
        return f"the server does not have the command {match[1]}, which the hub needs: it is renamed or disabled there"
    return ""


def check_empty_server(client: redis.Redis) -> None:
    """Raise SettingsError if no hub can work with this server, although it accepts reads.

    Call this function for a server without scorers. Raises redis.RedisError.
    """
    try:
        if client.info("replication").get("role") == "slave":
            raise SettingsError(
                "DSF_REDIS_URL: this Redis is a replica, which takes no writes, and has no scorers: give the address "
                "of its primary"
            )
        client.evalsha("0" * 40, 0)
    except (redis.exceptions.NoScriptError, redis.exceptions.NoPermissionError):
        # The server executes scripts: this one does not exist. A read-only user may lack the right to check it.
        return
    except redis.ResponseError as error:
        if refusal := describe_refusal(error):
            raise SettingsError(f"DSF_REDIS_URL: {refusal}") from None


def find_server_problems(info: Mapping[str, Any]) -> dict[str, str]:
    """Return the problems of the server with this INFO as sentences by kind."""
    problems = {}
    policy = str(info.get("maxmemory_policy", "noeviction"))
    if policy != "noeviction":
        problems[EVICTION] = (
            f"maxmemory-policy of Redis is {policy}, which silently removes scores, books and overrides when memory is "
            "short: set it to noeviction"
        )
    if "err" in (info.get("rdb_last_bgsave_status"), info.get("aof_last_write_status")):
        problems[PERSISTENCE] = "Redis could not write its data to disk: check the disk of Redis and its log"
    return problems


def describe_unbounded_memory(info: Mapping[str, Any]) -> str:
    """Return a sentence if the server with this INFO has no memory limit, otherwise an empty string."""
    if int(info.get("maxmemory", 0)):
        return ""
    return "maxmemory is not set: Redis may use all memory of the machine; deploy/redis/redis.conf has limits"


def claim_database(client: redis.Redis, owner: Owner, database: str) -> bool:
    """Claim a database for an installation, or renew the claim. `database` names the database in messages.

    Return True if another instance of the same installation had claimed it. Raises SettingsError if another
    installation owns it, and redis.RedisError.
    """
    text = owner.model_dump_json()
    [owner_text] = run_atomically(client, ("SET", keys.OWNER, text, "NX", "GET", "PX", OWNER_LIFE))
    holder = parse_stored(Owner, keys.OWNER, owner_text)
    if holder is not None and holder.id != owner.id:
        raise SettingsError(
            f"DSF_REDIS_URL: the database {database} is in use by {holder.name}, and two hubs would remove each "
            "other's "
            "scorers and overrides; give this hub a Redis of its own, or stop the other one and wait two minutes"
        )
    if holder == owner:
        # Renew with PEXPIRE, because SET would overwrite a claim that another installation makes at this moment.
        client.pexpire(keys.OWNER, OWNER_LIFE)
    elif owner_text is not None:
        run_atomically(client, ("SET", keys.OWNER, text, "PX", OWNER_LIFE))
    return holder is not None and holder.instance != owner.instance


def release_database(client: redis.Redis, owner: Owner) -> None:
    """Delete the claim of this instance on the database, if there is one. Raises redis.RedisError."""
    holder = parse_stored(Owner, keys.OWNER, client.get(keys.OWNER))
    if holder is not None and (holder.id, holder.instance) == (owner.id, owner.instance):
        client.delete(keys.OWNER)


def write_problems(client: redis.Redis, problems: Mapping[str, str]) -> None:
    """Replace the stored problems. Raises redis.RedisError."""
    solved_kinds = {str(kind) for kind in client.hkeys(keys.HUB_PROBLEMS)} - problems.keys()
    commands: list[tuple[str, ...]] = [("HSET", keys.HUB_PROBLEMS, kind, text) for kind, text in problems.items()]
    if solved_kinds:
        commands.append(("HDEL", keys.HUB_PROBLEMS, *solved_kinds))
    if commands:
        run_atomically(client, *commands)


def read_problems(client: redis.Redis) -> dict[str, str]:
    """Return the problems that the hub controller stored, by kind. Raises redis.RedisError."""
    return {str(kind): str(text) for kind, text in sorted(client.hgetall(keys.HUB_PROBLEMS).items())}
