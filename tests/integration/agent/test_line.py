"""The connection of an agent for all but ticks: errors, connections that were closed, answers that do not come."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

import dsf.agent.line
from dsf.agent.line import Line
from tests.support.redisserver import RedisServer
from tests.support.wait import wait_for

NAME = "line"


@pytest.fixture
def line(redis_server: RedisServer, redis_client: redis.Redis) -> Iterator[Line]:
    options = {"client_name": NAME, "decode_responses": True, "socket_timeout": 0.5}
    with redis.Redis.from_url(redis_server.url, **options, retry=Retry(NoBackoff(), 0)) as client:
        yield Line(client)
    wait_for(lambda: not connections(redis_client), 10)


def connections(client: redis.Redis) -> list[str]:
    return [one["id"] for one in client.client_list() if one["name"] == NAME]


def test_an_error_is_for_whoever_asked(line: Line, redis_client: redis.Redis) -> None:
    redis_client.set("text", "x")
    found: dict[str, object] = {}

    def ask(name: str, *commands: tuple[str, ...]) -> None:
        try:
            found[name] = line.ask(commands)
        except redis.ResponseError as error:
            found[name] = str(error)

    threads = [
        threading.Thread(target=ask, args=("good", ("SET", "a", "1"), ("GET", "a"))),
        threading.Thread(target=ask, args=("bad", ("LPUSH", "text", "y"), ("GET", "text"))),
        threading.Thread(target=ask, args=("other", ("EXISTS", "nothing"))),
    ]
    with line.lock:
        for waiting, thread in enumerate(threads, 1):
            thread.start()
            wait_for(lambda waiting=waiting: len(line._queue) == waiting, 10)  # type: ignore[misc]
    for thread in threads:
        thread.join(30)
    assert found.pop("good") == ["OK", "1"]
    assert "wrong kind of value" in str(found.pop("bad"))
    assert found == {"other": [0]}
    assert len(connections(redis_client)) == 1


def test_a_connection_that_was_closed_while_nothing_was_asked(
    line: Line, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert line.ask([("PING",)]) == ["PONG"]
    [first] = connections(redis_client)
    redis_client.client_kill_filter(_id=first)
    monkeypatch.setattr(dsf.agent.line, "_IDLE", 0.0)
    assert line.ask([("PING",)]) == ["PONG"]
    [second] = connections(redis_client)
    assert second != first


def test_one_that_was_closed_just_now_fails_once(line: Line, redis_client: redis.Redis) -> None:
    assert line.ask([("PING",)]) == ["PONG"]
    redis_client.client_kill_filter(_id=connections(redis_client)[0])
    with pytest.raises(redis.ConnectionError):
        line.ask([("PING",)])
    assert line.ask([("PING",)]) == ["PONG"]


def test_an_answer_that_came_too_late_is_not_the_next_ones(line: Line) -> None:
    with pytest.raises(redis.TimeoutError):
        line.ask([("BLPOP", "nothing", "1")])
    assert line.ask([("ECHO", "mine")]) == ["mine"]
