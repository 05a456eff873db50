"""The service under load and under attack: sizes, concurrency, requests that do not end, tokens."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from dsf.scorer import Bearer, Limits, Score, ScorerError, Series
from dsf.scorer.bodies import Bodies

from .apps import TWO, mean_scorer, metric, scorer


@pytest.mark.parametrize("limits", [Limits(bytes=50), Limits(series=1), Limits(samples=1, series=1)])
@pytest.mark.parametrize("is_streamed", [False, True])
def test_oversized_request_gives_413(limits: Limits, is_streamed: bool) -> None:
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
    service = scorer(limits=Limits(concurrency=1, wait_seconds=0.05))
    entered, leave = threading.Event(), threading.Event()

    @service.score
    def hold(_: list[Series]) -> list[Score]:
        entered.set()
        assert leave.wait(60)
        return []

    with TestClient(service) as client:
        first = threading.Thread(target=client.post, args=("/scoring",), kwargs={"json": TWO})
        first.start()
        assert entered.wait(60)
        try:
            answer = client.post("/scoring", json=TWO)
            assert metric(client, 'dynamic_scoring_api_requests_in_progress{ds_score_name="mean_score"}') == 1
        finally:
            leave.set()
            first.join()
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert client.post("/scoring", json=TWO).status_code == 200


def test_unfinished_request_gives_408() -> None:
    async def send_incomplete_request() -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = []
        pieces = iter([b'{"data":'])

        async def receive() -> dict[str, Any]:
            for piece in pieces:
                return {"type": "http.request", "body": piece, "more_body": True}
            await asyncio.sleep(60)
            raise AssertionError

        async def send(message: Any) -> None:
            messages.append(message)

        scope = {
            "type": "http", "method": "POST", "path": "/scoring", "raw_path": b"/scoring", "query_string": b"",
            "headers": [], "http_version": "1.1", "scheme": "http", "root_path": "", "asgi": {"version": "3.0"},
        }  # fmt: skip
        await mean_scorer(limits=Limits(read_seconds=0.05))(scope, receive, send)
        return messages

    messages = asyncio.run(send_incomplete_request())
    assert messages[0]["status"] == 408
    assert b"within 0.05 seconds" in messages[1]["body"]


def test_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "secret")
    with TestClient(mean_scorer(token=Bearer(env="TOKEN"))) as client:
        assert client.get("/config").status_code == 200
        response = client.post("/scoring", json=TWO)
        assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")
        assert client.post("/scoring", json=TWO, headers={"Authorization": "Bearer secret"}).status_code == 200
        document = client.get("/openapi.json").json()
    assert document["paths"]["/scoring"]["post"]["security"] == [{"token": []}]
    assert document["components"]["securitySchemes"]["token"]["scheme"] == "bearer"


def start(app: Any) -> dict[str, Any]:
    """Return the message that a server receives when it starts the application."""

    async def run() -> dict[str, Any]:
        messages: list[dict[str, Any]] = []
        waiting = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]

        async def receive() -> dict[str, Any]:
            return waiting.pop(0)

        async def send(message: dict[str, Any]) -> None:
            messages.append(message)

        await app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, receive, send)
        return messages[0]

    return asyncio.run(run())


def test_service_does_not_start_without_its_token_or_function(tmp_path: Path) -> None:
    file = tmp_path / "token"
    guarded = mean_scorer(token=Bearer(file=file))
    assert start(guarded)["type"] == "lifespan.startup.failed"
    assert str(file) in start(guarded)["message"]
    file.write_text("secret")
    assert start(guarded)["type"] == "lifespan.startup.complete"
    assert "no scoring function" in start(scorer())["message"]
    with pytest.raises(ScorerError):
        _ = scorer().app.api


def test_half_sent_requests_are_refused_in_favour_of_others() -> None:
    """The oldest bodies are refused if all together exceed two of the largest requests."""
    statuses: dict[str, int] = {}

    async def send_requests() -> None:
        app = mean_scorer(limits=Limits(bytes=100))
        arrived, go_on = asyncio.Semaphore(0), asyncio.Event()

        async def send_body(name: str, body: bytes, rest: bytes) -> None:
            parts = [(body, True), (rest, False)]

            async def receive() -> dict[str, Any]:
                if len(parts) == 1:
                    arrived.release()
                    await go_on.wait()
                piece, has_more = parts.pop(0)
                return {"type": "http.request", "body": piece, "more_body": has_more}

            async def send(message: Any) -> None:
                statuses.setdefault(name, message.get("status"))

            scope = {"type": "http", "method": "POST", "path": "/scoring", "headers": [], "query_string": b""}
            await app(scope, receive, send)

        async with asyncio.TaskGroup() as group:
            for name in ("first", "second", "third"):
                group.create_task(send_body(name, b'{"data":[]' + b" " * 80, b"}"))
                await arrived.acquire()
            go_on.set()

    asyncio.run(send_requests())
    assert statuses == {"first": 503, "second": 200, "third": 200}


def test_large_requests_are_scored_while_there_is_room_for_them() -> None:
    """Without a limit of concurrency, all of an application together take two of the largest requests."""
    service = scorer(limits=Limits(bytes=100, wait_seconds=0.05))
    entered, leave = threading.Semaphore(0), threading.Event()

    @service.score
    def hold(series: list[Series]) -> list[Score]:
        if series:
            entered.release()
            assert leave.wait(60)
        return []

    large_body = b'{"data":[{"metric":{"node":"a"},"values":[[1,"2"]]}]}'.ljust(90)
    statuses: list[int] = []
    with TestClient(service) as client:

        def post_large() -> None:
            statuses.append(client.post("/scoring", content=large_body).status_code)

        threads = [threading.Thread(target=post_large) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            assert entered.acquire(timeout=60)
            assert entered.acquire(timeout=60)
            answer = client.post("/scoring", content=large_body)
            small_answer = client.post("/scoring", content=b'{"data":[]}')
        finally:
            leave.set()
            for thread in threads:
                thread.join()
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert small_answer.status_code == 200
        post_large()
    assert statuses == [200] * 3


def test_request_that_waits_for_room_is_scored_when_another_one_ends() -> None:
    async def score_in_turn() -> None:
        bodies = Bodies(200)
        await bodies.wait_for_memory(150)
        first, second, third = (asyncio.create_task(bodies.wait_for_memory(size)) for size in (100, 150, 40))
        await asyncio.sleep(0)
        # Small ones do not wait, and the third one does not pass those that came before.
        await bodies.wait_for_memory(20)
        assert not any(task.done() for task in (first, second, third))
        second.cancel()
        bodies.release(150)
        await asyncio.gather(first, third)
        assert second.cancelled()
        bodies.release(100)
        bodies.release(40)
        await bodies.wait_for_memory(200)

    asyncio.run(score_in_turn())
