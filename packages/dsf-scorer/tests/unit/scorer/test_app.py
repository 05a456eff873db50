"""The service: endpoints, errors, metrics."""

from __future__ import annotations

import asyncio
import html
import logging
import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import Counter
from starlette.testclient import TestClient

from dsf.scorer import Score, ScorerApp, Series, Skipped, Unavailable

from .apps import TWO, mean_scorer, metric, scorer


@pytest.fixture
def client() -> Iterator[TestClient]:
    with TestClient(mean_scorer()) as opened:
        yield opened


def test_scores(client: TestClient) -> None:
    answer = client.post("/scoring", json=TWO)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["results"] == [{"metric": {"pod": "a"}, "score": 6.0}]


def test_health_config_and_documents(client: TestClient) -> None:
    assert client.get("/healthz").json() == {"status": "ok"}
    assert client.get("/config").json()["scoring"] == {
        "path": "/scoring",
        "params": {"name": "mean_score", "interval": 30},
    }
    assert "/scoring" in client.get("/openapi.json").json()["paths"]


def test_documentation_page_is_self_contained_and_its_examples_work(client: TestClient) -> None:
    answer = client.get("/docs", headers={"Host": '<script src="//x">'})
    assert answer.status_code == 200
    assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert not re.search(r"<script|<link|<img|@import|url\(", answer.text)
    page = client.get("/docs").text
    assert re.findall(r"""(?:src|href)=["']([^"']+)""", page) == ["openapi.json"]
    assert set(re.findall(r"[a-z]+://[^/ <&]+", page)) == {str(client.base_url)}
    statuses = {}
    for text in re.findall(r"<pre>(.*?)</pre>", page):
        words = shlex.split(html.unescape(text))
        path = words[2].removeprefix(str(client.base_url))
        body = words[words.index("-d") + 1] if "-d" in words else None
        statuses[path] = (client.post(path, content=body) if body else client.get(path)).status_code
    assert statuses == dict.fromkeys(["/config", "/scoring", "/healthz", "/metrics"], 200)


@pytest.mark.parametrize("path", ["/config/", "/scoring/", "/nothing", "/performance/config"])
def test_no_redirects_and_a_404_that_helps(client: TestClient, path: str) -> None:
    answer = client.get(path, follow_redirects=False)
    assert answer.status_code == 404
    assert "/config, /scoring" in answer.json()["detail"]


def test_no_body_is_no_series(client: TestClient) -> None:
    answer = client.post("/scoring")
    assert (answer.status_code, answer.json()) == (200, {"results": []})


@pytest.mark.parametrize(("body", "status"), [("{", 400), ('{"data": 1}', 422), ("[]", 422), (" ", 400)])
def test_invalid_request_is_refused(client: TestClient, body: str, status: int) -> None:
    answer = client.post("/scoring", content=body)
    assert answer.status_code == status
    assert answer.json()["detail"]


def test_compressed_request_is_refused(client: TestClient) -> None:
    answer = client.post("/scoring", content=b"x", headers={"Content-Encoding": "gzip"})
    assert (answer.status_code, "as it is" in answer.json()["detail"]) == (415, True)


def test_request_with_two_lengths_is_refused_and_its_connection_closed(client: TestClient) -> None:
    headers = {"Content-Length": "5", "Transfer-Encoding": "chunked"}
    answer = client.post("/scoring", content=b"0\r\n\r\n", headers=headers)
    assert (answer.status_code, answer.headers["connection"]) == (400, "close")
    assert "both headers" in answer.json()["detail"]


def test_metrics(client: TestClient) -> None:
    client.post("/scoring", json=TWO)
    client.post("/scoring", content="{")
    name = "dynamic_scoring_api_"
    assert metric(client, f'{name}requests_total{{ds_score_name="mean_score",status="200"}}') == 1
    assert metric(client, f'{name}requests_total{{ds_score_name="mean_score",status="400"}}') == 1
    assert metric(client, f'{name}request_seconds_count{{ds_score_name="mean_score"}}') == 2
    assert metric(client, f'{name}request_bytes_count{{ds_score_name="mean_score"}}') == 2
    assert metric(client, f'{name}request_series_sum{{ds_score_name="mean_score"}}') == 2
    assert metric(client, f'{name}results_total{{ds_score_name="mean_score"}}') == 1
    assert metric(client, f'{name}results_refused_total{{ds_score_name="mean_score",reason="nan"}}') == 1
    assert metric(client, f'{name}requests_in_progress{{ds_score_name="mean_score"}}') == 0


def test_custom_metrics_are_exposed() -> None:
    app = ScorerApp(mean_scorer())
    Counter("my_calls", "Calls.", registry=app.registry).inc(3)
    with TestClient(app) as client:
        assert metric(client, "my_calls_total") == 3


def test_skipped_series_are_counted_by_reason() -> None:
    service = scorer()

    @service.score
    def skip(series: list[Series]) -> list[Score | Skipped]:
        return [entry.skip("too_short") for entry in series]

    with TestClient(service) as client:
        assert client.post("/scoring", json=TWO).json() == {"results": [], "dropped": {"too_short": 2}}
        assert (
            metric(client, 'dynamic_scoring_api_results_refused_total{ds_score_name="mean_score",reason="too_short"}')
            == 2
        )


@pytest.mark.parametrize("is_async", [False, True])
def test_error_of_the_function_is_not_disclosed(caplog: pytest.LogCaptureFixture, is_async: bool) -> None:
    service = scorer()
    if is_async:

        @service.score
        async def broken_async(_: list[Series]) -> list[Score]:
            raise RuntimeError("the password is 1234")

    else:

        @service.score
        def broken(_: list[Series]) -> Iterator[Score]:
            yield Score(1)
            raise RuntimeError("the password is 1234")

    with TestClient(service) as client, caplog.at_level(logging.ERROR):
        answer = client.post("/scoring", json=TWO)
        assert client.get("/healthz").status_code == 200
    assert answer.status_code == 500
    assert "1234" not in answer.text
    assert "RuntimeError" not in answer.text
    error_id = answer.json()["error_id"]
    assert error_id in answer.json()["detail"]
    (record,) = [record for record in caplog.records if record.name == "dsf.scorer"]
    assert error_id in record.getMessage()
    assert "the password is 1234" in caplog.text


@pytest.mark.parametrize("result", [None, [5], [None]])
def test_scoring_function_with_a_bad_result_gives_500(result: Any, caplog: pytest.LogCaptureFixture) -> None:
    service = scorer()
    service.score(lambda _: result)
    with TestClient(service) as client:
        assert client.post("/scoring", json=TWO).status_code == 500
    assert "TypeError: the scoring function" in caplog.text


def test_unavailable_gives_503_with_the_message_of_the_author() -> None:
    service = scorer()

    @service.score
    def away(_: list[Series]) -> list[Score]:
        raise Unavailable("the model does not answer", retry_after=7)

    with TestClient(service) as client:
        answer = client.post("/scoring", json=TWO)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "7")
    assert answer.json() == {"detail": "the model does not answer"}


def test_async_function() -> None:
    service = scorer()

    @service.score
    async def count(series: list[Series]) -> list[Score]:
        await asyncio.sleep(0)
        return [Score(len(series))]

    with TestClient(service) as client:
        assert client.post("/scoring", json=TWO).json()["results"][0]["score"] == 2
