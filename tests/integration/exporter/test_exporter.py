"""The exporter as a process, against a real Redis."""

from __future__ import annotations

import gzip
import platform
import subprocess
from importlib import metadata
from pathlib import Path

import pytest
import redis
import requests
from prometheus_client.parser import text_string_to_metric_families

from dsf import keys
from tests.integration.exporter.fleet import SAMPLE, STATIC, good_fleet
from tests.integration.exporter.server import ApiProcess
from tests.support.programs import find
from tests.support.redisserver import RedisServer
from tests.support.wait import wait_for

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples(text: str) -> Samples:
    samples_by_key: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in samples_by_key, f"exposed twice: {key}"
            samples_by_key[key] = sample.value
    return samples_by_key


def value(exposed_samples: Samples, name: str, **labels: str) -> float | None:
    return exposed_samples.get((name, frozenset(labels.items())))


def test_probe_port_has_the_metrics_of_the_process_itself(exporter: ApiProcess) -> None:
    response = requests.get(f"http://127.0.0.1:{exporter.settings['probe_port']}/metrics", timeout=60)
    assert response.status_code == 200
    exposed_samples = samples(response.text)
    versions = {
        "version": metadata.version("dynamic-scoring-framework"),
        "celery_version": metadata.version("celery"),
        "python_version": platform.python_version(),
    }
    assert value(exposed_samples, "dynamic_scoring_build_info", **versions) == 1
    for name in ("process_resident_memory_bytes", "process_cpu_seconds_total", "process_open_fds"):
        assert (value(exposed_samples, name) or 0) > 0, name
    assert {"python_info", "python_gc_collections_total"} <= {name for name, _ in exposed_samples}


def test_metrics_describe_the_fleet(exporter: ApiProcess, redis_client: redis.Redis) -> None:
    fleet = good_fleet(redis_client)
    fleet.set_counters(keys.REJECTED, {"replayed": 4})
    fleet.set_counters(keys.REJECTED_MAIL, {"worker02": 3})
    fleet.set_counters(keys.WRITE_STATS, {"written": 9, "unchanged": 80})
    redis_client.rpush(keys.spoke_queue("worker02"), "tick", "tick")
    response = exporter.get("/metrics")
    assert response.status_code == 200
    assert response.headers["Content-Type"].startswith("text/plain")
    exposed_samples = samples(response.text)
    assert value(exposed_samples, "dynamic_scoring_up") == 1
    gauge = {"ds_cluster": "worker01", "ds_node": "n2", "ds_device": "", "ds_namespace": "", "ds_app": "",
             "ds_pod": "", "ds_container": "", "ds_meta": "mean", "ds_score_name": "sample_score"}  # fmt: skip
    assert value(exposed_samples, "dynamic_score", **gauge) == -3.25
    where = {"score_name": "sample_score", "ds_cluster": "worker01"}
    assert value(exposed_samples, "dynamic_scoring_requests_total", **where, status="success") == 5
    assert value(exposed_samples, "dynamic_scoring_requests_total", **where, status="failure") == 1
    where = {"ds_score_name": "sample_score", "ds_cluster": "worker01"}
    assert value(exposed_samples, "dynamic_scoring_stage_seconds_count", **where, stage="fetch") == 6
    failure = {**where, "stage": "fetch", "reason": "timeout"}
    assert value(exposed_samples, "dynamic_scoring_failures_total", **failure) == 1
    assert value(exposed_samples, "dynamic_scoring_results_rejected_total", reason="replayed") == 4
    assert value(exposed_samples, "dynamic_scoring_results_rejected_total", reason="bad_signature") == 0
    assert value(exposed_samples, "dynamic_scoring_mail_rejected_total", ds_cluster="worker02") == 3
    assert value(exposed_samples, "dynamic_scoring_score_writes_total", result="unchanged") == 80
    assert value(exposed_samples, "dynamic_scoring_queue_length", queue="spoke.worker02") == 2
    assert value(exposed_samples, "dynamic_scoring_queue_length", queue="hub.results") == 0
    assert value(exposed_samples, "dynamic_scoring_entries") == 2
    assert value(exposed_samples, "dynamic_scoring_scorer_healthy", ds_score_name="sample_score") == 1
    assert value(exposed_samples, "dynamic_scoring_scorer_healthy", ds_score_name="static_score") == 0


@pytest.mark.parametrize("filled", [True, False])
def test_metrics_pass_promtool(exporter: ApiProcess, redis_client: redis.Redis, filled: bool) -> None:
    promtool = find("promtool")
    if filled:
        good_fleet(redis_client).failure("worker01")
    checked = subprocess.run(
        [promtool, "check", "metrics"], input=exporter.get("/metrics").content, capture_output=True, timeout=300
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def test_metrics_are_served_as_openmetrics_and_gzip_on_request(exporter: ApiProcess, redis_client: redis.Redis) -> None:
    good_fleet(redis_client)
    response = exporter.get("/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert response.headers["Content-Type"].startswith("application/openmetrics-text")
    assert response.text.endswith("# EOF\n")
    zipped = exporter.get("/metrics", **{"Accept-Encoding": "gzip"})
    assert zipped.headers["Content-Encoding"] == "gzip"
    assert samples(zipped.text)
    assert len(gzip.compress(zipped.content)) < len(zipped.content)


def test_scores_are_served_as_json(exporter: ApiProcess, redis_client: redis.Redis) -> None:
    fleet = good_fleet(redis_client)
    run = fleet.score("worker01", age=30)
    report = exporter.get("/api/v1/scores?cluster=worker01&scorer=sample-scorer").json()
    assert set(report) == {"at", "total", "scores", "continue"}
    assert report["continue"] is None
    (score,) = report["scores"]
    assert (score["cluster"], score["scorer"], score["scoreName"]) == ("worker01", SAMPLE, "sample_score")
    assert score["runId"] == run
    assert score["items"] == [{"name": "n1", "value": 12}, {"name": "n2", "value": -4}]
    assert score["results"][1] == {"metric": {"node": "n2", "meta": "mean"}, "score": -3.25}
    assert (score["expired"], score["fresh"], score["failing"], score["failure"]) == (False, True, 0, None)
    assert 30 <= score["ageSeconds"] < 60
    assert score["at"].endswith("Z")
    assert score["validUntil"] > score["at"]


def test_scorers_are_served_as_json(exporter: ApiProcess, redis_client: redis.Redis) -> None:
    fleet = good_fleet(redis_client)
    fleet.failure("worker02")
    scorers_by_name = {scorer["name"]: scorer for scorer in exporter.get("/api/v1/scorers").json()["scorers"]}
    assert list(scorers_by_name) == [SAMPLE, STATIC]
    assert scorers_by_name[SAMPLE]["healthStatus"] == "Active"
    assert {state for state, number in scorers_by_name[SAMPLE]["states"].items() if number == 1} == {"ok", "failing"}
    assert sum(scorers_by_name[SAMPLE]["states"].values()) == scorers_by_name[SAMPLE]["pairs"] == 2
    assert scorers_by_name[SAMPLE]["reasons"][0]["cluster"] == "worker02"
    assert scorers_by_name[STATIC]["pairs"] == 0


def test_history_and_books_are_served_as_json(exporter: ApiProcess, redis_client: redis.Redis) -> None:
    fleet = good_fleet(redis_client)
    fleet.cycle("worker01", outcome="error", stage="score", reason="http_error", message="HTTP 500")
    history = exporter.get("/api/v1/history/worker01/sample-scorer").json()
    assert [cycle["outcome"] for cycle in history["cycles"]] == ["error", "ok"]
    assert history["cycles"][1]["counts"] == {"series": 2, "bytes": 512}
    books = history["books"]
    outcomes = ("ok", "empty", "partial", "error", "skipped", "lost", "open")
    assert books["scheduled"] == 7 == sum(books[name] for name in outcomes)
    assert books["skippedByReason"] == {"overlap": 1}


@pytest.mark.parametrize(
    ("path", "detail"),
    [
        ("/api/v1/scores?scorer=nobody", "no scorer 'nobody' runs; registered: sample-scorer, static-scorer"),
        ("/api/v1/scorers?scorer=nobody", "no scorer 'nobody' runs; registered: sample-scorer, static-scorer"),
        ("/api/v1/schedule?scorer=nobody", "no scorer 'nobody' runs; registered: sample-scorer, static-scorer"),
        ("/api/v1/scores?cluster=mars", "no cluster 'mars' is accepted; registered: worker01, worker02"),
        ("/api/v1/history/mars/sample-scorer", "no cluster 'mars' is accepted; registered: worker01, worker02"),
    ],
)
def test_unknown_name_is_404_and_lists_the_registered_names(
    exporter: ApiProcess, redis_client: redis.Redis, path: str, detail: str
) -> None:
    good_fleet(redis_client)
    response = exporter.get(path)
    assert response.status_code == 404
    assert response.headers["Content-Type"] == "application/problem+json"
    assert response.json() == {"title": "Not found", "status": 404, "detail": detail}


def test_exporter_serves_get_requests_only(exporter: ApiProcess) -> None:
    paths = exporter.get("/openapi.json").json()["paths"]
    assert {method for operations in paths.values() for method in operations} == {"get"}


def test_openapi_describes_the_responses(exporter: ApiProcess) -> None:
    document = exporter.get("/openapi.json").json()
    assert {"/api/v1/scores", "/api/v1/scorers", "/api/v1/schedule"} <= set(document["paths"])
    responses = document["paths"]["/api/v1/scores"]["get"]["responses"]
    assert responses["200"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/ScoreList"}
    assert {"404", "503"} <= set(responses)
    score = document["components"]["schemas"]["ScoreView"]["properties"]
    assert {"scoreName", "validUntil", "ageSeconds", "expired", "fresh"} <= set(score)
    assert score["validUntil"]["anyOf"][0] == {"type": "string", "format": "date-time"}


def test_exporter_recovers_from_a_redis_outage(tmp_path: Path) -> None:
    with RedisServer(aof=True) as server, ApiProcess(server.url, tmp_path / "log") as process:
        good_fleet(server.client())
        assert process.get("/readyz").status_code == 200
        server.kill()
        assert process.get("/healthz").status_code == 200
        assert process.get("/readyz").status_code == 503
        response = process.get("/metrics")
        assert response.status_code == 200
        assert samples(response.text) == {("dynamic_scoring_up", frozenset()): 0}
        response = process.get("/api/v1/scores")
        assert response.status_code == 503
        assert response.json()["title"] == "Redis cannot be read"
        assert "Connection refused" in response.json()["detail"]
        server.restart()
        wait_for(lambda: process.get("/readyz").status_code == 200, 10, "the exporter to reconnect")
        assert value(samples(process.get("/metrics").text), "dynamic_scoring_up") == 1


def test_exporter_ends_cleanly_on_sigterm(redis_url: str, tmp_path: Path) -> None:
    with ApiProcess(redis_url, tmp_path / "log") as process:
        assert process.terminate() == 0
        assert "hub ended" in process.log
        assert "Traceback" not in process.log
