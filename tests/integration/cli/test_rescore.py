"""dsf rescore, with a thread that plays agent and results worker."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from dsf import keys
from dsf.fleet import changes
from dsf.fleet import rescore as rescoring
from dsf.fleet.actions import Actions
from dsf.fleet.changes import Actor
from dsf.store.pairs import Pairs
from tests.integration.cli.conftest import Dsf, loaded
from tests.integration.cli.test_main import dsf_process
from tests.integration.exporter.fleet import SAMPLE, Fleet
from tests.support.fixtures import SettingsFactory
from tests.support.wait import PATIENCE, wait_for

Play = Callable[[str, str], None]


@contextmanager
def playing(client: redis.Redis, cluster: str, play: Play) -> Iterator[None]:
    """Takes ticks of `cluster` and gives (scorer, run id) to `play`, until the block ends."""
    stop = threading.Event()
    problems: list[Exception] = []

    def run() -> None:
        try:
            while not stop.is_set():
                popped_tick = client.brpop([keys.spoke_queue(cluster)], timeout=0.1)
                if popped_tick:
                    scorer, run_id, _ = json.loads(json.loads(popped_tick[1])["body"])[0]
                    play(scorer, run_id)
        except Exception as error:  # noqa: BLE001 - the test fails with it
            problems.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(PATIENCE)
    assert not problems


def test_rescore_sends_and_counts_a_tick(dsf: Dsf, fleet: Fleet) -> None:
    result = dsf("rescore", SAMPLE, "--cluster", "worker01", "-o", "json")
    assert result.exit_code == 0
    report = loaded(result)
    ((cluster, run_id),) = [(run["cluster"], run["runId"]) for run in report["runs"]]
    assert cluster == "worker01"
    assert report["scores"] == []
    assert fleet.redis.llen("spoke.worker01") == 1
    assert fleet.redis.llen("spoke.worker02") == 0
    assert fleet.redis.zscore(keys.OPEN_RUNS, keys.run_member("worker01", SAMPLE, run_id))
    assert Pairs(fleet.redis).read_state("worker01", SAMPLE).scheduled == 8


def test_rescore_without_a_cluster_is_sent_to_all_clusters_of_the_scorer(dsf: Dsf, fleet: Fleet) -> None:
    result = dsf("rescore", SAMPLE)
    assert result.exit_code == 0
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["CLUSTER", "worker01", "worker02"]
    assert (fleet.redis.llen("spoke.worker01"), fleet.redis.llen("spoke.worker02")) == (1, 1)


def test_rescore_wait_prints_the_new_score(dsf: Dsf, fleet: Fleet) -> None:
    def play(scorer: str, run_id: str) -> None:
        fleet.score("worker01", results=[({"node": "n1"}, 99.0)], age=0)
        fleet.cycle("worker01", run=run_id, outcome="ok")

    with playing(fleet.redis, "worker01", play):
        result = dsf("rescore", SAMPLE, "--cluster", "worker01", "--wait", "-o", "json")
    assert result.exit_code == 0
    report = loaded(result)
    assert report["runs"][0]["outcome"] == "ok"
    assert report["scores"][0]["results"] == [{"metric": {"node": "n1"}, "score": 99.0}]
    with playing(fleet.redis, "worker01", play):
        printed = dsf("rescore", SAMPLE, "--cluster", "worker01", "--wait").stdout
    assert "ITEM" in printed
    assert "n1" in printed


def test_rescore_wait_reports_the_failure_of_the_cycle(dsf: Dsf, fleet: Fleet) -> None:
    def play(scorer: str, run_id: str) -> None:
        fleet.cycle("worker01", run=run_id, outcome="error", stage="fetch", reason="bad_query", message="parse error")

    with playing(fleet.redis, "worker01", play):
        result = dsf("rescore", SAMPLE, "--cluster", "worker01", "--wait")
    assert result.exit_code == 1
    assert "fetch: bad_query: parse error" in result.stdout
    assert "ITEM" not in result.stdout


@pytest.mark.parametrize(
    ("outcome", "counts", "code"),
    [
        ("partial", {"items": 1, "results": 1, "refused": 1}, 0),
        ("partial", {"items": 0, "results": 1, "refused": 1}, 1),
        ("empty", {"items": 0, "results": 0}, 1),
    ],
)
def test_rescore_wait_reports_a_success_without_a_score(
    dsf: Dsf, fleet: Fleet, outcome: str, counts: dict[str, int], code: int
) -> None:
    def play(scorer: str, run_id: str) -> None:
        cycle = {"run": run_id, "outcome": outcome, "counts": counts, "reason": "some_reason", "message": "the cause"}
        fleet.cycle("worker01", **cycle)

    with playing(fleet.redis, "worker01", play):
        result = dsf("rescore", SAMPLE, "--cluster", "worker01", "--wait")
    assert result.exit_code == code
    assert "some_reason: the cause" in result.stdout


def test_rescore_wait_timeout_reports_where_the_tick_is(dsf: Dsf, fleet: Fleet) -> None:
    result = dsf("rescore", SAMPLE, "--cluster", "worker01", "--wait", "--timeout", "1")
    assert result.exit_code == 1
    assert "messages waiting in spoke.worker01: 1; does its agent run?" in result.stdout
    assert result.stderr.startswith("dsf: not all cycles have ended within 1 s, they go on: `dsf status sample-scorer`")


def test_rescore_wait_without_time_checks_once(dsf: Dsf, fleet: Fleet) -> None:
    began = time.monotonic()
    result = dsf("rescore", SAMPLE, "--cluster", "worker01", "--wait", "--timeout", "0")
    assert time.monotonic() - began < 30, "that is not the 60 s without --timeout"
    assert result.exit_code == 1
    assert "messages waiting in spoke.worker01: 1" in result.stdout


def looks_for_cycles(client: redis.Redis) -> bool:
    """Whether the newest command of some `dsf` reads past cycles."""
    return any(connection["cmd"] == "lrange" and "dsf-cli" in connection["name"] for connection in client.client_list())


def test_interrupted_rescore_wait_reports_received_results(fleet: Fleet, redis_url: str, tmp_path: Path) -> None:
    values = {"DSF_REDIS_URL": redis_url, "XDG_STATE_HOME": str(tmp_path)}
    with (
        playing(fleet.redis, "worker01", lambda _, run_id: fleet.cycle("worker01", run=run_id)),
        dsf_process("rescore", SAMPLE, "--wait", **values) as process,
    ):
        wait_for(lambda: Pairs(fleet.redis).read_history("worker01", SAMPLE)[1:], 60, "one of two cycles to end")
        wait_for(lambda: looks_for_cycles(fleet.redis), 60, "the command to wait for the other")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=300)
    assert (process.returncode, out) == (130, "")
    assert err == (
        "dsf: interrupted; 1 of 2 cycles have ended, the others go on: "
        f"`dsf history {SAMPLE} --cluster CLUSTER` will say how they ended\n"
    )


def test_rescore_reports_results_that_no_worker_ingests(dsf: Dsf, fleet: Fleet) -> None:
    with playing(fleet.redis, "worker01", lambda *_: fleet.redis.set(keys.mail_slot("worker01", 3), "result") and None):
        # Longer if the tick was not taken in that time, because the machine may be busy.
        for seconds in ("1", "5", "20"):
            result = dsf("rescore", SAMPLE, "--cluster", "worker01", "--wait", "--timeout", seconds)
            wait_for(lambda: fleet.redis.llen("spoke.worker01") == 0, 5, "the tick to be taken")
            if "does its agent run?" not in result.stdout:
                break
    assert "does the service results run?" in result.stdout


def test_rescore_skips_a_cluster_with_a_full_queue(dsf: Dsf, fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSF_QUEUE_LIMIT", "2")
    fleet.redis.lpush("spoke.worker01", "a", "b")
    result = dsf("rescore", SAMPLE, "-o", "json")
    assert result.exit_code == 1
    runs = {run["cluster"]: run for run in loaded(result)["runs"]}
    assert runs["worker01"]["runId"] == ""
    assert "2 messages wait in spoke.worker01" in runs["worker01"]["message"]
    assert runs["worker02"]["runId"]
    assert (fleet.redis.llen("spoke.worker01"), fleet.redis.llen("spoke.worker02")) == (2, 1)
    [change] = changes.read_changes(fleet.redis).changes
    assert (change.clusters, change.cluster_count, change.detail) == ([], 1, "1 not sent")
    # A rescore that sends no tick records no change.
    assert dsf("rescore", SAMPLE, "--cluster", "worker01").exit_code == 1
    assert len(changes.read_changes(fleet.redis).changes) == 1


def test_interrupted_rescore_records_its_author_and_the_sent_ticks(
    fleet: Fleet, settings_factory: SettingsFactory, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = rescoring.send_now

    def breaks_off(client: redis.Redis, cluster: str, *arguments: Any, **options: Any) -> str:
        if cluster == "worker02":
            raise redis.ConnectionError("Redis is away")
        return send(client, cluster, *arguments, **options)

    monkeypatch.setattr(rescoring, "send_now", breaks_off)
    actions = Actions(fleet.redis, settings_factory(redis_url=redis_url), Actor(name="ann", claimed=False, way="page"))
    with pytest.raises(redis.ConnectionError):
        actions.rescore(SAMPLE)
    [change] = changes.read_changes(fleet.redis).changes
    assert (change.by, change.clusters) == ("ann", ["worker01"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("static-scorer",), "scorer 'static-scorer' runs on no cluster now; `dsf status static-scorer` may say why"),
        (
            ("static-scorer", "--cluster", "worker01"),
            (
                "scorer 'static-scorer' does not run on cluster 'worker01': it is masked there, not healthy, or not "
                "distributed yet; it runs on: none"
            ),
        ),
    ],
)  # fmt: skip
def test_rescore_refuses_pairs_that_cannot_be_scored(
    dsf: Dsf, fleet: Fleet, arguments: tuple[str, ...], message: str
) -> None:
    result = dsf("rescore", *arguments)
    assert (result.exit_code, result.stderr) == (1, f"error: {message}\n")
    assert fleet.redis.llen("spoke.worker01") == fleet.redis.llen("spoke.worker02") == 0


def test_rescore_timeout_without_wait_is_a_usage_error(dsf: Dsf, fleet: Fleet) -> None:
    result = dsf("rescore", SAMPLE, "--timeout", "5")
    assert result.exit_code == 2
    assert "goes with --wait" in result.stderr
    assert fleet.redis.llen("spoke.worker01") == 0
