"""Checks of every service before a request reaches its application."""

from __future__ import annotations

import asyncio

import pytest
from fastapi import FastAPI, Request
from starlette.types import Message

from dsf.http import front
from dsf.http.front import RequestMiddleware
from dsf.http.listening import SINGLE_HEADERS

app = FastAPI()


@app.get("/")
def get() -> str:
    return "got"


@app.post("/")
async def post(request: Request) -> int:
    return len(await request.body())


def request_through_front(
    method: str, *headers: tuple[bytes, bytes], body: tuple[bytes, ...] = (b"",), then: str = "nothing"
) -> list[Message]:
    """Return the sent messages. `then` follows an incomplete body: `nothing` or `http.disconnect`."""
    messages: list[Message] = []
    parts = [*body]
    is_whole = b"" in parts

    async def receive() -> Message:
        if parts:
            part = parts.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(parts) or not is_whole}
        if then == "nothing":
            await asyncio.Event().wait()
        return {"type": then}

    async def send(message: Message) -> None:
        messages.append(message)

    scope = {"type": "http", "method": method, "path": "/", "query_string": b"", "headers": list(headers)}
    asyncio.run(RequestMiddleware(app)(scope, receive, send))
    return messages


def status(messages: list[Message]) -> int:
    return int(messages[0]["status"])


@pytest.mark.parametrize("name", sorted(SINGLE_HEADERS))
def test_duplicate_header_is_refused(name: str) -> None:
    twice = [(name.encode(), b"1"), (name.encode(), b"2")]
    messages = request_through_front("GET", *twice)
    assert status(messages) == 400
    assert name.encode() in messages[1]["body"]
    assert status(request_through_front("GET", twice[0], (b"accept", b"a"), (b"accept", b"b"))) == 200


def test_head_is_answered_wherever_get_is() -> None:
    assert status(request_through_front("HEAD")) == status(request_through_front("GET")) == 200


@pytest.mark.parametrize("parts", [(), (b"half",)])
def test_unfinished_body_gives_408(monkeypatch: pytest.MonkeyPatch, parts: tuple[bytes, ...]) -> None:
    monkeypatch.setattr(front, "BODY_SECONDS", 0.05)
    messages = request_through_front("POST", body=parts)
    assert status(messages) == 408
    assert len([message for message in messages if message["type"] == "http.response.start"]) == 1


def test_client_disconnect_is_no_error() -> None:
    request_through_front("POST", body=(b"half",), then="http.disconnect")


def test_complete_body_arrives() -> None:
    messages = request_through_front("POST", body=(b"abc", b"de", b""))
    assert (status(messages), messages[1]["body"]) == (200, b"5")
