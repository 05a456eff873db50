"""The rules as text: exact names, no dangerous command, only keys of the key table."""

from __future__ import annotations

import re

import pytest

from dsf import keys
from dsf.optimizer.redisrights import PLANS, RIGHTS
from dsf.redisacl.rules import (
    cluster_rules,
    cluster_user,
    hub_roles,
    hub_rules,
    hub_user,
    parse_user_cluster,
)

EVENT_KINDS = (
    *("worker.online", "worker.heartbeat", "worker.offline", "task.multi", "task.received", "task.started"),
    *("task.succeeded", "task.failed", "task.retried", "task.revoked", "task.rejected"),
)
_DANGEROUS = ("@all", "eval", "keys", "scan", "flushall", "shutdown", "config", "monitor", "debug", "select", "module")


def test_cluster_rules_are_exact() -> None:
    assert cluster_rules("c1") == [
        "resetkeys",
        "resetchannels",
        "clearselectors",
        "-@all",
        "+ping",
        "+time",
        "+client|setname",
        "(+brpop +llen %RW~spoke.c1)",
        "(+set %W~hub.mail.c1.[0-9] %W~hub.mail.c1.1[0-5] %W~hub.mail.c1.flag)",
        "(+exists %R~hub.mail.c1.[0-9] %R~hub.mail.c1.1[0-5])",
        f"(+publish {' '.join(f'&/0.celeryev/{kind}' for kind in EVENT_KINDS)} &dsf:control:reply:spoke@c1)",
        "(+subscribe +unsubscribe &dsf:control &dsf:control:ask)",
    ]


@pytest.mark.parametrize("name", ["c*", "c?", "c[1]", "c\\1", "", "c1 ~*", "c1)(+@all ~*", "Ä", "c1\n"])
def test_invalid_cluster_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="not the name of a cluster"):
        cluster_rules(name)


def test_user_names() -> None:
    assert (cluster_user("c1"), parse_user_cluster("spoke-c1")) == ("spoke-c1", "c1")
    assert parse_user_cluster(hub_user("hub")) is None
    assert parse_user_cluster("default") is None


@pytest.mark.parametrize("role", hub_roles())
def test_dangerous_commands_are_granted_to_no_role(role: str) -> None:
    commands = re.findall(r"\+([^ )]+)", " ".join(hub_rules(role)))
    assert commands
    allowed = {"scan"} if role in ("controller", "hub") else set()
    assert set(commands) & set(_DANGEROUS) == allowed
    assert hub_rules(role)[:4] == ["resetkeys", "resetchannels", "clearselectors", "-@all"]


@pytest.mark.parametrize("role", hub_roles())
def test_keys_are_named_one_by_one(role: str) -> None:
    patterns = set(re.findall(r"(?:%RW|%R|%W)?~([^ )]+)", " ".join(hub_rules(role))))
    with_star = {pattern for pattern in patterns if "*" in pattern}
    of_pairs = {"dsf:pair:*", "dsf:history:*"}
    of_web = {"dsf:web:session:*", "dsf:web:outcome:*"} if role in ("hub", "web") else set()
    of_people = {"dsf:backtests:*"} if role in ("hub", "web", "operator") else set()
    assert with_star <= {"spoke.*", "hub.mail.*", *of_pairs, *of_web, *of_people, "celeryev.*"}


@pytest.mark.parametrize("role", [role for role in hub_roles() if role != "hub"])
def test_rows_are_written_only_by_results_workers(role: str) -> None:
    rules = [rule for rule in hub_rules(role) if re.search(rf"%(RW|W)~{keys.ROWS}\b(?!:)", rule)]
    commands = {command for rule in rules for command in re.findall(r"\+(\S+)", rule)}
    # The controller deletes rows of removed pairs.
    expected_commands = {"results": {"hget", "hmget", "hset", "hdel", "hkeys"}, "controller": {"hmget", "hget", "hdel"}}
    assert commands == expected_commands.get(role, set())


def test_ticks_are_written_only_by_beat_and_roles_acting_for_people() -> None:
    def writes_ticks(role: str) -> bool:
        return any(
            re.search(r"\+(lpush|rpush|lmove|blmove)\b", rule) and re.search(r"%(RW|W)~spoke\.\*", rule)
            for rule in hub_rules(role)
        )

    for_people = ["controller", "web", "flower-tasks", "operator", "optimizer"]
    assert {role for role in hub_roles() if writes_ticks(role)} == {"beat", *for_people}
    # The hub's rules are at the top level, not in a selector.
    assert {"+lpush", "%RW~spoke.*"} <= set(hub_rules("hub"))
    assert not any("spoke" in rule for rule in hub_rules("results"))


def test_optimizer_may_send_ticks_but_not_read_scores() -> None:
    optimizer, operator = hub_rules("optimizer"), hub_rules("operator")
    # Its ticks use the same rules as those of the operator.
    assert {rule for rule in optimizer if "spoke." in rule} <= set(operator)
    text = " ".join(optimizer)
    assert "dsf:history" not in text
    assert keys.RESULTS_QUEUE not in text
    commands = {command for rule in optimizer if "dsf:pair:" in rule for command in re.findall(r"\+(\S+)", rule)}
    assert commands == {"hincrby"}


def test_rights_of_other_distributions_are_added_to_roles() -> None:
    assert RIGHTS.keys() == {"optimizer", "operator", "web"}
    for role, rules in RIGHTS.items():
        assert set(rules) <= set(hub_rules(role))
    assert f"%R~{PLANS}" in hub_rules("hub")


def test_users_are_managed_only_by_the_hub() -> None:
    assert [role for role in hub_roles() if any("acl|" in rule for rule in hub_rules(role))] == ["controller", "hub"]


def test_no_cluster_touches_the_results_of_all() -> None:
    assert keys.RESULTS_QUEUE not in " ".join(cluster_rules("c1"))


def test_process_of_all_services_may_do_what_each_of_them_may() -> None:
    rules = set(hub_rules("hub"))
    for role in ("controller", "beat", "results", "web"):
        for word in " ".join(hub_rules(role)).replace("(", "").replace(")", "").split():
            sign, _, pattern = word.partition("~")
            if pattern:
                assert {word, f"%RW~{pattern}"} & rules, word
            elif sign.startswith(("+", "&")):
                assert word in rules, word
    assert not any(rule.startswith("(") for rule in rules)
