"""Actions on the page: previews, forms, authorization, and records."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import redis

from dsf import keys
from dsf.fleet import changes
from dsf.store.schedule import ScheduleStore
from dsf.web.rendering import make_link
from tests.integration.exporter.fleet import SAMPLE, good_fleet
from tests.integration.web.visitor import TOKEN, Visitor
from tests.support.redisserver import RedisServer, free_port
from tests.support.wait import wait_for
from tests.support.webprocess import WebProcess


def test_preview_states_the_number_of_affected_clusters(acting: WebProcess, redis_client: redis.Redis) -> None:
    good_fleet(redis_client)
    visitor = Visitor(acting)
    assert "Affects 2 clusters" in visitor.get(f"/act/rescore?scorer={SAMPLE}")
    assert "Affects 1 cluster</b>: worker01" in visitor.get(f"/act/rescore?scorer={SAMPLE}&cluster=worker01")
    # A preview sends nothing.
    assert redis_client.llen(keys.spoke_queue("worker01")) == 0


def test_preview_leaves_out_clusters_with_their_own_override(acting: WebProcess, redis_client: redis.Redis) -> None:
    good_fleet(redis_client)
    visitor, store, own_pair = Visitor(acting), ScheduleStore(redis_client), keys.pair("worker01", SAMPLE)

    def affected(act: str) -> list[str]:
        html = visitor.get(f"/act/{act}?scorer={SAMPLE}")
        [names] = re.findall(r"<b>Affects \d clusters?</b>: ([^<]*)</p>", html)
        assert ("worker01 keeps its own override" in html) == (names == "worker02")
        assert f" on {len(names.split())} cluster" in html.partition("<button class")[2]
        return str(names).split(", ")

    store.set_override(own_pair, interval=7)
    assert (affected("interval"), affected("pause")) == (["worker02"], ["worker01", "worker02"])
    store.set_override(own_pair, paused=False)
    assert (affected("pause"), affected("resume")) == (["worker02"], ["worker02"])
    store.set_override(own_pair, paused=True, paused_until=1.0)
    assert (affected("pause"), affected("resume")) == (["worker01", "worker02"],) * 2
    assert (affected("reset"), affected("rescore")) == (["worker01", "worker02"],) * 2
    # A change for one cluster replaces that cluster's override.
    assert "Affects 1 cluster</b>: worker01" in visitor.get(f"/act/interval?scorer={SAMPLE}&cluster=worker01")


def test_score_now_shows_its_outcome(acting: WebProcess, redis_client: redis.Redis) -> None:
    fleet = good_fleet(redis_client)
    visitor = Visitor(acting)
    form = visitor.get(f"/act/rescore?scorer={SAMPLE}&cluster=worker01")
    status, _, location = visitor.post("/act/rescore", form, note="look again")
    assert status == 303
    assert redis_client.llen(keys.spoke_queue("worker01")) == 1
    assert "1 of 1 run is under way" in visitor.get(location)
    [change] = changes.read_changes(redis_client).changes
    assert (change.action, change.way, change.note, change.claimed) == ("rescore", "page", "look again", True)
    fleet.cycle("worker01", outcome="error", stage="fetch", reason="bad_query", message="no", run=change.reference)
    # The page caches an outcome for a second.
    wait_for(lambda: "1 of 1 run has ended" in visitor.get(location), 10)
    assert "fetch: bad_query" in visitor.get(location)
    assert "look again" in visitor.get(f"/changes?scorer={SAMPLE}")
    other = visitor.get("/changes?scorer=sampel&cluster=worker01")
    assert 'None of <a href="/find?q=sampel">sampel</a> on <a href="/find?q=worker01">worker01</a> is known.' in other


def test_outcome_is_read_once_for_all_viewers(acting: WebProcess, redis_client: redis.Redis) -> None:
    """The end of a run is not searched for again: its pair's history may only have newer cycles."""
    fleet = good_fleet(redis_client)
    visitor = Visitor(acting)
    status, _, location = visitor.post("/act/rescore", visitor.get(f"/act/rescore?scorer={SAMPLE}"))
    assert (status, "2 of 2 runs are under way" in visitor.get(location)) == (303, True)
    redis_client.config_resetstat()
    # As open pages ask.
    polled = [acting.get(location, **{"If-None-Match": "none"}) for _ in range(20)]
    assert {response.status_code for response in polled} == {200}
    read = redis_client.info("commandstats").get("cmdstat_lrange", {}).get("calls", 0)
    assert read <= 10, "each reading is of two histories"
    runs = json.loads(str(redis_client.get(keys.web_outcome(location.rpartition("/")[2]))))["runs"]
    run = next(run["run"] for run in runs if run["cluster"] == "worker01")
    fleet.cycle("worker01", outcome="error", stage="fetch", reason="bad_query", message="no", run=run)
    assert "1 of 2 runs are under way" in visitor.get(location)
    redis_client.delete(keys.history_key("worker01", SAMPLE))
    redis_client.config_resetstat()
    html = visitor.get(location)
    assert ("1 of 2 runs are under way" in html, "fetch: bad_query" in html) == (True, True)
    assert redis_client.info("commandstats")["cmdstat_lrange"]["calls"] == 1
    assert acting.get("/outcomes/nothing").status_code == 404


def test_pause_form_accepts_an_end_and_a_reason(acting: WebProcess, redis_client: redis.Redis) -> None:
    good_fleet(redis_client)
    visitor = Visitor(acting)
    form = visitor.get(f"/act/pause?scorer={SAMPLE}")
    assert "a future time" in visitor.post("/act/pause", form, note="x", until="2020-01-01T00:00")[1]
    assert redis_client.hlen(keys.OVERRIDES) == 0
    # As on the command line, neither asks for confirmation.
    assert visitor.post("/act/pause", form, note=" ", until="")[0] == 303
    assert json.loads(redis_client.hvals(keys.OVERRIDES)[0])["paused_until"] is None
    assert visitor.post("/act/pause", form, note="mending it", until="2999-01-01T00:00")[0] == 303
    wait_for(lambda: "mending it" in visitor.get("/"), 20)
    form = visitor.get(f"/act/resume?scorer={SAMPLE}")
    assert visitor.post("/act/resume", form)[0] == 303
    assert redis_client.hlen(keys.OVERRIDES) == 0


def test_action_is_visible_at_once(tmp_path: Path) -> None:
    """In tables and in sums."""
    with RedisServer() as server, WebProcess(server.url, tmp_path / "log", web_auth="local") as page:
        client, visitor = server.client(), Visitor(page)
        good_fleet(client)

        def act_and_reload(act: str, cluster: str = "", **fields: str) -> str:
            form = visitor.get(f"/act/{act}?scorer={SAMPLE}&cluster={cluster}")
            status, _, location = visitor.post(f"/act/{act}", form, **fields)
            assert status == 303
            return visitor.get(location)

        def states(html: str) -> list[str]:
            """Return the states of the table of clusters, or of the first line of a pair."""
            rows = re.findall(r'data-(?:name="State"|announce class="big").*?class="state s-(\w+)"', html)
            assert rows
            return rows

        pause = {"note": "mending it", "until": "2999-01-01T00:00"}
        html = act_and_reload("pause", **pause)
        assert states(html) == ["paused", "paused"]
        # Two clusters, and everything that is paused.
        assert html.count("paused by") == 3
        assert "0 of 2 fresh, 2 paused" in html
        assert "It is paused: no new scores" in html
        assert "What is paused" in html
        for unexpected_text in ("No cluster has a fresh score", "What is wrong"):
            assert unexpected_text not in html
        html = act_and_reload("resume")
        assert states(html) == ["ok", "ok"]
        assert states(act_and_reload("pause", "worker01", **pause)) == ["paused"]
        assert states(act_and_reload("resume", "worker01")) == ["ok"]
        html = act_and_reload("interval", seconds="600")
        assert html.count('data-name="Every" class="num">600 s') == 2
        assert "<dt>A score lives</dt><dd>1800 s</dd>" in html


def test_interval_form_sets_and_resets_the_override(acting: WebProcess, redis_client: redis.Redis) -> None:
    good_fleet(redis_client)
    visitor = Visitor(acting)
    form = visitor.get(f"/act/interval?scorer={SAMPLE}&cluster=worker01")
    for invalid_seconds in ("0", "-1", "1.5", "x", "99999999999"):
        assert visitor.post("/act/interval", form, seconds=invalid_seconds)[0] == 422
    assert visitor.post("/act/interval", form, seconds="7")[0] == 303
    assert "7 s" in visitor.get(f"/clusters/worker01/scorers/{SAMPLE}")
    form = visitor.get(f"/act/reset?scorer={SAMPLE}")
    assert visitor.post("/act/reset", form)[0] == 303
    assert redis_client.hlen(keys.OVERRIDES) == 0
    assert [change.action for change in changes.read_changes(redis_client).changes] == ["reset", "interval"]


def test_foreign_forms_are_refused(acting: WebProcess, redis_client: redis.Redis) -> None:
    good_fleet(redis_client)
    visitor = Visitor(acting)
    form = visitor.get(f"/act/rescore?scorer={SAMPLE}")
    visitor.headers = {"Origin": "https://evil.example"}
    assert visitor.post("/act/rescore", form)[0] == 403
    assert redis_client.llen(keys.spoke_queue("worker01")) == 0


def test_forms_without_their_token_are_refused(acting: WebProcess, redis_client: redis.Redis) -> None:
    good_fleet(redis_client)
    visitor, other = Visitor(acting), Visitor(acting)
    form = visitor.get(f"/act/rescore?scorer={SAMPLE}")
    other.get(f"/act/rescore?scorer={SAMPLE}")
    before = len(acting.log)
    assert visitor.post("/act/rescore", form, secret="")[0] == 403
    assert other.post("/act/rescore", form)[0] == 403
    other.cookies.clear()
    assert other.post("/act/rescore", form)[0] == 403
    assert "act refused" in acting.log[before:]


def test_read_only_page_offers_no_actions(page: WebProcess, redis_client: redis.Redis) -> None:
    good_fleet(redis_client)
    visitor = Visitor(page)
    wait_for(lambda: "All 2 scores" in visitor.get("/"), 20)
    assert "/act/" not in visitor.get(f"/scorers/{SAMPLE}")
    assert "--allow-actions" in visitor.get(f"/act/rescore?scorer={SAMPLE}")
    assert visitor.status == 403
    assert visitor.post("/act/rescore", "", scorer=SAMPLE)[0] == 403
    assert "act refused" in page.log


def test_login_requires_the_token_and_opens_a_session(closed: WebProcess, redis_client: redis.Redis) -> None:
    good_fleet(redis_client)
    visitor = Visitor(closed)
    visitor.get(f"/scorers/{SAMPLE}")
    assert visitor.status == 303
    form = visitor.get(f"/login?to=/scorers/{SAMPLE}")
    before = dict(visitor.cookies)
    status, text, _ = visitor.post("/login", form, token="wrong")
    assert (status, "not the token" in text) == (401, True)
    status, _, location = visitor.post("/login", form, token=TOKEN)
    assert (status, location) == (303, f"/scorers/{SAMPLE}")
    assert visitor.cookies != before
    html = visitor.get(location)
    assert visitor.status == 200
    assert f"/act/rescore?scorer={SAMPLE}" in html
    # Redis and the log do not contain the token.
    session_values = [redis_client.get(key) for key in redis_client.keys("dsf:web:*")]
    assert session_values
    assert TOKEN not in str(session_values) + closed.log
    form = visitor.get(f"/act/rescore?scorer={SAMPLE}")
    assert visitor.post("/act/rescore", form)[0] == 303
    [change] = changes.read_changes(redis_client).changes
    assert (change.by, change.claimed) == ("token", False)
    assert visitor.post("/logout", html)[0] == 303
    visitor.get("/")
    assert visitor.status == 303
    form = visitor.get("/login")
    assert [visitor.post("/login", form, token="wrong")[0] for _ in range(8)] == [401] * 8
    # Other clients share the address: a port-forward, or a proxy that is not trusted.
    assert visitor.post("/login", form, token=TOKEN)[0] == 303
    assert closed.get("/api/v1/summary", Authorization=f"Bearer {TOKEN}").status_code == 200


def test_login_in_a_second_tab_redirects_to_its_page(closed: WebProcess, redis_client: redis.Redis) -> None:
    good_fleet(redis_client)
    visitor = Visitor(closed)
    first, second = (visitor.get(f"/login?to={to}") for to in ("/", f"/scorers/{SAMPLE}"))
    assert visitor.post("/login", first, token=TOKEN)[0] == 303
    session = dict(visitor.cookies)
    # Its form belongs to the cookie that the first login replaced.
    for token in (TOKEN, "wrong"):
        status, _, location = visitor.post("/login", second, token=token)
        assert (status, location, visitor.cookies) == (303, f"/scorers/{SAMPLE}", session)
    # Without the session the form has no owner.
    visitor.cookies.clear()
    visitor.get("/login")
    assert visitor.post("/login", second, token=TOKEN)[0] == 403


def test_action_after_the_end_of_the_session_is_reported_as_lost(closed: WebProcess, redis_client: redis.Redis) -> None:
    good_fleet(redis_client)
    visitor = Visitor(closed)
    visitor.post("/login", visitor.get("/login"), token=TOKEN)
    path = f"/act/rescore?scorer={SAMPLE}"
    form = visitor.get(path)
    visitor.post("/logout", form)
    for referer, to in ((closed.url + path, path), ("http://evil.example/act/rescore", "/"), ("", "/")):
        visitor.headers = {"Referer": referer}
        status, _, location = visitor.post("/act/rescore", form)
        assert (status, location) == (303, make_link("", "/login", to=to, lost="1"))
    assert "nothing was done" in visitor.get(location)
    assert changes.read_changes(redis_client).changes == []


@pytest.mark.parametrize("to", ["//evil.example/x", "https://evil.example", "/\\evil.example"])
def test_login_does_not_redirect_to_foreign_addresses(closed: WebProcess, redis_client: redis.Redis, to: str) -> None:
    visitor = Visitor(closed)
    form = visitor.get("/login")
    status, _, location = visitor.post("/login", form, token=TOKEN, to=to)
    assert (status, location) == (303, "/")


def test_action_is_denied_and_logged_if_rights_cannot_be_checked(
    redis_server: RedisServer, redis_client: redis.Redis, tmp_path: Path
) -> None:
    good_fleet(redis_client)
    cluster_entry = {"name": "a", "cluster": {"server": f"http://127.0.0.1:{free_port()}"}}
    context = {"name": "a", "context": {"cluster": "a", "user": "a"}}
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [cluster_entry],
                "contexts": [context],
                "current-context": "a",
            }
            | {"users": [{"name": "a", "user": {"token": TOKEN}}]}
        )
    )
    settings = {"web_auth": "proxy", "web_trusted_proxies": '["127.0.0.1"]', "kubeconfig": kubeconfig}
    with WebProcess(redis_server.url, tmp_path / "log", **settings) as page:
        visitor = Visitor(page, **{"X-Forwarded-User": "ann"})
        assert visitor.post("/act/rescore", "", scorer=SAMPLE)[0] == 503
        [line] = [line for line in page.log.splitlines() if "act refused" in line]
        assert all(expected_text in line for expected_text in ("ann", "rescore", SAMPLE))
    assert redis_client.llen(keys.spoke_queue("worker01")) == 0


def test_unknown_names_are_truncated_in_the_log(closed: WebProcess, redis_client: redis.Redis) -> None:
    assert Visitor(closed).post("/act/rescore", "", scorer="s" * 9000, cluster="c" * 9000)[0] == 303
    [refusal_line] = [line for line in closed.log.splitlines() if "act refused" in line and "sss" in line]
    assert "rescore" in refusal_line
    assert len(refusal_line) < 1500


def test_trusted_proxy_headers_identify_viewers_and_operators(
    redis_server: RedisServer, redis_client: redis.Redis, tmp_path: Path
) -> None:
    good_fleet(redis_client)
    with WebProcess(
        redis_server.url,
        tmp_path / "log",
        web_auth="proxy",
        web_trusted_proxies='["127.0.0.1"]',
        web_operators='["sre"]',
    ) as page:
        assert page.get("/").status_code == 401
        assert Visitor(page).post("/act/rescore", "", scorer=SAMPLE)[0] == 401
        [line] = [line for line in page.log.splitlines() if "act refused" in line]
        assert "rescore" in line
        assert SAMPLE in line
        viewer = Visitor(page, **{"X-Forwarded-User": "ann", "X-Forwarded-Groups": "dev"})
        viewer.get(f"/act/rescore?scorer={SAMPLE}")
        assert viewer.status == 403
        actor = Visitor(page, **{"X-Forwarded-User": "bob", "X-Forwarded-Groups": "dev,sre"})
        form = actor.get(f"/act/rescore?scorer={SAMPLE}")
        assert actor.post("/act/rescore", form)[0] == 303
        assert viewer.post("/act/rescore", form)[0] == 403
        [change] = changes.read_changes(redis_client).changes
        assert (change.by, change.claimed) == ("bob", False)
        # A header that the proxy does not write over.
        posing = Visitor(page, **{"X-Forwarded-User": "ann", "X-Auth-Request-Groups": "sre"})
        posing.get("/")
        assert posing.status == 401


def test_login_ends_if_the_token_changes(closed: WebProcess, token_file: Path, redis_client: redis.Redis) -> None:
    good_fleet(redis_client)
    visitor = Visitor(closed)
    assert visitor.post("/login", visitor.get("/login?to=/"), token=TOKEN)[0] == 303
    visitor.get("/")
    assert visitor.status == 200
    before = token_file.read_text()
    token_file.write_text("another one, after that leaked")
    try:
        visitor.get("/")
        assert visitor.status != 200
    finally:
        token_file.write_text(before)
