"""`/live` over HTTP, as a browser follows it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from html import unescape
from http.client import HTTPConnection, HTTPResponse
from re import search, sub
from urllib.parse import quote

import pytest
import redis

from dsf import keys
from dsf.store.notices import ClusterNotice, Notices
from dsf.web.live import MAX_OWN_TOPICS
from tests.integration.exporter.fleet import SAMPLE, good_fleet
from tests.integration.web.test_pages import PAIR, fetch
from tests.integration.web.visitor import TOKEN, Visitor
from tests.support.wait import wait_for
from tests.support.webprocess import WebProcess

#: Seconds for a server that says nothing: it shows a sign of life every 15.
SILENCE = 90


class Stream:
    """One connection to `/live`."""

    def __init__(self, answer: HTTPResponse) -> None:
        self.answer = answer

    def _lines(self) -> Iterator[str]:
        deadline = time.monotonic() + SILENCE
        for line in self.answer:
            yield line.decode().rstrip("\r\n")
            assert time.monotonic() < deadline, "the stream goes on without what is waited for"

    def patch(self) -> tuple[dict[str, str], str]:
        """The next one, and its id."""
        found: dict[str, str] = {}
        for line in self._lines():
            name, _, value = line.partition(": ")
            if line:
                found[name] = value
            elif found.get("event") == "patch":
                return json.loads(found["data"]), found["id"]
            else:
                found = {}
        raise EOFError("the stream has ended")

    def end(self) -> None:
        """Read until it ends."""
        for _ in self._lines():
            pass


@contextmanager
def stream(page: WebProcess, place: str, **headers: str) -> Iterator[Stream]:
    """A connection to this address, as a page has it in `data-live`."""
    connection = HTTPConnection("127.0.0.1", page.port, timeout=SILENCE)
    try:
        connection.request("GET", place, headers=headers)
        yield Stream(connection.getresponse())
    finally:
        connection.close()


def live_of(html: str) -> str:
    """Where a page gets what happens."""
    found = search(r'data-live="([^"]*)"', html)
    assert found is not None
    return unescape(found[1])


def test_a_connection_that_broke_gets_what_it_missed(page: WebProcess, redis_client: redis.Redis) -> None:
    """Of `Last-Event-ID`, as browsers send it."""
    fleet = good_fleet(redis_client)
    fleet.failure("worker01", message="the first text")
    place = live_of(fetch(page, PAIR, "the first text"))
    # As a page that was loaded with something else: it is sent all of it.
    place = place.partition("&digest=")[0]
    with stream(page, place) as first:
        whole, last_id = first.patch()
    assert set(whole) == {"live"}
    fleet.failure("worker01", message="another text")
    with stream(page, place, **{"Last-Event-ID": last_id}) as second:
        missed, newer = second.patch()
    assert newer != last_id
    assert "live" not in missed
    assert "another text" in "".join(missed.values())
    # Of an id that this process never gave, it gets all.
    with stream(page, place, **{"Last-Event-ID": "00000000-1"}) as third:
        assert set(third.patch()[0]) == {"live"}


def test_one_viewer_cannot_take_all(page: WebProcess, redis_client: redis.Redis) -> None:
    good_fleet(redis_client)
    with ExitStack() as opened:

        def follow(query: str) -> HTTPResponse:
            return opened.enter_context(stream(page, f"/live?path=/find&query={quote(query)}")).answer

        for number in range(MAX_OWN_TOPICS):
            wait_for(lambda number=number: follow(f"q={number}").status == 200, 10)
        refused = follow("q=more")
        assert (refused.status, refused.headers["Retry-After"]) == (503, "30")
        # A page that is open already, whatever else is in its query.
        for query in ("q=1", "q=1&x=2", "x=3&q=1&" + "&".join(f"y{number}=" for number in range(30))):
            assert follow(query).status == 200

    def has_room() -> bool:
        with stream(page, "/live?path=/find&query=q%3Dmore") as found:
            return found.answer.status == 200

    wait_for(has_room, 20)


def test_a_query_that_is_too_long_is_not_followed(page: WebProcess, redis_client: redis.Redis) -> None:
    refused = page.get("/find?q=" + "a" * 3000)
    assert refused.status_code == 400
    assert "data-live" not in refused.text


@pytest.mark.parametrize("how", ["logout", "expiry"])
def test_an_open_page_ends_with_its_session(closed: WebProcess, redis_client: redis.Redis, how: str) -> None:
    good_fleet(redis_client)
    visitor = Visitor(closed)
    assert visitor.post("/login", visitor.get("/login"), token=TOKEN)[0] == 303
    wait_for(lambda: "All 2 scores" in visitor.get("/"), 20)
    html = visitor.get(f"/scorers/{SAMPLE}")
    cookies = "; ".join(f"{name}={value}" for name, value in visitor.cookies.items())
    with stream(closed, live_of(html), Cookie=cookies) as followed:
        assert followed.answer.status == 200
        if how == "logout":
            assert visitor.post("/logout", html)[0] == 303
        else:
            for key in redis_client.keys(keys.web_session("*")):
                redis_client.delete(key)
        followed.end()
    assert closed.request("GET", live_of(html), cookies=visitor.cookies).status_code == 401


def test_the_form_for_choosing_stays_in_a_large_fleet(page: WebProcess, redis_client: redis.Redis) -> None:
    """Sent empty, as a browser sends it for "all"."""
    fleet = good_fleet(redis_client)
    for number in range(200):
        fleet.registry.put_cluster(fleet.cluster_record(f"edge{number}"))
        fleet.entry(f"edge{number}")
    Notices(redis_client).tell_cluster(ClusterNotice(name="edge0", labels={"env": "prod"}))
    html = fetch(page, "/?set=&label=", 'id="choose"', "What needs a person")
    place = sub("digest=[^&]*", "digest=", live_of(html))
    with stream(page, place) as opened:
        patch, _ = opened.patch()
    assert 'id="choose"' in "".join(patch.values())
