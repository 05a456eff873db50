"""The service: endpoints, errors, limits, metrics, prefixes."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from prometheus_client import Counter
from starlette.testclient import TestClient

from dsf.scorer import Bearer, Limits, Prometheus, Score, Scorer, ScorerApp, ScorerError, Series, Skipped, Unavailable

TWO = {
    "data": [{"metric": {"pod": "a"}, "values": [[1, "5"], [2, "7"]]}, {"metric": {"pod": "b"}, "values": [[1, "NaN"]]}]
}


def scorer(**values: Any) -> Scorer:
    given: dict[str, Any] = {"name": "mean", "description": "d", "score_name": "mean_score", "interval": 30}
    given["source"] = Prometheus(query="up", range=60, step=5)
    return Scorer(**(given | values))


def mean_scorer(**values: Any) -> Scorer:
    made = scorer(**values)

    @made.score
    def mean(series: list[Series]) -> Iterable[Score]:
        for one in series:
            yield one.score(one.values.mean() if len(one) else float("nan"))

    return made


def metric(client: TestClient, line: str) -> float:
    """The value of one line of /metrics; 0 when it is not there."""
    for found in client.get("/metrics").text.splitlines():
        if found.startswith(line + " "):
            return float(found.rpartition(" ")[2])
    return 0.0


@pytest.fixture
def client() -> Iterator[TestClient]:
    with TestClient(mean_scorer()) as opened:
        yield opened


def test_scores(client: TestClient) -> None:
    answer = client.post("/scoring", json=TWO)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == {"results": [{"metric": {"pod": "a"}, "score": 6.0}]}


def test_health_config_and_documents(client: TestClient) -> None:
    assert client.get("/healthz").json() == {"status": "ok"}
    assert client.get("/config").json()["scoring"] == {
        "path": "/scoring",
        "params": {"name": "mean_score", "interval": 30},
    }
    assert client.get("/docs").status_code == 200
    assert "/scoring" in client.get("/openapi.json").json()["paths"]


@pytest.mark.parametrize("path", ["/config/", "/scoring/", "/nothing", "/performance/config"])
def test_no_redirects_and_a_404_that_helps(client: TestClient, path: str) -> None:
    answer = client.get(path, follow_redirects=False)
    assert answer.status_code == 404
    assert "/config, /scoring" in answer.json()["detail"]


def test_no_body_is_no_series(client: TestClient) -> None:
    answer = client.post("/scoring")
    assert (answer.status_code, answer.json()) == (200, {"results": []})


@pytest.mark.parametrize(("body", "status"), [("{", 400), ('{"data": null}', 422), ("[]", 422), (" ", 400)])
def test_what_is_no_request(client: TestClient, body: str, status: int) -> None:
    answer = client.post("/scoring", content=body)
    assert answer.status_code == status
    assert answer.json()["detail"]


def test_a_compressed_request_is_refused(client: TestClient) -> None:
    answer = client.post("/scoring", content=b"x", headers={"Content-Encoding": "gzip"})
    assert (answer.status_code, "as it is" in answer.json()["detail"]) == (415, True)


def test_metrics(client: TestClient) -> None:
    client.post("/scoring", json=TWO)
    client.post("/scoring", content="{")
    name = "dynamic_scoring_api_"
    assert metric(client, f'{name}requests_total{{scorer="mean",status="200"}}') == 1
    assert metric(client, f'{name}requests_total{{scorer="mean",status="400"}}') == 1
    assert metric(client, f'{name}request_seconds_count{{scorer="mean"}}') == 2
    assert metric(client, f'{name}request_bytes_count{{scorer="mean"}}') == 2
    assert metric(client, f'{name}request_series_sum{{scorer="mean"}}') == 2
    assert metric(client, f'{name}results_total{{scorer="mean"}}') == 1
    assert metric(client, f'{name}results_refused_total{{reason="nan",scorer="mean"}}') == 1
    assert metric(client, f'{name}requests_in_progress{{scorer="mean"}}') == 0


def test_metrics_of_ones_own() -> None:
    app = ScorerApp(mean_scorer())
    Counter("my_calls", "Calls.", registry=app.registry).inc(3)
    with TestClient(app) as client:
        assert metric(client, "my_calls_total") == 3


def test_skipped_series_are_counted_by_reason() -> None:
    made = scorer()

    @made.score
    def skip(series: list[Series]) -> list[Score | Skipped]:
        return [one.skip("too_short") for one in series]

    with TestClient(made) as client:
        assert client.post("/scoring", json=TWO).json() == {"results": []}
        assert metric(client, 'dynamic_scoring_api_results_refused_total{reason="too_short",scorer="mean"}') == 2


@pytest.mark.parametrize("is_async", [False, True])
def test_an_error_in_the_function_stays_inside(caplog: pytest.LogCaptureFixture, is_async: bool) -> None:
    made = scorer()
    if is_async:

        @made.score
        async def broken_async(_: list[Series]) -> list[Score]:
            raise RuntimeError("the password is 1234")

    else:

        @made.score
        def broken(_: list[Series]) -> Iterator[Score]:
            yield Score(1)
            raise RuntimeError("the password is 1234")

    with TestClient(made) as client, caplog.at_level(logging.ERROR):
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


@pytest.mark.parametrize("given", [None, [5], [None]])
def test_a_function_that_gives_something_else(given: Any, caplog: pytest.LogCaptureFixture) -> None:
    made = scorer()
    made.score(lambda _: given)
    with TestClient(made) as client:
        assert client.post("/scoring", json=TWO).status_code == 500
    assert "TypeError: the scoring function" in caplog.text


def test_unavailable_is_503_with_ones_own_words() -> None:
    made = scorer()

    @made.score
    def away(_: list[Series]) -> list[Score]:
        raise Unavailable("the model does not answer", retry_after=7)

    with TestClient(made) as client:
        answer = client.post("/scoring", json=TWO)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "7")
    assert answer.json() == {"detail": "the model does not answer"}


def test_async_function() -> None:
    made = scorer()

    @made.score
    async def count(series: list[Series]) -> list[Score]:
        await asyncio.sleep(0)
        return [Score(len(series))]

    with TestClient(made) as client:
        assert client.post("/scoring", json=TWO).json()["results"][0]["score"] == 2


@pytest.mark.parametrize("limits", [Limits(bytes=50), Limits(series=1), Limits(samples=1, series=1)])
@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_request_that_is_too_large(limits: Limits, is_streamed: bool) -> None:
    body = b'{"data":[' + b",".join([b'{"metric":{},"values":[[1,"2"],[2,"3"]]}'] * 3) + b"]}"
    with TestClient(mean_scorer(limits=limits)) as client:
        answer = client.post("/scoring", content=iter([body[:60], body[60:]]) if is_streamed else body)
    assert answer.status_code == 413
    assert "the most that this scorer takes" in answer.json()["detail"]


def test_too_many_scores_are_an_error(caplog: pytest.LogCaptureFixture) -> None:
    with TestClient(mean_scorer(limits=Limits(results=1))) as client:
        two = {"data": [TWO["data"][0]] * 2}
        assert client.post("/scoring", json=two).status_code == 500
    assert "more than 1 scores" in caplog.text


def test_concurrency() -> None:
    made = scorer(limits=Limits(concurrency=1, wait_seconds=0.05))
    entered, leave = threading.Event(), threading.Event()

    @made.score
    def hold(_: list[Series]) -> list[Score]:
        entered.set()
        assert leave.wait(10)
        return []

    with TestClient(made) as client:
        first = threading.Thread(target=client.post, args=("/scoring",), kwargs={"json": TWO})
        first.start()
        assert entered.wait(10)
        try:
            answer = client.post("/scoring", json=TWO)
            assert metric(client, 'dynamic_scoring_api_requests_in_progress{scorer="mean"}') == 1
        finally:
            leave.set()
            first.join()
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert client.post("/scoring", json=TWO).status_code == 200


def test_a_request_that_does_not_end() -> None:
    async def ask() -> list[dict[str, Any]]:
        sent: list[dict[str, Any]] = []
        pieces = iter([b'{"data":'])

        async def receive() -> dict[str, Any]:
            for piece in pieces:
                return {"type": "http.request", "body": piece, "more_body": True}
            await asyncio.sleep(60)
            raise AssertionError

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http", "method": "POST", "path": "/scoring", "raw_path": b"/scoring", "query_string": b"",
            "headers": [], "http_version": "1.1", "scheme": "http", "root_path": "", "asgi": {"version": "3.0"},
        }  # fmt: skip
        await mean_scorer(limits=Limits(read_seconds=0.05))(scope, receive, send)
        return sent

    sent = asyncio.run(ask())
    assert sent[0]["status"] == 408
    assert b"within 0.05 seconds" in sent[1]["body"]


def test_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "secret")
    with TestClient(mean_scorer(token=Bearer(env="TOKEN"))) as client:
        assert client.get("/config").status_code == 200
        refused = client.post("/scoring", json=TWO)
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
        assert client.post("/scoring", json=TWO, headers={"Authorization": "Bearer secret"}).status_code == 200
        document = client.get("/openapi.json").json()
    assert document["paths"]["/scoring"]["post"]["security"] == [{"token": []}]
    assert document["components"]["securitySchemes"]["token"]["scheme"] == "bearer"


def start(app: Any) -> dict[str, Any]:
    """What a server hears when it starts the application."""

    async def run() -> dict[str, Any]:
        sent: list[dict[str, Any]] = []
        waiting = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]

        async def receive() -> dict[str, Any]:
            return waiting.pop(0)

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, receive, send)
        return sent[0]

    return asyncio.run(run())


def test_it_does_not_start_without_its_token_or_its_function(tmp_path: Path) -> None:
    file = tmp_path / "token"
    guarded = mean_scorer(token=Bearer(file=file))
    assert start(guarded)["type"] == "lifespan.startup.failed"
    assert str(file) in start(guarded)["message"]
    file.write_text("secret")
    assert start(guarded)["type"] == "lifespan.startup.complete"
    assert "no scoring function" in start(scorer())["message"]
    with pytest.raises(ScorerError):
        _ = scorer().app.api


def several(**values: Any) -> ScorerApp:
    return ScorerApp(
        mean_scorer(name="a", score_name="a", path="/a"), mean_scorer(name="b", score_name="b", path="/b/c"), **values
    )


def test_several_scorers_under_prefixes() -> None:
    with TestClient(several()) as client:
        assert client.get("/a/config").json()["scoring"]["path"] == "/a/scoring"
        assert client.get("/b/c/config").json()["scoring"]["params"]["name"] == "b"
        assert client.post("/b/c/scoring", json=TWO).status_code == 200
        assert client.get("/config").status_code == 404
        assert client.get("/healthz").status_code == 200
        assert metric(client, 'dynamic_scoring_api_requests_total{scorer="b",status="200"}') == 1
        operations = [
            operation["operationId"]
            for path in client.get("/openapi.json").json()["paths"].values()
            for operation in path.values()
        ]
        assert len(operations) == len(set(operations))


def test_a_prefix_of_all() -> None:
    with TestClient(several(prefix="/scorers/")) as client:
        config = client.get("/scorers/a/config").json()
        assert config["scoring"]["path"] == "/scorers/a/scoring"
        assert client.post("/scorers/a/scoring", json=TWO).status_code == 200
        assert client.get("/healthz").status_code == 200


def test_a_proxy_that_takes_the_prefix_away() -> None:
    with TestClient(several(), root_path="/outside") as client:
        assert client.get("/a/config").json()["scoring"]["path"] == "/outside/a/scoring"


def test_mounted_in_another_application() -> None:
    outer = FastAPI()
    outer.mount("/inner", several())
    with TestClient(outer) as client:
        assert client.get("/inner/a/config").json()["scoring"]["path"] == "/inner/a/scoring"
        assert client.post("/inner/a/scoring", json=TWO).status_code == 200


def test_endpoints_of_ones_own() -> None:
    app = several()

    @app.api.get("/extra")
    def extra() -> str:
        return "more"

    with TestClient(app) as client:
        assert client.get("/extra").json() == "more"
