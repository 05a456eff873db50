"""The read-only commands status, scores and history."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import redis
import yaml

from dsf import keys
from dsf.settings import settings
from dsf.store.notices import ConditionNotice, Notices, ScorerNotice
from dsf.store.registry import Registry, ScorerRecord
from dsf.store.schedule import ScheduleStore
from tests.integration.cli.conftest import Dsf, loaded
from tests.integration.exporter.fleet import SAMPLE, STATIC, Fleet
from tests.support.redisserver import RedisServer


def only_sample(client: redis.Redis) -> None:
    """Without static-scorer, which is unhealthy."""
    Registry(client).remove_scorer(STATIC)


# --- status ----------------------------------------------------------------------------------------------------------


def test_status_of_a_good_fleet(dsf: Dsf, fleet: Fleet) -> None:
    only_sample(fleet.redis)
    result = dsf("status")
    assert result.exit_code == 0
    header, line = result.stdout.splitlines()
    assert header.split() == ["SCORER", "STATE", "HEALTH", "SCORE", "INTERVAL", "OK", "FAILING", "CLUSTERS", "LAST",
                              "SUCCESS"]  # fmt: skip
    assert line.split()[:8] == [SAMPLE, "ok", "Active", "sample_score", "10s", "2", "0", "2"]
    # The score was two seconds old when the fleet was created.
    assert line.split()[8] in [f"{seconds}s" for seconds in range(2, int(time.time() - fleet.now) + 4)]


def test_status_shows_the_interval_in_force_and_the_declared_one(dsf: Dsf, fleet: Fleet) -> None:
    only_sample(fleet.redis)
    store = ScheduleStore(fleet.redis)
    store.set_override("worker01/sample-scorer", interval=5)
    assert "5s-10s (declared 10s)" in dsf("status").stdout
    store.reset("worker01/sample-scorer")
    store.set_override("*/sample-scorer", interval=5)
    assert " 5s (declared 10s)" in dsf("status").stdout
    (row,) = json.loads(dsf("status", "-o", "json").stdout)["scorers"]
    assert (row["intervalSeconds"], row["intervalsInForce"]) == (10, [5])


def test_status_names_cluster_reason_and_start_of_a_failure(dsf: Dsf, fleet: Fleet) -> None:
    only_sample(fleet.redis)
    fleet.failure("worker02", message='invalid parameter "query": 1:5: parse error')
    result = dsf("status")
    assert result.exit_code == 1
    assert "failing" in result.stdout.splitlines()[1]
    assert "sample-scorer on worker02: fetch failed (bad_query)" in result.stdout
    assert 'ago: invalid parameter "query": 1:5: parse error' in result.stdout


def test_status_of_one_scorer_ignores_failures_of_others(dsf: Dsf, fleet: Fleet) -> None:
    assert dsf("status").exit_code == 1
    result = dsf("status", SAMPLE)
    assert result.exit_code == 0
    assert "worker01" in result.stdout
    assert "worker02" in result.stdout
    result = dsf("status", STATIC)
    assert result.exit_code == 1
    assert "unhealthy" in result.stdout


def test_status_as_json(dsf: Dsf, fleet: Fleet) -> None:
    fleet.failure("worker02")
    report = loaded(dsf("status", SAMPLE, "-o", "json"))
    assert set(report) == {"at", "ok", "scorers", "scores", "scoresTotal", "pauses", "conditions", "problems"}
    assert report["ok"] is False
    (scorer,) = report["scorers"]
    counts = {state: number for state, number in scorer["states"].items() if number}
    assert (scorer["pairs"], counts) == (2, {"ok": 1, "failing": 1})
    (failure,) = scorer["reasons"]
    assert (failure["cluster"], failure["stage"], failure["reason"]) == ("worker02", "fetch", "bad_query")
    assert [score["cluster"] for score in report["scores"]] == ["worker02", "worker01"]


def test_expired_score_without_a_failure_fails_dsf_status(dsf: Dsf, fleet: Fleet) -> None:
    fleet.score("worker01", valid_for=-5, age=400)
    result = dsf("status", SAMPLE)
    assert result.exit_code == 1
    assert "expired" in result.stdout


def test_status_reports_cycles_that_only_expire(dsf: Dsf, fleet: Fleet) -> None:
    only_sample(fleet.redis)
    fleet.set_pair_fields("worker02", expired=4, expired_run="r", expired_at=fleet.now - 9)
    result = dsf("status")
    assert result.exit_code == 1
    assert "failing" in result.stdout.splitlines()[1]
    assert "sample-scorer on worker02: expired" in result.stdout
    assert "its cycles wait in the queue of worker02 until the next one is due and are skipped" in result.stdout
    assert "DSF_AGENT_CONCURRENCY" in result.stdout
    assert "failing: expired" in dsf("scores", "--cluster", "worker02").stdout


def test_skipped_scorer_shows_the_reason_in_dsf_status(dsf: Dsf, fleet: Fleet) -> None:
    only_sample(fleet.redis)
    limited = ScorerRecord(name=SAMPLE, score_name="sample_score", interval=10, validity=300, rate_limit="2/m")
    Registry(fleet.redis).put_scorer(limited)
    for cluster in ("worker01", "worker02"):
        fleet.redis.delete(keys.pair_key(cluster, SAMPLE), keys.ROWS)
        fleet.set_skips(cluster, "rate_limit", 9)
    result = dsf("status")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[1].split()[1] == "skipped"
    assert "sample-scorer on worker01 and 1 more: rate_limit: no ticks were sent since 1m" in result.stdout
    assert "the rate limit of this scorer, 2/m, applies to all clusters together" in result.stdout
    assert "rate_limit, 9 not sent" in dsf("status", SAMPLE).stdout
    assert "skipped: rate_limit" in dsf("scores").stdout
    # A pair that still has a score is reported only after repeated skipped ticks.
    fleet.score("worker01")
    fleet.set_skips("worker01", "rate_limit", 2)
    assert "sample-scorer on worker02: rate_limit" in dsf("status").stdout
    fleet.score("worker02", valid_for=-5, age=400)
    fleet.set_skips("worker02", "queue_full", 2)
    assert "sample-scorer on worker02: queue_full: no ticks were sent since" in dsf("status").stdout
    assert "expired: queue_full" in dsf("scores").stdout


def test_suspended_scorer_is_shown_as_suspended(dsf: Dsf, fleet: Fleet) -> None:
    only_sample(fleet.redis)
    suspended = ScorerRecord(name=SAMPLE, score_name="sample_score", interval=10, validity=300, suspended=True)
    Registry(fleet.redis).put_scorer(suspended)
    fleet.set_skips("worker02", "queue_full", 50)
    result = dsf("status")
    assert result.stdout.splitlines()[1].split()[1] == "suspended"
    assert "sample-scorer on worker02: queue_full" in result.stdout


def test_status_of_an_empty_fleet_reports_it(dsf: Dsf) -> None:
    result = dsf("status")
    assert result.exit_code == 0
    assert "No scorer is registered" in result.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--replicaof", "127.0.0.1 1"), "this Redis is a replica, which takes no writes"),
        (("--rename-command", "EVALSHA", ""), "the server does not have the command EVALSHA"),
    ],
)
def test_status_names_what_keeps_a_hub_from_using_redis(
    dsf: Dsf, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], message: str
) -> None:
    with RedisServer(options=options) as server:
        monkeypatch.setenv("DSF_REDIS_URL", server.url)
        settings.cache_clear()
        result = dsf("status")
    assert (result.exit_code, result.stdout) == (1, "")
    assert message in result.stderr


@pytest.mark.parametrize(
    ("refuse", "accept", "lateness", "message"),
    [
        ("CONFIG SET min-replicas-to-write 1", "CONFIG SET min-replicas-to-write 0", 100, "rejects writes (NOREPLICAS"),
        ("CONFIG SET min-replicas-to-write 1", "CONFIG SET min-replicas-to-write 0", -5, "rejects writes (NOREPLICAS"),
        ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE", 100, "is a replica and takes no writes"),
        # Ticks are sent, as the hub's writes go on.
        ("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0", -5, "results of agents wait: Redis is full"),
    ],
)
def test_status_names_why_redis_takes_no_writes(
    dsf: Dsf, fleet: Fleet, refuse: str, accept: str, lateness: int, message: str
) -> None:
    only_sample(fleet.redis)
    fleet.entry("worker01", due_in=-lateness)
    fleet.redis.execute_command(*refuse.split())
    try:
        result = dsf("status")
    finally:
        fleet.redis.execute_command(*accept.split())
    assert result.exit_code == 1
    assert message in " ".join(result.stdout.split())
    assert "beat" not in result.stdout


def test_status_shows_notices_and_manifest_problems_of_the_hub(
    dsf: Dsf, fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_sample(fleet.redis)
    out = tmp_path / "_out"
    out.mkdir()
    problem = {"file": "scorer.yaml", "line": 7, "field": "spec.interval", "message": "-1 is less than 1"}
    (out / "problems.yaml").write_text(yaml.safe_dump([{**problem, "severity": "error"}]))
    condition = ConditionNotice(
        type="ConfigSynced", status="False", reason="MissingField", message="no interval", since=1.0
    )
    Notices(fleet.redis).write_scorer(ScorerNotice(name="broken", conditions=(condition,)))
    monkeypatch.setenv("DSF_MANIFESTS", str(tmp_path))
    result = dsf("status")
    assert result.exit_code == 1
    assert "scorer.yaml:7: spec.interval: -1 is less than 1" in result.stdout
    assert "broken: ConfigSynced=False (MissingField): no interval" in result.stdout
    result_of_broken = dsf("status", "broken")
    assert result_of_broken.exit_code == 1
    assert "broken: ConfigSynced=False (MissingField): no interval" in result_of_broken.stdout
    assert "scorer.yaml" not in result_of_broken.stdout
    assert dsf("status", SAMPLE).exit_code == 0


@pytest.mark.parametrize("text", ["", "{", "a: 1", "[1, 2]", "- {line: x}"])
def test_malformed_files_of_the_hub_are_ignored(
    dsf: Dsf, fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    only_sample(fleet.redis)
    (tmp_path / "problems.yaml").write_text(text)
    monkeypatch.setenv("DSF_OUT_DIR", str(tmp_path))
    assert dsf("status").exit_code in (0, 1)


def test_manifest_note_is_shown_and_does_not_fail_dsf_status(
    dsf: Dsf, fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_sample(fleet.redis)
    note = {"file": "config.yaml", "line": 3, "field": "", "message": "this is ignored", "severity": "note"}
    (tmp_path / "problems.yaml").write_text(yaml.safe_dump([note]))
    monkeypatch.setenv("DSF_OUT_DIR", str(tmp_path))
    result = dsf("status")
    assert result.exit_code == 0
    assert "config.yaml:3: this is ignored" in result.stdout


# --- scores ----------------------------------------------------------------------------------------------------------


def test_scores_are_listed_with_their_items(dsf: Dsf, fleet: Fleet) -> None:
    result = dsf("scores", "--cluster", "worker01")
    assert result.exit_code == 0
    lines = [line.split() for line in result.stdout.splitlines()]
    assert [line[:5] for line in lines[1:]] == [
        ["worker01", SAMPLE, "sample_score", "n1", "12"],
        ["worker01", SAMPLE, "sample_score", "n2", "-4"],
    ]
    assert lines[1][-1] == "fresh"


def test_scores_as_json_and_yaml(dsf: Dsf, fleet: Fleet) -> None:
    report = loaded(dsf("scores", "--scorer", SAMPLE, "-o", "json"))
    assert [score["cluster"] for score in report["scores"]] == ["worker01", "worker02"]
    assert report["scores"][0]["items"][0] == {"name": "n1", "value": 12}
    assert yaml.safe_load(dsf("scores", "-o", "yaml").stdout)["scores"][0]["scorer"] == SAMPLE


def test_expired_score_is_shown_as_expired(dsf: Dsf, fleet: Fleet) -> None:
    fleet.score("worker01", valid_for=-5, age=400)
    line = dsf("scores", "--cluster", "worker01").stdout.splitlines()[1]
    assert line.split() == ["worker01", SAMPLE, "sample_score", "-", "-", "6m", "-", "expired"]


def test_score_age_counts_from_the_last_success(dsf: Dsf, fleet: Fleet) -> None:
    fleet.score("worker01", age=200)
    fleet.failure("worker01")
    line = dsf("scores", "--cluster", "worker01").stdout.splitlines()[1]
    assert "3m" in line.split()
    assert line.rstrip().endswith("failing: fetch bad_query")


def test_foreign_names_cannot_control_the_terminal(dsf: Dsf, fleet: Fleet) -> None:
    fleet.failure("worker01", message="\x1b]0;title\x07[red]x[/red]\nerror: fake")
    out = dsf("status", SAMPLE).stdout
    assert "\x1b" not in out
    assert "\x07" not in out
    assert "[red]x[/red]" in out


@pytest.mark.parametrize("command", ["status", "scores"])
def test_unknown_output_format_is_a_usage_error(dsf: Dsf, command: str) -> None:
    assert dsf(command, "-o", "xml").exit_code == 2


# --- history ---------------------------------------------------------------------------------------------------------


def test_history_lists_the_cycles(dsf: Dsf, fleet: Fleet) -> None:
    fleet.cycle("worker01", value=61.25, counts={"items": 1, "bytes": 7})
    fleet.cycle("worker01", outcome="error", stage="score", reason="http_error", message="HTTP 500: oops")
    result = dsf("history", SAMPLE, "--cluster", "worker01")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].split()[:7] == ["TIME", "RUN", "OUTCOME", "VALUE", "FETCH", "SCORE", "PUBLISH"]
    # In the same order, whichever cycle is the newest.
    assert lines[0].split()[7:] == ["SERIES", "ITEMS", "BYTES", "REASON"]
    assert lines[1].split()[2:] == ["error", *["-"] * 7, "score:", "http_error:", "HTTP", "500:", "oops"]
    assert lines[2].split()[2:] == ["ok", "61.25", "-", "-", "-", "-", "1", "7"]
    assert lines[3].split()[2:] == ["ok", "-", "10ms", "20ms", "-", "2", "-", "512"]
    books = "scheduled 7 = ok 5 + empty 0 + partial 0 + error 1 + skipped 1 + lost 0 + open 0 (skipped: overlap 1)"
    assert lines[-1].rstrip() == books


def test_history_as_json(dsf: Dsf, fleet: Fleet) -> None:
    history = loaded(dsf("history", SAMPLE, "--cluster", "worker01", "-o", "json"))
    assert history["books"]["ok"] == 5
    assert history["cycles"][0]["timings"] == {"fetch": 0.01, "score": 0.02}


def test_history_needs_a_cluster(dsf: Dsf, fleet: Fleet) -> None:
    assert dsf("history", SAMPLE).exit_code == 2


def test_history_before_the_first_cycle_is_empty(dsf: Dsf, fleet: Fleet) -> None:
    fleet.redis.delete(keys.history_key("worker01", SAMPLE))
    assert "No cycle has ended yet" in dsf("history", SAMPLE, "--cluster", "worker01").stdout


# --- large fleets ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [("scores",), ("schedule", "list")])
def test_table_of_a_large_fleet_is_limited_with_a_note(dsf: Dsf, fleet: Fleet, command: tuple[str, ...]) -> None:
    for number in range(150):
        fleet.entry(f"edge{number:03}")
    limited = dsf(*command)
    assert len(limited.stdout.splitlines()) == 101
    assert limited.stderr == ("dsf: 100 of 152 pairs; --limit 0 shows all, --cluster or a scorer's name shows fewer\n")
    assert "edge148" in dsf(*command, "--limit", "0").stdout
    assert dsf(*command, "--limit", "0").stderr == ""
    assert dsf(*command, "--cluster", "worker01").stderr == ""
    report = loaded(dsf(*command, "-o", "json"))
    assert len(report.get("scores") or report["entries"]) == report["total"] == 152
