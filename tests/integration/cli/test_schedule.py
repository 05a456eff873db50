"""dsf schedule: people's changes, and that they stay."""

from __future__ import annotations

import time

import pytest
import redis

from dsf import keys
from dsf.cli.localuser import get_local_user
from dsf.fleet import changes
from dsf.store.entries import ScheduleOverride
from dsf.store.registry import ScorerRecord
from dsf.store.schedule import ScheduleStore
from tests.integration.cli.conftest import Dsf, loaded
from tests.integration.exporter.fleet import SAMPLE, Fleet

WHO = get_local_user()


def overrides(client: redis.Redis) -> dict[str, ScheduleOverride]:
    return ScheduleStore(client).read_overrides()


def test_schedule_list_prints_the_entries(dsf: Dsf, fleet: Fleet) -> None:
    fleet.entry("worker01", due_in=-30)
    fleet.entry("worker02", due_in=600)
    result = dsf("schedule", "list")
    assert result.exit_code == 0
    header, first, second = (line.split() for line in result.stdout.splitlines())
    assert header == [
        "CLUSTER",
        "SCORER",
        "INTERVAL",
        "SCORER",
        "SAYS",
        "NEXT",
        "RUN",
        "LATE",
        "STATE",
        "CHANGED",
        "BY",
    ]
    assert first[:5] == ["worker01", SAMPLE, "10s", "10s", "now"]
    assert first[5] in [f"{seconds}s" for seconds in range(30, int(time.time() - fleet.now) + 32)]
    assert second[-2:] == ["-", "running"]


def test_schedule_list_prints_json(dsf: Dsf, fleet: Fleet) -> None:
    fleet.entry("worker02", due_in=600)
    entries = loaded(dsf("schedule", "list", SAMPLE, "--cluster", "worker02", "-o", "json"))["entries"]
    assert len(entries) == 1
    assert entries[0]["intervalSeconds"] == entries[0]["entryIntervalSeconds"] == 10
    assert (entries[0]["paused"], entries[0]["overrides"], entries[0]["lagSeconds"]) == (False, [], 0)
    assert entries[0]["nextRun"].endswith("Z")


def test_empty_schedule_is_reported(dsf: Dsf) -> None:
    assert "Nothing is scheduled" in dsf("schedule", "list").stdout


def test_schedule_set_changes_all_clusters(dsf: Dsf, fleet: Fleet) -> None:
    result = dsf("schedule", "set", SAMPLE, "--interval", "5", "--note", "incident 42", "-o", "json")
    assert [entry["intervalSeconds"] for entry in loaded(result)["entries"]] == [5, 5]
    assert [entry["entryIntervalSeconds"] for entry in loaded(result)["entries"]] == [10, 10]
    override = overrides(fleet.redis)["*/sample-scorer"]
    assert (override.interval, override.note, override.by) == (5, "incident 42", WHO)
    assert f"{WHO} everywhere: incident 42" in dsf("schedule", "list").stdout


def test_schedule_set_changes_one_cluster(dsf: Dsf, fleet: Fleet) -> None:
    entries = loaded(dsf("schedule", "set", SAMPLE, "-c", "worker02", "-i", "1h", "-o", "json"))["entries"]
    assert [(entry["cluster"], entry["intervalSeconds"]) for entry in entries] == [("worker02", 3600)]
    assert list(overrides(fleet.redis)) == ["worker02/sample-scorer"]


def test_schedule_set_names_clusters_that_keep_their_interval(dsf: Dsf, fleet: Fleet) -> None:
    dsf("schedule", "set", SAMPLE, "--cluster", "worker02", "--interval", "20")
    result = dsf("schedule", "set", SAMPLE, "--interval", "5")
    assert result.exit_code == 0
    assert result.stderr == (
        "note: worker02 keeps its interval of 20s; end that with "
        "`dsf schedule reset sample-scorer --cluster worker02`\n"
    )


def test_schedule_set_warns_of_a_validity_below_the_interval(dsf: Dsf, fleet: Fleet) -> None:
    # The default follows the interval.
    assert dsf("schedule", "set", SAMPLE, "--interval", "1h").stderr == ""
    fleet.registry.put_scorer(ScorerRecord(name=SAMPLE, score_name="sample_score", interval=10, validity=60))
    assert dsf("schedule", "set", SAMPLE, "--interval", "60").stderr == ""
    assert "expire" not in dsf("status").stdout
    text = "scores expire after 60s (validitySeconds), before the next cycle at an interval of 61s"
    result = dsf("schedule", "set", SAMPLE, "--cluster", "worker02", "--interval", "61")
    assert (result.exit_code, result.stderr) == (0, f"warning: {text}\n")
    assert f"{SAMPLE}: {text}" in dsf("status").stdout


def test_schedule_pauses_until_a_time_and_resumes(dsf: Dsf, fleet: Fleet) -> None:
    before = time.time()
    entries = loaded(dsf("schedule", "pause", SAMPLE, "--until", "2h", "--note", "maintenance", "-o", "json"))[
        "entries"
    ]
    assert [(entry["paused"], entry["nextRun"], entry["pausedSource"]) for entry in entries] == [
        (True, None, "*/sample-scorer")
    ] * 2
    pause_end = overrides(fleet.redis)["*/sample-scorer"].paused_until
    assert pause_end is not None
    assert before + 7200 <= pause_end <= time.time() + 7200
    assert "paused until" in dsf("schedule", "list").stdout
    (pause_line,) = [line for line in dsf("status", SAMPLE).stdout.splitlines() if ": paused by " in line]
    assert pause_line.startswith(f"{SAMPLE}: paused by ")
    assert " until " in pause_line
    assert pause_line.endswith(": maintenance")
    resumed = loaded(dsf("schedule", "resume", SAMPLE, "-o", "json"))["entries"]
    assert [entry["paused"] for entry in resumed] == [False, False]


def test_schedule_resume_names_clusters_that_stay_paused(dsf: Dsf, fleet: Fleet) -> None:
    dsf("schedule", "pause", SAMPLE, "--cluster", "worker01")
    result = dsf("schedule", "resume", SAMPLE)
    assert "note: worker01 keeps its own pause" in result.stderr


def test_schedule_pause_names_clusters_that_keep_running(dsf: Dsf, fleet: Fleet) -> None:
    dsf("schedule", "pause", SAMPLE)
    dsf("schedule", "resume", SAMPLE, "--cluster", "worker01")
    result = dsf("schedule", "pause", SAMPLE)
    assert "note: worker01 is not paused: a user resumed it there; end that with `dsf schedule reset" in result.stderr
    assert "worker02" not in result.stderr


def test_schedule_reset_removes_all_changes_or_those_of_one_cluster(dsf: Dsf, fleet: Fleet) -> None:
    for arguments in (("--cluster", "worker01"), ("--cluster", "worker02"), ()):
        dsf("schedule", "set", SAMPLE, "--interval", "5", *arguments)
    assert dsf("schedule", "reset", SAMPLE, "--cluster", "worker01", "--note", "incident over").exit_code == 0
    assert changes.read_changes(fleet.redis).changes[0].note == "incident over"
    assert set(overrides(fleet.redis)) == {"worker02/sample-scorer", "*/sample-scorer"}
    entries = loaded(dsf("schedule", "reset", SAMPLE, "-o", "json"))["entries"]
    assert [entry["intervalSeconds"] for entry in entries] == [10, 10]
    assert overrides(fleet.redis) == {}


@pytest.mark.parametrize(
    "override_text",
    ['{"interval": 999999999999}', '{"paused": true, "paused_until": 1e15}', '{"paused": true, "paused_until": 1e400}'],
)
def test_out_of_bounds_overrides_are_listed_and_can_be_reset(dsf: Dsf, fleet: Fleet, override_text: str) -> None:
    fleet.redis.hset(keys.OVERRIDES, f"worker01/{SAMPLE}", override_text)
    fleet.redis.zadd(keys.DUE, {f"worker01/{SAMPLE}": 1e12})
    result = dsf("schedule", "list")
    assert result.exit_code == 0, result.stderr
    assert ("2147483647s" in result.stdout) or ("paused until 9999-01-01" in result.stdout)
    assert dsf("status").exception is None or isinstance(dsf("status").exception, SystemExit)
    assert len(loaded(dsf("schedule", "list", "-o", "json"))["entries"]) == 2
    runs = loaded(dsf("rescore", SAMPLE, "-o", "json"))["runs"]
    assert all(run["runId"] for run in runs)
    entries = loaded(dsf("schedule", "reset", SAMPLE, "-o", "json"))["entries"]
    assert [(entry["intervalSeconds"], entry["paused"]) for entry in entries] == [(10, False)] * 2
    assert overrides(fleet.redis) == {}


def test_schedule_reset_removes_unreadable_overrides(dsf: Dsf, fleet: Fleet) -> None:
    fleet.redis.hset(keys.OVERRIDES, f"worker01/{SAMPLE}", '{"interval": "often"}')
    assert dsf("schedule", "reset", SAMPLE).exit_code == 0
    assert fleet.redis.hlen(keys.OVERRIDES) == 0


def test_schedule_change_wakes_beat(dsf: Dsf, fleet: Fleet) -> None:
    dsf("schedule", "set", SAMPLE, "--interval", "5")
    assert fleet.redis.llen(keys.BEAT_WAKE) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("set", SAMPLE),
        ("set", SAMPLE, "--interval", "0"),
        ("set", SAMPLE, "--interval", "often"),
        ("set", "--interval", "5"),
        ("set", SAMPLE, "--interval", "999999999999"),
        ("set", SAMPLE, "--interval", "9" * 5000),
        ("pause", SAMPLE, "--until", "999999999999"),
        ("pause", SAMPLE, "--until", "9" * 400),
        ("pause", SAMPLE, "--until", "tomorrow"),
        ("pause", SAMPLE, "--until", "2020-01-01"),
        ("stop", SAMPLE),
    ],
)
def test_schedule_refuses_wrong_usage(dsf: Dsf, fleet: Fleet, arguments: tuple[str, ...]) -> None:
    assert dsf("schedule", *arguments).exit_code == 2
    assert overrides(fleet.redis) == {}
