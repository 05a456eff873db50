"""docs/security.md lists the Redis commands of a cluster's user as the rules and Redis do."""

from __future__ import annotations

import re
from pathlib import Path

import redis

from dsf.redisacl.rules import cluster_rules

PAGE = (Path(__file__).parents[3] / "docs" / "security.md").read_text()


def _listed_commands(mark: str) -> set[str]:
    (text,) = re.findall(rf"<!-- {mark} -->(.*?)<!-- end -->", PAGE, re.DOTALL)
    return {command.lower().replace(" ", "|") for command in re.findall(r"`([^`]+)`", text)}


def test_security_page_lists_the_commands_of_the_rules() -> None:
    assert _listed_commands("commands") == set(re.findall(r"\+([^ )]+)", " ".join(cluster_rules("c1"))))


def test_security_page_lists_the_commands_without_authentication(redis_client: redis.Redis) -> None:
    commands = redis_client.command().items()
    unauthenticated_commands = {
        str(name) for name, details in commands if "no_auth" in {str(flag) for flag in details["flags"]}
    }
    assert _listed_commands("always") == unauthenticated_commands
