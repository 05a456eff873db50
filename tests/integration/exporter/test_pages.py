"""Scores of a large fleet come in pages."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import pytest
import redis

from dsf import keys
from tests.integration.exporter.fleet import SAMPLE, good_fleet
from tests.integration.exporter.server import ExporterProcess


def test_scores_come_in_pages(exporter: ExporterProcess, redis_client: redis.Redis) -> None:
    fleet = good_fleet(redis_client)
    for number in range(5):
        fleet.entry(f"edge{number}")
        fleet.score(f"edge{number}")

    def page(more: str = "", **parameters: str | int) -> dict[str, Any]:
        query = urlencode(parameters | ({"continue": more} if more else {}))
        answer = exporter.get(f"/api/v1/scores?{query}")
        assert answer.status_code == 200
        found: dict[str, Any] = answer.json()
        return found

    first = page(limit=3)
    assert [score["cluster"] for score in first["scores"]] == ["edge0", "edge1", "edge2"]
    # What goes or comes meanwhile moves no other one.
    redis_client.hdel(keys.ENTRIES, "edge2/sample-scorer")
    fleet.entry("alpha")
    second = page(first["continue"], limit=3)
    assert [score["cluster"] for score in second["scores"]] == ["edge3", "edge4", "worker01"]
    last = page(second["continue"], limit=3)
    assert [score["cluster"] for score in last["scores"]] == ["worker02"]
    assert last["continue"] is None
    assert page(limit=7)["continue"] is None
    assert page(scorer=SAMPLE, cluster="worker02", limit=1)["continue"] is None
    assert len(page()["scores"]) == 7


@pytest.mark.parametrize("limit", ["0", "10001", "-1", "many"])
def test_a_limit_that_cannot_be_is_refused(exporter: ExporterProcess, limit: str) -> None:
    answer = exporter.get(f"/api/v1/scores?limit={limit}")
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"] == ["query", "limit"]


def test_the_pages_are_in_the_openapi_document(exporter: ExporterProcess) -> None:
    document = exporter.get("/openapi.json").json()
    parameters = {one["name"]: one for one in document["paths"]["/api/v1/scores"]["get"]["parameters"]}
    assert set(parameters) == {"cluster", "scorer", "limit", "continue"}
    limit = parameters["limit"]["schema"]
    assert (limit["default"], limit["minimum"], limit["maximum"]) == (1000, 1, 10_000)
    assert "continue" in document["components"]["schemas"]["ScoreList"]["properties"]
