"""dsf changes: users' actions by the commands, with authors, bounded and readable."""

from __future__ import annotations

import time
from typing import Any

import pytest
import redis

from dsf import keys
from dsf.cli.localuser import get_local_user
from dsf.errors import CursorError
from dsf.fleet.changes import MAX_CLUSTERS, Action, Actor, UserAction, read_changes, record_change
from dsf.store.registry import ClusterRecord, Registry
from tests.integration.cli.conftest import Dsf, loaded
from tests.integration.exporter.fleet import SAMPLE, Fleet

WHO = get_local_user()
ANN = Actor(name="ann", claimed=False, way="page")


def changes(dsf: Dsf, *arguments: str) -> list[dict[str, Any]]:
    recorded_changes: list[dict[str, Any]] = loaded(dsf("changes", *arguments, "-o", "json"))["changes"]
    return recorded_changes


def test_schedule_changes_are_listed(dsf: Dsf, fleet: Fleet) -> None:
    began = time.time()
    dsf("schedule", "set", SAMPLE, "--interval", "5", "--note", "incident 42")
    dsf("schedule", "set", SAMPLE, "--interval", "7")
    dsf("schedule", "pause", SAMPLE, "-c", "worker01", "--until", "2090-01-01T00:00Z", "--as", "ann")
    dsf("schedule", "pause", SAMPLE, "-c", "worker02")
    dsf("schedule", "resume", SAMPLE, "-c", "worker01")
    dsf("schedule", "reset", SAMPLE)
    recorded_changes = changes(dsf)
    assert [
        (change["action"], change["clusters"], change["detail"], change["note"])
        for change in reversed(recorded_changes)
    ] == [
        ("interval", [], "5 s", "incident 42"),
        ("interval", [], "7 s, was 5 s", ""),
        ("pause", ["worker01"], "until 2090-01-01T00:00:00Z", ""),
        ("pause", ["worker02"], "without an end", ""),
        ("resume", ["worker01"], "", ""),
        ("reset", [], "", ""),
    ]
    assert {(change["scorer"], change["claimed"], change["way"]) for change in recorded_changes} == {
        (SAMPLE, True, "cli")
    }
    assert [change["by"] for change in reversed(recorded_changes)] == [WHO, WHO, "ann", WHO, WHO, WHO]
    assert all(change["at"].endswith("Z") for change in recorded_changes)
    assert changes(dsf, "--since", str(int(time.time() - began) + 60) + "s") == recorded_changes
    assert changes(dsf, "--since", "2099-01-01") == []
    # The cluster's changes include a pause that was set for all clusters.
    assert [change["action"] for change in changes(dsf, SAMPLE, "--cluster", "worker02")] == [
        *("reset", "pause", "interval", "interval")
    ]
    assert changes(dsf, "static-scorer") == []


def test_rescore_entry_references_its_run(dsf: Dsf, fleet: Fleet) -> None:
    runs = loaded(dsf("rescore", SAMPLE, "-c", "worker01", "--note", "looks odd", "-o", "json"))["runs"]
    fleet.redis.lpush(keys.spoke_queue("worker01"), *["waiting"] * 100)
    dsf("rescore", SAMPLE)
    # The full queues refuse every tick, so no change is recorded.
    dsf("rescore", SAMPLE, "-c", "worker01")
    all_, newest_change = changes(dsf)
    assert (newest_change["action"], newest_change["clusters"], newest_change["note"]) == (
        "rescore",
        ["worker01"],
        "looks odd",
    )
    assert newest_change["reference"] == runs[0]["runId"]
    assert (all_["clusters"], all_["clusterCount"], all_["detail"]) == ([], 1, "1 not sent")


def test_changes_without_any_change_is_empty(dsf: Dsf, fleet: Fleet) -> None:
    assert "No changes yet" in dsf("changes").stdout
    assert "There are no such changes" in dsf("changes", "--since", "1h").stdout


def test_changes_refuses_unknown_names_and_accepts_removed_names(dsf: Dsf, fleet: Fleet) -> None:
    for arguments in ((SAMPLE, "-c", "worker02"), ("static-scorer",)):
        dsf("schedule", "pause", *arguments)
    for scorer in (SAMPLE, "static-scorer"):
        fleet.registry.remove_scorer(scorer)
    fleet.registry.remove_cluster("worker02")
    assert len(changes(dsf, SAMPLE, "-c", "worker02")) == 1
    assert len(changes(dsf, "static-scorer", "-c", "worker01")) == 1
    for arguments, message in (
        (("nobody",), "no scorer 'nobody' runs; registered: none"),
        ((SAMPLE, "-c", "mars"), "no cluster 'mars' is accepted; registered: worker01"),
    ):
        result = dsf("changes", *arguments)
        assert (result.exit_code, result.stderr) == (1, f"error: {message}\n")


def test_requested_credentials_are_listed_as_a_change(dsf: Dsf, redis_client: redis.Redis) -> None:
    for name in ("a", "b", "c"):
        Registry(redis_client).put_cluster(ClusterRecord(name=name, key_ids=(1,)))
    dsf("credentials", "rotate", "--all", "--note", "yearly")
    dsf("credentials", "revoke", "-c", "b", "-c", "b")
    revoked, rotated = changes(dsf)
    assert (rotated["action"], rotated["clusters"], rotated["note"]) == ("rotate", ["a", "b", "c"], "yearly")
    assert (revoked["action"], revoked["clusters"], revoked["scorer"]) == ("revoke", ["b"], "")


def test_changes_table_marks_claimed_names(dsf: Dsf, fleet: Fleet) -> None:
    record_change(
        fleet.redis, ANN, UserAction(action=Action.RESUME, scorer=SAMPLE, clusters=["worker01"], note="fixed")
    )
    dsf("rescore", SAMPLE, "-c", "worker02")
    result = dsf("changes")
    header = "TIME WHO BY WAY OF DID TO CLUSTERS DETAIL NOTE"
    assert " ".join(result.stdout.splitlines()[0].split()) == header
    claimed, verified = result.stdout.splitlines()[1:]
    assert f"{WHO} (claimed)" in claimed
    assert " ann " in verified
    assert "(claimed)" not in verified
    assert result.stderr == ""
    assert "the newest 1; --limit 0 shows all" in dsf("changes", "--limit", "1").stderr


def test_texts_are_bounded_and_steer_no_terminal(redis_client: redis.Redis) -> None:
    names = [f"c{number}" for number in range(3000)]
    user_action = UserAction(
        action=Action.ROTATE, clusters=names, note="\x1b[2J" + "x" * 5000, detail="a\nb", reference="r" * 999
    )
    record_change(redis_client, Actor(name="ann\x1b[2J" + "n" * 999, claimed=True, way="cli"), user_action)
    (change,) = read_changes(redis_client).changes
    assert len(change.note) == 500
    assert "\x1b" not in change.note + change.by
    assert (change.detail, len(change.by), len(change.reference)) == ("a b", 253, 253)
    assert change.clusters == names[:MAX_CLUSTERS]
    assert change.cluster_count == 3000
    assert change.where.endswith("c19 and 2980 more")
    # The cluster may be among those that the entry does not name, so the entry matches.
    assert read_changes(redis_client, cluster="c2999").changes == [change]
    assert redis_client.memory_usage(keys.CHANGES) < 5000


def test_changes_are_truncated_to_the_newest(redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "CHANGES_KEPT", 10)
    for number in range(25):
        record_change(redis_client, ANN, UserAction(action=Action.RESCORE, scorer=f"s{number}"))
    assert [change.scorer for change in read_changes(redis_client).changes] == [
        f"s{number}" for number in range(24, 14, -1)
    ]


def test_change_pages_are_complete_while_changes_are_added(redis_client: redis.Redis) -> None:
    for number in range(1200):
        record_change(
            redis_client, ANN, UserAction(action=Action.RESCORE, scorer=f"s{number % 2}", reference=str(number))
        )
    first = read_changes(redis_client, limit=100, scorer="s1")
    record_change(redis_client, ANN, UserAction(action=Action.RESCORE, scorer="s1", reference="new"))
    references = [change.reference for change in first.changes]
    cursor = first.continue_
    while cursor:
        page = read_changes(redis_client, limit=100, scorer="s1", cursor=cursor)
        references += [change.reference for change in page.changes]
        cursor = page.continue_
    assert references == [str(number) for number in range(1199, -1, -2)]
    with pytest.raises(CursorError):
        read_changes(redis_client, cursor="nonsense")


def test_unreadable_changes_are_skipped(redis_client: redis.Redis) -> None:
    record_change(redis_client, ANN, UserAction(action=Action.RESCORE, scorer="before"))
    redis_client.xadd(keys.CHANGES, {"change": "{"})
    redis_client.xadd(keys.CHANGES, {"other": "x"})
    redis_client.xadd(keys.CHANGES, {"change": '{"action": "of a later version", "by": "x"}'})
    record_change(redis_client, ANN, UserAction(action=Action.RESCORE, scorer="after"))
    assert [change.scorer for change in read_changes(redis_client).changes] == ["after", "before"]
