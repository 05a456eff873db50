"""Requests that an open page polls, as a browser sends them."""

from __future__ import annotations

import redis

from dsf.store.notices import ClusterNotice, Notices
from tests.integration.exporter.fleet import good_fleet
from tests.integration.web.test_pages import PAIR, fetch
from tests.support.wait import wait_for
from tests.support.webprocess import WebProcess


def test_unchanged_page_is_answered_with_status_304(page: WebProcess, redis_client: redis.Redis) -> None:
    fleet = good_fleet(redis_client)
    fleet.failure("worker01", message="the first text")
    fetch(page, PAIR, "the first text")
    whole = page.get(PAIR)
    tag = whole.headers["etag"]
    same = page.get(PAIR, **{"If-None-Match": tag})
    assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", tag)
    # As a proxy that compresses writes it.
    assert page.get(PAIR, **{"If-None-Match": f"W/{tag}"}).status_code == 304
    fleet.failure("worker01", message="another text")

    def changed() -> bool:
        response = page.get(PAIR, **{"If-None-Match": tag})
        return response.status_code == 200 and "another text" in response.text and response.headers["etag"] != tag

    wait_for(changed, 20, "the change to be polled")


def test_opened_page_is_newer_than_polled_pages(page: WebProcess, redis_client: redis.Redis) -> None:
    fleet = good_fleet(redis_client)
    fleet.failure("worker01", message="the first text")
    fetch(page, PAIR, "the first text")
    polled = {"If-None-Match": "none"}
    page.get(PAIR, **polled)
    fleet.failure("worker01", message="another text")
    fetch(page, PAIR, "another text")
    # Later polls do not return an older state.
    assert "another text" in page.get(PAIR, **polled).text


def test_selection_form_stays_in_a_large_fleet(page: WebProcess, redis_client: redis.Redis) -> None:
    """Sent empty, as a browser sends it for "all"."""
    fleet = good_fleet(redis_client)
    for number in range(200):
        fleet.registry.put_cluster(fleet.make_cluster_record(f"edge{number}"))
        fleet.entry(f"edge{number}")
    Notices(redis_client).write_cluster(ClusterNotice(name="edge0", labels={"env": "prod"}))
    fetch(page, "/?set=&label=", 'id="choose"', "What needs a person")
    assert 'id="choose"' in page.get("/?set=&label=", **{"If-None-Match": "none"}).text


def test_oversized_query_is_refused(page: WebProcess, redis_client: redis.Redis) -> None:
    assert page.get("/find?q=" + "a" * 3000).status_code == 400
