"""`/api/v1` on the page's port: the exporter's responses, for authorized readers."""

from __future__ import annotations

import pytest
import redis
from playwright.sync_api import Browser, expect

from dsf.errors import ApiError, QueryError, UnknownScorerError
from dsf.fleet.changes import Action, Actor, ChangeList, UserAction, read_changes, record_change
from dsf.fleet.client import Client
from tests.integration.exporter.fleet import SAMPLE, good_fleet
from tests.integration.web.test_pages import fetch
from tests.integration.web.visitor import TOKEN
from tests.support.browser import TIMEOUT, Tab
from tests.support.wait import wait_for
from tests.support.webprocess import WebProcess

expect.set_options(timeout=TIMEOUT)


def test_api_responds_like_the_exporter(page: WebProcess, redis_client: redis.Redis) -> None:
    good_fleet(redis_client)
    fetch(page, "/", "All 2 scores are fresh")
    client = Client(page.url)
    # All counts change continuously here, also during a response.
    wait_for(lambda: client.summary().states.ok == 2, 10)
    wait_for(lambda: {row.cluster for row in client.all_pairs(scorer=SAMPLE)} == {"worker01", "worker02"}, 10)
    with pytest.raises(UnknownScorerError):
        client.scorer("nobody")

    def is_known() -> bool:
        tag = page.get("/api/v1/summary").headers["etag"]
        return page.get("/api/v1/summary", **{"If-None-Match": tag}).status_code == 304

    wait_for(is_known, 10, "a response that says that nothing changed")
    for path, status, expected_detail in (
        ("/api/v1/pairs?limit=0", 422, "limit: "),
        ("/api/v1/pairs?state=fine", 400, "no such state"),
        ("/api/v1/pairz", 404, "there is no /api/v1/pairz"),
    ):
        response = page.get(path)
        assert (response.status_code, response.headers["content-type"]) == (status, "application/problem+json")
        assert expected_detail in response.json()["detail"]


def test_api_client_authenticates_with_the_token(closed: WebProcess, redis_client: redis.Redis) -> None:
    good_fleet(redis_client)
    response = closed.get("/api/v1/summary")
    assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")
    assert response.json()["title"] == "Not known"
    assert closed.get("/openapi.json").status_code == 303
    wait_for(lambda: Client(closed.url, token=TOKEN).summary().clusters == 2, 10)
    # An API token opens no page, and is not logged.
    assert closed.get("/", Authorization=f"Bearer {TOKEN}").status_code == 303
    assert TOKEN not in closed.log


def test_wrong_tokens_are_refused(closed: WebProcess, redis_client: redis.Redis) -> None:
    good_fleet(redis_client)
    statuses = [closed.get("/api/v1/summary", Authorization="Bearer no").status_code for _ in range(6)]
    assert statuses == [401] * 6
    with pytest.raises(ApiError):
        Client(closed.url, token="other").summary()


def test_changes_are_listed_with_filters_and_limits(closed: WebProcess, redis_client: redis.Redis) -> None:
    actor = Actor(name="ann", claimed=False, way="page")
    for number in range(450):
        user_action = UserAction(action=Action.RESCORE, scorer=f"scorer-{number % 2}", clusters=[f"worker{number % 3}"])
        record_change(redis_client, actor, user_action)
    client = Client(closed.url, token=TOKEN)

    def ids(change_list: ChangeList) -> list[str]:
        return [change.id for change in change_list.changes]

    newest = ids(read_changes(redis_client))
    assert ids(client.changes()) == newest
    of_one = read_changes(redis_client, scorer="scorer-1", cluster="worker2")
    assert len(of_one.changes) == 75
    assert ids(client.changes("scorer-1", "worker2")) == ids(of_one)
    for limit in (1, 200, 201, 449, 450, 451):
        listed_changes = client.changes(limit=limit)
        assert ids(listed_changes) == newest[:limit]
        assert listed_changes.continue_ or limit >= len(newest)
        assert not listed_changes.continue_ or ids(client.changes(after=listed_changes.continue_)) == newest[limit:]
    start = int(newest[10].partition("-")[0]) / 1000
    assert ids(client.changes(since=start)) == ids(read_changes(redis_client, since=start))
    assert ids(client.changes(since=start + 1e6)) == []
    with pytest.raises(QueryError, match="not a cursor of the changes"):
        client.changes(after="yesterday")
    for start in (float("inf"), 1e17):
        with pytest.raises(QueryError, match="since: "):
            client.changes(since=start)
    for cursor in ("0-0", "٣-٣"):
        with pytest.raises(QueryError, match="not a cursor of the changes"):
            client.changes(after=cursor)
    with pytest.raises(QueryError, match="limit: "):
        client.changes(limit=0)
    assert ids(client.changes(since=-1.0)) == newest
    with pytest.raises(ApiError, match="401"):
        Client(closed.url).changes()


def test_api_documentation_loads_in_a_browser(page: WebProcess, browser: Browser, redis_client: redis.Redis) -> None:
    good_fleet(redis_client)
    with Tab(browser, page.url) as tab:
        browser_page = tab.open("/docs")
        expect(browser_page.locator("#operations-api-summary_api_v1_summary_get")).to_be_visible()
        expect(browser_page.locator(".opblock").nth(8)).to_be_visible()
        assert tab.foreign_requests == []
        # The documentation loads under the content security policy without violations.
        assert tab.wrong == []
    document = page.get("/openapi.json").json()
    assert document["servers"] == [{"url": "/"}]
    assert all(path.startswith("/api/v1/") for path in document["paths"])


def test_direct_scrape_requires_no_login(closed: WebProcess, redis_client: redis.Redis) -> None:
    good_fleet(redis_client)
    response = closed.get("/metrics")
    assert (response.status_code, "sample_score" in response.text) == (200, True)
    assert closed.get("/metrics", **{"X-Forwarded-For": "203.0.113.9"}).status_code == 401
