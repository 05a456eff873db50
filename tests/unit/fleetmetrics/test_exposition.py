"""Series of a scrape: all of a small fleet, selected ones and sums of a large fleet."""

from __future__ import annotations

import sys
import time

import pytest
import redis
from fastapi import FastAPI
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from dsf import keys
from dsf.fleet.api import add_problems
from dsf.fleet.queries import FleetQueries
from dsf.fleetmetrics.collector import PER_PAIR
from dsf.fleetmetrics.endpoint import add_metrics
from dsf.store.registry import Registry, ScorerRecord
from dsf.store.schedule import ScheduleStore
from tests.integration.exporter.fleet import SAMPLE, Fleet, good_fleet
from tests.support.memorystore import memory_client

#: 2 pairs with 2 items each.
EVERYTHING = 2 * PER_PAIR + 4


def make_app(client: redis.Redis, series_limit: int = sys.maxsize) -> FastAPI:
    app = FastAPI()
    add_metrics(app, client, FleetQueries(client), limit=series_limit, home="")
    add_problems(app)
    return app


def scraped(client: TestClient, query: str = "") -> dict[str, list[dict[str, str]]]:
    """Label sets by name of the sample."""
    response = client.get(f"/metrics{query}")
    assert response.status_code == 200
    labels_by_metric: dict[str, list[dict[str, str]]] = {}
    for family in text_string_to_metric_families(response.text):
        for sample in family.samples:
            labels_by_metric.setdefault(sample.name, []).append(sample.labels)
    return labels_by_metric


@pytest.fixture
def redis_client() -> redis.Redis:
    """A client of the empty store in memory."""
    return memory_client()


@pytest.fixture
def fleet(redis_client: redis.Redis) -> Fleet:
    return good_fleet(redis_client)


@pytest.mark.parametrize(
    ("limit", "level", "scores", "books"),
    [
        (EVERYTHING, "items", 4, 2),
        (EVERYTHING - 1, "pair", 0, 2),
        (2 * PER_PAIR, "pair", 0, 2),
        (2 * PER_PAIR - 1, "none", 0, 0),
    ],
)
def test_series_above_the_limit_are_left_out_of_the_exposition(
    fleet: Fleet, limit: int, level: str, scores: int, books: int
) -> None:
    exposed = scraped(TestClient(make_app(fleet.redis, series_limit=limit)))
    assert len(exposed.get("dynamic_score", [])) == scores
    assert len(exposed.get("dynamic_scoring_scheduled_total", [])) == books
    assert {sample["ds_score_name"]: sample["exposition"] for sample in exposed["dynamic_scoring_exposition"]} == {
        "sample_score": level,
        "static_score": level,
    }
    # The wanted series do not depend on the exposed ones.
    text = TestClient(make_app(fleet.redis, series_limit=limit)).get("/metrics").text
    assert f"dynamic_scoring_series_wanted {float(EVERYTHING)}" in text.splitlines()
    # Sums are always there.
    assert {"ds_score_name": "sample_score", "state": "ok"} in exposed["dynamic_scoring_pairs"]
    assert {"ds_score_name": "sample_score", "percentile": "99"} in exposed["dynamic_scoring_age_seconds"]


def test_score_that_changes_its_scorer_has_each_series_once(fleet: Fleet) -> None:
    """Until the next plan, the registry has both scorers of the score name."""
    other = ScorerRecord(name="other", score_name="sample_score", interval=10, validity=300, health="Inactive")
    Registry(fleet.redis).put_scorer(other)
    fleet.entry("worker01", "other")
    client = TestClient(make_app(fleet.redis))
    for name, label_sets in scraped(client).items():
        frozen = [tuple(sorted(labels.items())) for labels in label_sets]
        assert len(frozen) == len(set(frozen)), name
    lines = client.get("/metrics").text.splitlines()
    assert 'dynamic_scoring_scorer_healthy{ds_score_name="sample_score"} 0.0' in lines
    assert 'dynamic_scoring_pairs{ds_score_name="sample_score",state="never"} 1.0' in lines
    assert 'dynamic_scoring_pairs{ds_score_name="sample_score",state="ok"} 2.0' in lines


def test_exposition_setting_of_a_scorer_selects_its_series(fleet: Fleet) -> None:
    for exposition, scores, books in (("items", 4, 2), ("pair", 0, 2), ("none", 0, 0)):
        record = ScorerRecord.model_validate(
            {"name": SAMPLE, "score_name": "sample_score", "interval": 10, "validity": 300, "exposition": exposition}
        )
        Registry(fleet.redis).put_scorer(record)
        for limit in (0, 1_000_000):
            exposed = scraped(TestClient(make_app(fleet.redis, series_limit=limit)))
            assert len(exposed.get("dynamic_score", [])) == scores
            assert len(exposed.get("dynamic_scoring_scheduled_total", [])) == books


def test_unpaused_pairs_expose_the_interval_in_force(fleet: Fleet) -> None:
    store = ScheduleStore(fleet.redis)
    store.set_override(f"*/{SAMPLE}", interval=60)
    store.set_override(f"worker02/{SAMPLE}", interval=7200)
    name = "dynamic_scoring_interval_seconds"

    def exposed_intervals() -> dict[str, float]:
        text = TestClient(make_app(fleet.redis)).get("/metrics").text
        families = [family for family in text_string_to_metric_families(text) if family.name == name]
        return {sample.labels["ds_cluster"]: sample.value for family in families for sample in family.samples}

    assert exposed_intervals() == {"worker01": 60, "worker02": 7200}
    store.set_override(f"worker02/{SAMPLE}", paused=True)
    assert exposed_intervals() == {"worker01": 60}
    store.set_override(f"worker02/{SAMPLE}", paused=True, paused_until=time.time() - 1)
    assert exposed_intervals() == {"worker01": 60, "worker02": 7200}
    # Its scoring API is down: its cycles are missing, and an alert fires.
    [entry] = store.read_entries([f"worker02/{SAMPLE}"])
    fleet.redis.hset(keys.ENTRIES, entry.pair, entry.make_stopped().dump())
    assert exposed_intervals() == {"worker01": 60, "worker02": 7200}


def test_reasons_are_counted(fleet: Fleet) -> None:
    fleet.failure("worker02")
    exposed = scraped(TestClient(make_app(fleet.redis, series_limit=0)))
    assert exposed["dynamic_scoring_pairs_by_reason"] == [
        {"ds_score_name": "sample_score", "state": "failing", "stage": "fetch", "reason": "bad_query"}
    ]


def test_shards_have_every_cluster_once(fleet: Fleet) -> None:
    for number in range(20):
        fleet.entry(f"edge{number}")
        fleet.score(f"edge{number}")
    client = TestClient(make_app(fleet.redis))
    whole = scraped(client)
    shards = [scraped(client, f"?shard={number}/3") for number in range(3)]
    clusters = [{score["ds_cluster"] for score in shard.get("dynamic_score", [])} for shard in shards]
    assert set.union(*clusters) == {score["ds_cluster"] for score in whole["dynamic_score"]}
    assert sum(map(len, clusters)) == 22
    assert ["dynamic_scoring_up" in shard for shard in shards] == [True, True, True]
    assert ["dynamic_scoring_entries" in shard for shard in shards] == [True, False, False]


@pytest.mark.parametrize("shard", ["3/3", "-1/3", "1", "a/b", "0/1000", f"{5000 * '1'}/4"])
def test_invalid_shard_is_refused(fleet: Fleet, shard: str) -> None:
    response = TestClient(make_app(fleet.redis)).get(f"/metrics?shard={shard}")
    assert response.status_code == 400
    assert "shard: i/n" in response.json()["detail"]
