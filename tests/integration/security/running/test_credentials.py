"""Credentials of agents from end to end: created and delivered by the hub process, used by agents, renewed, revoked."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from dsf import keys
from dsf.messages import sign
from dsf.redisacl.rules import cluster_user
from dsf.store.registry import ClusterRecord, Registry
from tests.integration.security.fleet import CLUSTERS, Fleet, replace
from tests.integration.security.running.attacks import result, send
from tests.integration.security.running.proofs import failures, undisturbed
from tests.support import forked
from tests.support.wait import wait_for

#: Messages of an agent whose password is refused, or whose file cannot be read.
REFUSED = "refuses user or password"
UNREADABLE = "DSF_REDIS_PASSWORD_FILE: cannot read"


def dsf(fleet: Fleet, *arguments: str) -> Any:
    """Run a command as a person with the credential of the user `operator`."""
    environment = fleet.environment("operator", log_level="ERROR") | {"XDG_STATE_HOME": str(fleet.folder / "state")}
    process = forked.dsf(("credentials", *arguments, "-o", "json"), environment)
    assert process.returncode == 0, process.stderr
    return {row["cluster"]: row for row in json.loads(process.stdout)["clusters"]}


def works(fleet: Fleet, cluster: str, key_id: int, *, noted: bool = True) -> None:
    """Check that scheduled cycles succeed with these credentials.

    After a loss of data the agent sets `noted` again only after half a minute.
    """
    before = fleet.state(cluster).count("ok")
    fleet.until(lambda: fleet.state(cluster).count("ok") > before + 1, f"good cycles of {cluster}", 30)
    assert fleet.key_id(cluster) == key_id
    if noted:
        fleet.until(lambda: fleet.admin.hget(keys.KEYS_USED, cluster) == str(key_id), "the key to be noted", 45)


def users(fleet: Fleet) -> set[str]:
    return {str(name) for name in fleet.admin.acl_users() if str(name).startswith("spoke-")}


def missed(fleet: Fleet, cluster: str) -> int:
    """Cycles that were due and did not run, or not yet. Failed cycles do not count."""
    state = fleet.state(cluster)
    return state.scheduled - state.count("ok") - state.count("error")


def rotated(fleet: Fleet) -> int:
    """Rotate the credentials of c1, and return how many more cycles it missed than c10, which keeps its own."""
    key_id = fleet.key_id() + 1
    before = [missed(fleet, cluster) for cluster in CLUSTERS]
    response = dsf(fleet, "rotate", "--cluster", "c1", "--wait", "120")
    assert (response["c1"]["currentId"], response["c1"]["previousIds"], response["c1"]["usedId"]) == (
        key_id,
        [],
        key_id,
    )
    works(fleet, "c1", key_id)
    c1, c10 = (missed(fleet, cluster) - old for cluster, old in zip(CLUSTERS, before, strict=True))
    return c1 - max(c10, 0)


def connections(fleet: Fleet, cluster: str) -> set[str]:
    return {client["id"] for client in fleet.admin.client_list() if client["user"] == cluster_user(cluster)}


def test_delivered_credentials_complete_a_full_cycle(fleet: Fleet) -> None:
    assert users(fleet) == {cluster_user(cluster) for cluster in CLUSTERS}
    for cluster in CLUSTERS:
        works(fleet, cluster, fleet.key_id(cluster))
        for file in (fleet.password_file(cluster), fleet.key_file(cluster)):
            assert file.stat().st_mode & 0o777 == 0o600
        assert fleet.password_file(cluster).read_text().strip() == fleet.users.derive_password(
            cluster, fleet.key_id(cluster)
        )
    rows = dsf(fleet, "list")
    assert sorted(rows) == list(CLUSTERS)
    for cluster, row in rows.items():
        key_id = fleet.key_id(cluster)
        assert (row["currentId"], row["usedId"], row["state"]) == (key_id, key_id, "in use")
    assert fleet.acl_log() == []


def test_rotation_loses_no_cycle_and_restarts_nothing(fleet: Fleet) -> None:
    first, first_key = fleet.key_id(), fleet.signing_key()
    old = fleet.spoke()
    assert old.ping()
    pid = fleet.process("agent-c1").pid
    lost = fleet.state("c1").count("lost"), failures(fleet, "c1")
    before_others = connections(fleet, "c10")
    # Two are under way. Ticks expire, too, where a machine stands still, but then those of c10 do as well. Should the
    # agent of c1 alone have got no CPU: a rotation that costs cycles costs them the next time, too.
    costs = [rotated(fleet)]
    if costs[0] > 2:
        costs.append(rotated(fleet))
    assert min(costs) <= 2, costs
    assert (fleet.state("c1").count("lost"), failures(fleet, "c1")) == lost
    assert fleet.process("agent-c1").pid == pid
    assert fleet.acl_log() == []
    # The old ones are refused, and their connections are closed.
    with pytest.raises(redis.ConnectionError):
        old.ping()
    with pytest.raises(redis.AuthenticationError):
        fleet.spoke("c1", first).ping()
    rejected_before = fleet.rejected("bad_signature")
    with undisturbed(fleet):
        send(fleet.spoke(), sign(result("c1"), first_key))
        fleet.until(lambda: fleet.rejected("bad_signature") == rejected_before + 1, "the old key to be refused")
    assert before_others <= connections(fleet, "c10"), "the others are left alone"


def test_restarted_hub_completes_a_started_rotation(fleet: Fleet) -> None:
    # Between the two steps of a rotation: both are valid then.
    fleet.end("controller")
    began, key_id = time.time(), fleet.key_id() + 1
    dsf(fleet, "rotate", "--cluster", "c1")
    assert dsf(fleet, "list")["c1"]["state"] == "asked for"
    fleet.run_hub()
    fleet.until(lambda: Registry(fleet.admin).read_clusters()["c1"].key_ids == (key_id,), "the rotation to end", 30)
    # Creation time; also for credentials of a new cluster.
    records = Registry(fleet.admin).read_clusters()
    assert began < records["c1"].key_since < time.time()
    assert 0 < records["c10"].key_since < began
    works(fleet, "c1", key_id)
    assert dsf(fleet, "list")["c1"]["state"] == "in use"


def test_revoked_credential_ends_at_once(fleet: Fleet) -> None:
    old, other_key_id = fleet.key_id(), fleet.key_id("c10")
    thief = fleet.spoke()
    assert thief.ping()
    response = dsf(fleet, "revoke", "--cluster", "c1", "--wait", "120")
    assert response["c1"]["previousIds"] == []
    with pytest.raises((redis.ConnectionError, redis.AuthenticationError)):
        thief.ping()
    with pytest.raises(redis.AuthenticationError):
        fleet.spoke("c1", old).ping()
    works(fleet, "c1", old + 1)
    works(fleet, "c10", other_key_id)


def test_emptied_redis_gets_the_cluster_users_back(fleet: Fleet) -> None:
    dsf(fleet, "revoke", "--cluster", "c1", "--wait", "120")
    key_ids = {cluster: fleet.key_id(cluster) for cluster in CLUSTERS}
    fleet.redis.kill()
    for redis_file in (fleet.redis.dir / "users.acl", *(fleet.redis.dir / "appendonlydir").iterdir()):
        redis_file.unlink()
    # As in a pod with an empty volume: only the users of the hub's processes exist.
    fleet.redis.start()
    wait_for(lambda: users(fleet) == {cluster_user(cluster) for cluster in CLUSTERS}, 30, "the users to be back")
    # The withdrawal of c1's earlier credentials survives the loss.
    for cluster, key_id in key_ids.items():
        works(fleet, cluster, key_id, noted=False)
    with pytest.raises(redis.AuthenticationError):
        fleet.spoke("c1", key_ids["c1"] - 1).ping()


def test_removed_and_foreign_users_are_repaired(fleet: Fleet) -> None:
    fleet.admin.acl_deluser("spoke-c10")
    fleet.admin.execute_command("ACL SETUSER", "spoke-evil", "on", "nopass", "+@all", "~*")
    expected = {cluster_user(cluster) for cluster in CLUSTERS}
    fleet.until(lambda: users(fleet) == expected, "the users to be right", 15)
    works(fleet, "c10", fleet.key_id("c10"), noted=False)


def test_deleted_cluster_is_cut_off_and_its_successor_gets_new_credentials(fleet: Fleet) -> None:
    key_ids = {cluster: fleet.key_id(cluster) for cluster in CLUSTERS}
    thief = fleet.spoke("c10")
    assert thief.ping()
    fleet.write_manifests("c10")
    fleet.until(lambda: users(fleet) == {"spoke-c1"}, "the user to go")
    assert not connections(fleet, "c10")
    with pytest.raises((redis.ConnectionError, redis.AuthenticationError)):
        thief.ping()
    # Redis refuses it first, then it is removed.
    fleet.until(lambda: not fleet.password_file("c10").parent.exists(), "the files to go")
    works(fleet, "c1", key_ids["c1"], noted=False)
    fleet.write_manifests()
    works_again = fleet.state("c10").count("ok")
    fleet.until(lambda: fleet.state("c10").count("ok") > works_again, "the agent to be back", 30)
    works(fleet, "c10", key_ids["c10"] + 1)
    with pytest.raises(redis.AuthenticationError):
        fleet.spoke("c10", key_ids["c10"]).ping()


@pytest.fixture
def by_hand(fleet: Fleet) -> Iterator[Fleet]:
    """The fleet without its hub controller, which would undo the test's actions in its place."""
    key_id = fleet.key_id()
    fleet.end("controller")
    yield fleet
    give(fleet, key_id)
    fleet.run_hub()
    fleet.until(
        lambda: "dsf-controller" in {client["user"] for client in fleet.admin.client_list()}, "the hub to be back"
    )
    # The newest id in use is valid again.
    dsf(fleet, "rotate", "--cluster", "c1", "--wait", "120")


def give(fleet: Fleet, key_id: int) -> None:
    """Make the credentials of this id the only ones of c1, on both sides, and wait until its agent uses them."""
    accept(fleet, key_id)
    fleet.deliver("c1", key_id)
    works(fleet, "c1", key_id, noted=False)


def accept(fleet: Fleet, key_id: int) -> None:
    """Make them the only valid ones."""
    fleet.users.ensure("c1", (key_id,))
    Registry(fleet.admin).put_cluster(ClusterRecord(name="c1", key_ids=(key_id,)))


def test_agent_waits_for_its_credentials(by_hand: Fleet) -> None:
    """Its credentials were revoked, and the new ones arrive later; or the file of its password is missing for a
    moment.
    """
    fleet, agent, new = by_hand, by_hand.process("agent-c1"), by_hand.key_id() + 1
    pid = agent.pid
    unreadable_logged = fleet.log("agent-c1").count(REFUSED)
    accept(fleet, new)
    # Several attempts, so that it reaches its longest delay.
    fleet.until(lambda: fleet.log("agent-c1").count(REFUSED) >= unreadable_logged + 6, "the agent to say so", 30)
    works(fleet, "c10", fleet.key_id("c10"))
    fleet.deliver("c1", new)
    works(fleet, "c1", new)

    file = fleet.password_file("c1")
    password = file.read_text()
    unreadable_logged = fleet.log("agent-c1").count(UNREADABLE)
    file.unlink()
    fleet.admin.execute_command("CLIENT KILL", "USER", "spoke-c1")
    fleet.until(lambda: fleet.log("agent-c1").count(UNREADABLE) > unreadable_logged, "the agent to say so")
    replace(file, password)
    works(fleet, "c1", new)
    assert (fleet.process("agent-c1").pid, agent.is_running) == (pid, True)
