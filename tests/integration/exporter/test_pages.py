"""Pages for people, and scores of a large fleet in pages."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlencode

import pytest
import redis

from dsf import keys
from tests.integration.exporter.fleet import SAMPLE, good_fleet
from tests.integration.exporter.server import ApiProcess


def test_scores_are_paged(exporter: ApiProcess, redis_client: redis.Redis) -> None:
    fleet = good_fleet(redis_client)
    for number in range(5):
        fleet.entry(f"edge{number}")
        fleet.score(f"edge{number}")

    def page(continue_token: str = "", **parameters: str | int) -> dict[str, Any]:
        query = urlencode(parameters | ({"continue": continue_token} if continue_token else {}))
        response = exporter.get(f"/api/v1/scores?{query}")
        assert response.status_code == 200
        page_content: dict[str, Any] = response.json()
        return page_content

    first = page(limit=3)
    assert [score["cluster"] for score in first["scores"]] == ["edge0", "edge1", "edge2"]
    # Pairs that are removed or added meanwhile do not shift the others.
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
def test_invalid_limit_is_refused(exporter: ApiProcess, limit: str) -> None:
    response = exporter.get(f"/api/v1/scores?limit={limit}")
    assert response.status_code == 422
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["detail"].startswith("limit: Input should be")


def test_paging_parameters_are_in_the_openapi_document(exporter: ApiProcess) -> None:
    document = exporter.get("/openapi.json").json()
    parameters = {
        parameter["name"]: parameter for parameter in document["paths"]["/api/v1/scores"]["get"]["parameters"]
    }
    assert set(parameters) == {"cluster", "scorer", "state", "limit", "continue", "cursor"}
    limit = parameters["limit"]["schema"]
    assert (limit["default"], limit["minimum"], limit["maximum"]) == (1000, 1, 10_000)
    assert "continue" in document["components"]["schemas"]["ScoreList"]["properties"]


def test_api_documentation_loads_no_foreign_resources(exporter: ApiProcess) -> None:
    page = exporter.get("/docs").text
    assert sorted(re.findall(r'(?:src|href)="([^"]+)"', page)) == [
        "data:,",
        "docs/start.js",
        "docs/swagger-ui-bundle.js",
        "docs/swagger-ui.css",
    ]
    assert 'url: "openapi.json"' in exporter.get("/docs/start.js").text
    assert "//" not in re.sub(r"<!--.*?-->", "", page)
    for path, kind, text in (
        ("/docs/swagger-ui-bundle.js", "text/javascript", "SwaggerUIBundle"),
        ("/docs/swagger-ui.css", "text/css", ".swagger-ui"),
    ):
        plain, packed = exporter.get(path), exporter.get(path, **{"Accept-Encoding": "gzip"})
        assert plain.headers["Content-Type"].startswith(kind)
        assert packed.headers["Content-Encoding"] == "gzip"
        assert plain.text == packed.text
        assert text in plain.text
    assert exporter.get("/docs/other.js").status_code == 400
