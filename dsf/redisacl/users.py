"""Formats users as a Redis ACL file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dsf.redisacl.rules import cluster_rules, cluster_user, hub_roles, hub_rules, hub_user, parse_user_cluster

#: Line of the default user: disabled, so that clients must log in as another user. The user keeps its rights, because
#: Redis replays its append-only file as this user. Versions without the fix of redis/redis#14541 (such as 7.0.15) would
#: silently skip the commands in transactions and scripts that the user may not execute, which is nearly all data.
DEFAULT_OFF = "user default off resetpass ~* &* +@all"


def hash_password(password: str) -> str:
    """Return the SHA-256 hash of a password in hex, as in an ACL file. Random passwords need no slow hash."""
    return hashlib.sha256(password.encode()).hexdigest()


@dataclass(frozen=True)
class User:
    """A user with its rules, and the hashes of its valid passwords.

    Each user has a password, because Redis accepts long commands only from clients that have logged in.
    """

    name: str
    rules: tuple[str, ...]
    hashes: tuple[str, ...]

    @classmethod
    def of_hub(cls, role: str, *passwords: str) -> User:
        """Return the user of one of the hub's roles. Raises ValueError without a password."""
        if not passwords:
            raise ValueError(f"user {hub_user(role)} needs a password")
        return cls(hub_user(role), tuple(hub_rules(role)), tuple(hash_password(text) for text in passwords))

    @classmethod
    def of_cluster(cls, cluster: str, *passwords: str) -> User:
        """Return the user of a managed cluster. Raises ValueError for an invalid name, or without a password."""
        if not passwords:
            raise ValueError(f"user {cluster_user(cluster)} needs a password")
        rules = tuple(cluster_rules(cluster))
        return cls(cluster_user(cluster), rules, tuple(map(hash_password, passwords)))

    def format_setuser_rules(self) -> list[str]:
        """Return the arguments of ACL SETUSER after the name, which replace all previous rules."""
        return ["reset", "on", *self._format_hashes(), *self.rules]

    def format_line(self) -> str:
        """Return the user's line in an ACL file."""
        return " ".join(["user", self.name, "on", *self._format_hashes(), *self.rules])

    def _format_hashes(self) -> list[str]:
        return [f"#{digest}" for digest in self.hashes]


def make_hub_users(passwords: Mapping[str, str]) -> list[User]:
    """Return the users of the hub's processes that have passwords."""
    return [User.of_hub(role, passwords[role]) for role in hub_roles() if role in passwords]


def render_acl_file(users: Iterable[User], existing_text: str = "") -> str:
    """Return the text of an ACL file with these users, and with the default user disabled.

    Keeps the users of clusters in `existing_text`, the earlier content of the file, so that their agents need not wait
    for the hub after a restart of Redis.
    """
    hub_users = list(users)
    names = {user.name for user in hub_users}
    cluster_lines = [line for line in existing_text.splitlines() if _is_cluster_line(line, names)]
    return "\n".join([DEFAULT_OFF, *(user.format_line() for user in hub_users), *cluster_lines]) + "\n"


def render_acl_template() -> str:
    """Return an ACL file with all users of the hub, with `#<role>` in place of the hash of the role's password."""
    users = [User(hub_user(role), tuple(hub_rules(role)), (f"<{role}>",)) for role in hub_roles()]
    return render_acl_file(users)


def _is_cluster_line(line: str, own_users: set[str]) -> bool:
    words = line.split()
    if len(words) < 2 or words[0] != "user":
        return False
    return words[1] not in own_users and parse_user_cluster(words[1]) is not None
