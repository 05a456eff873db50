"""Every page over a fleet in a real Redis, as a browser without JavaScript gets it."""

from __future__ import annotations

import json
import re
import time
from html import unescape
from pathlib import Path
from urllib.parse import quote

import pytest
import redis

from dsf import keys
from dsf.api.scorerule import HeldValue, HoldRule
from dsf.fleet.changes import Action, Actor, UserAction, record_change
from dsf.fleet.client import Client
from dsf.messages import make_run_id
from dsf.reasons import WriteReason
from dsf.store.entries import ScheduleOverride, compute_current_tick_time
from dsf.store.notices import CLUSTER_SET, ClusterNotice, ConditionNotice, Notices, ScorerNotice
from dsf.store.pairs import PairFailure, PairScore, Unwritten
from dsf.store.registry import ClusterRecord, Registry, ScorerRecord
from dsf.store.schedule import ScheduleStore
from dsf.store.writes import ScoreWriterStore
from dsf.web import search, views
from dsf.web.guard import list_own_segments
from dsf.web.pagedata import PageDataReader
from dsf.web.pages import Sources, list_views
from dsf.web.views import VIEWS
from tests.integration.exporter.fleet import CLUSTERS, SAMPLE, STATIC, Fleet, good_fleet
from tests.support.redisserver import RedisServer, has_ipv6
from tests.support.wait import wait_for
from tests.support.webprocess import WebProcess

PAIR = f"/clusters/worker01/scorers/{SAMPLE}"


def fetch(page: WebProcess, path: str, *texts: str) -> str:
    """Return a page once it has these texts. A read of the fleet, possibly an earlier test's, is shown for a second."""

    def page_with_texts() -> str:
        response = page.get(path)
        assert response.status_code == 200, response.text
        for text in texts:
            assert text in response.text
        return response.text

    return wait_for(page_with_texts, 20, f"{texts!r} on {path}")


def clusters_of(html: str) -> list[str]:
    """Return the clusters of the pairs in a table, in its order."""
    return re.findall(r'<td data-name="State"><a href="/clusters/([^/"]*)/', html)


def await_pairs(page: WebProcess, path: str, clusters: list[str], *texts: str) -> None:
    """Wait for a page with the pairs of these clusters and these texts: its parts come from separate reads."""
    wait_for(lambda: clusters_of(fetch(page, path, *texts)) == clusters, 20, f"{clusters} on {path}")


def test_healthy_fleet_is_shown_with_links_to_its_pairs(page: WebProcess, redis_client: redis.Redis) -> None:
    good_fleet(redis_client)
    links = [f'href="{PAIR.replace("worker01", cluster)}"' for cluster in CLUSTERS]
    html = fetch(page, "/", "All 2 scores are fresh", *links)
    assert html.count('class="state s-ok"') >= 2


def test_scores_of_the_original_project_are_named_below_the_headline(
    page: WebProcess, redis_client: redis.Redis
) -> None:
    good_fleet(redis_client)
    cause = Unwritten(reason=WriteReason.WRITTEN_BY_UPSTREAM, message="upstream wrote AddOnPlacementScore x", since=1.0)
    ScoreWriterStore(redis_client).record_unwritten({("worker01", "refused"): cause})
    fetch(page, "/", "All 2 scores are fresh", "worker01/refused: upstream wrote AddOnPlacementScore x")


def test_first_line_names_the_failure_its_cluster_and_reason(page: WebProcess, redis_client: redis.Redis) -> None:
    fleet = good_fleet(redis_client)
    fleet.failure("worker02", message="parse error: unexpected <eof>")

    first_line_texts = (
        "sample-scorer fails on worker02: bad_query",
        "parse error: unexpected &lt;eof&gt;",
        "correct the query",
    )
    # Pairs that need attention come first.
    await_pairs(page, "/", ["worker02", "worker01"], *first_line_texts)


def test_pair_page_shows_score_history_and_failure(page: WebProcess, redis_client: redis.Redis) -> None:
    fleet = good_fleet(redis_client)
    fleet.failure("worker01", message="the whole text " * 40, in_a_row=4)
    fleet.cycle("worker01", outcome="error", stage="fetch", reason="bad_query", message="no")
    html = fetch(page, PAIR, "4 cycles in a row")
    assert ("the whole text " * 40).strip() in html
    assert "<svg" in html
    assert "scheduled</dt><dd>7" in html
    assert "kubectl get addonplacementscore sample-score -n worker01" in html
    assert "Last 2 cycles" in html


def test_held_back_value_is_shown_with_its_rule(page: WebProcess, redis_client: redis.Redis) -> None:
    good_fleet(redis_client)
    registry, key = Registry(redis_client), keys.pair_key("worker01", SAMPLE)
    hold = HoldRule(min_change=5, for_seconds=60)
    registry.put_scorer(registry.read_scorer(SAMPLE).model_copy(update={"hold": hold}))
    score = PairScore.model_validate_json(str(redis_client.hget(key, "score")))
    score = score.model_copy(update={"held": {"n1": HeldValue(17, None, 5)}})
    redis_client.hset(key, "score", score.model_dump_json())
    fetch(page, PAIR, '<span class="mark">17 held</span>')
    fetch(page, f"/scorers/{SAMPLE}", "from 5 points on, if it lasts 60 s")


def test_scorer_and_cluster_pages_show_their_pairs(page: WebProcess, redis_client: redis.Redis) -> None:
    fleet = good_fleet(redis_client)
    fleet.entry("worker01", STATIC)
    fleet.set_skips("worker01", "inactive", 5, scorer=STATIC)
    html = fetch(page, f"/scorers/{STATIC}", "inactive")
    assert "Inactive" in html
    html = fetch(page, "/clusters/worker01", STATIC)
    assert "key 1</dd>" in html
    Registry(redis_client).put_cluster(ClusterRecord(name="worker01", key_ids=(3, 2), key_since=time.time() - 7500))
    text = re.sub(r"<[^>]*>", "", fetch(page, "/clusters/worker01", "key 3"))
    assert "key 3, made 2 h 5 min ago" in text
    assert "2 still valid" in text
    assert "spoke.worker01" in html


def test_pages_stay_short_despite_many_overrides_and_a_long_history(
    page: WebProcess, redis_client: redis.Redis
) -> None:
    fleet = good_fleet(redis_client)
    override = ScheduleOverride(interval=7, by="ann").model_dump_json()
    changed = {f"c{number}/{SAMPLE}": override for number in range(1200)}
    everywhere = {f"*/{SAMPLE}": ScheduleOverride(interval=9, by="bob").model_dump_json()}
    redis_client.hset(keys.OVERRIDES, mapping={**changed, **everywhere})
    html = fetch(page, f"/scorers/{SAMPLE}", "and 1171 more of single clusters")
    assert "everywhere: every 9 s" in html
    assert html.count("<") < 10_000
    counts = dict.fromkeys(("series", "bytes_in", "bytes_out", "results", "items", "refused", "clamped", "retries"), 1)
    for number in range(200):
        run = make_run_id(fleet.now - 200 + number)
        fleet.cycle("worker01", run=run, timings={"fetch": 1, "score": 1, "publish": 1}, counts=counts)
    html = fetch(page, f"{PAIR}?cycles=all", "Last 50 cycles")
    assert html.count('<td data-name="Outcome"') == 50
    assert run in html
    assert len(re.findall("<[a-zA-Z]", html)) < 5000


def test_search_finds_pairs_by_each_field(page: WebProcess, redis_client: redis.Redis) -> None:
    fleet = good_fleet(redis_client)
    fleet.failure("worker02")
    for query, expected_clusters in (
        ("state:failing", ["worker02"]),
        ("reason:bad_* cluster:worker*", ["worker02"]),
        ("cluster:worker01", ["worker01"]),
        ("state:ok scorer:sample-*", ["worker01"]),
        ("item:n1 cluster:worker01", ["worker01"]),
        ("item:nothing", []),
        ("sample", ["worker02", "worker01"]),
    ):
        await_pairs(page, f"/find?q={quote(query)}", expected_clusters)


def test_pairs_of_many_reasons_are_listed_page_by_page(page: WebProcess, redis_client: redis.Redis) -> None:
    fleet = good_fleet(redis_client)
    for number in range(130):
        cluster = f"edge{number}"
        fleet.registry.put_cluster(fleet.make_cluster_record(cluster))
        fleet.entry(cluster)
        failure = PairFailure(run=make_run_id(), stage="fetch", reason=f"odd_{number}", message="no", at=fleet.now)
        fleet.set_pair_fields(cluster, failing=1, failure=failure.model_dump_json())

    def walked() -> None:
        first = page.get("/find?q=reason:odd_*+stage:f*").text
        next_link = re.search(r'rel="next" href="([^"]*)"', first)
        assert next_link is not None
        second = page.get(unescape(next_link[1])).text
        assert "130 pairs " in first
        assert "130 pairs " in second
        assert sorted(clusters_of(first + second)) == sorted(f"edge{number}" for number in range(130))

    # All is counted again and again here.
    wait_for(lambda: walked() is None, 60)
    # A word that only one of them has.
    await_pairs(page, "/find?q=odd_129", ["edge129"], "1 pair ")


def test_search_words_match_items_and_runs(page: WebProcess, redis_client: redis.Redis) -> None:
    run = good_fleet(redis_client).score("worker01")
    for query in (run, f"run:{run}"):
        await_pairs(page, f"/find?q={query}", ["worker01"], "1 pair ")
    fetch(page, "/find?q=n2+worker02", "1 pair ")
    fetch(page, "/find?q=nowhere", "0 pairs ", "Items and runs were searched in 2 pairs.")


def test_search_keeps_only_matching_results_in_memory(
    redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = good_fleet(redis_client)
    results = [({"namespace": "a", "pod": f"pod-{number}"}, 1.0) for number in range(200)]
    for number in range(50):
        fleet.registry.put_cluster(fleet.make_cluster_record(f"edge{number}"))
        fleet.entry(f"edge{number}")
        fleet.score(f"edge{number}", results=results)
    monkeypatch.setattr(search, "PAGE_ROWS", 30)
    response = search.build_search_page(Sources(PageDataReader(redis_client)), {}, {"q": "item:n1"})
    rows = response["page"].rows
    assert (len(rows), response["page"].total, response["looked"].read) == (30, 52, 52)
    assert {(len(row.score.results), len(row.score.items), row.values) for row in rows} == {(1, 1, (12, -4))}


def test_pages_and_searches_parse_a_limited_amount_of_scores(page: WebProcess, redis_client: redis.Redis) -> None:
    fleet = good_fleet(redis_client)
    for number in range(4):
        fleet.registry.put_cluster(fleet.make_cluster_record(f"edge{number}"))
        fleet.entry(f"edge{number}")
        fleet.score(f"edge{number}")
        fleet.set_pair_fields(f"edge{number}", value=4.5)
        # Two scores of this size exceed the limit of a request.
        redis_client.hset(keys.pair_key(f"edge{number}", SAMPLE), "score_size", 5_000_000)
    html = fetch(page, "/find?q=item:n1+cluster:edge*", "At least 1 pair ", "searched in 1 of 4 pairs")
    assert "3 large scores were left out: say more" in html
    fetch(page, "/find?q=item:n1+cluster:edge3", "1 pair ", "searched in 1 pair.")
    html = fetch(page, f"/scorers/{SAMPLE}", "edge3")
    assert html.count('<b>4.5</b> <span class="soft">mean of 2 items</span>') == 3
    # The small scores of other pairs are shown and searched.
    html = fetch(page, "/find?q=item:n1", "At least 3 pairs ", "searched in 3 of 6 pairs")
    assert {"worker01", "worker02"} < set(clusters_of(html))


def test_search_reports_the_number_of_searched_pairs(
    redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "_MAX_READ", 3)
    monkeypatch.setattr(search, "MAX_ROWS", 3)
    fleet = good_fleet(redis_client)
    for number in range(10):
        fleet.registry.put_cluster(fleet.make_cluster_record(f"edge{number}"))
        fleet.entry(f"edge{number}")
        fleet.score(f"edge{number}", valid_for=300 + number)
        fleet.cycle(f"edge{number}")
    due = compute_current_tick_time(f"edge9/{SAMPLE}", 10, fleet.now - 30)
    run, by_hand = make_run_id(due), make_run_id(due + 0.005)
    for run_id in (run, by_hand):
        fleet.cycle("edge9", run=run_id)
    sources = Sources(PageDataReader(redis_client))

    def search_report(text: str) -> tuple[list[str], int, int]:
        response = search.build_search_page(sources, {}, {"q": text})
        looked = response["looked"]
        return [row.cluster for row in response["page"].rows], looked.read, looked.of

    # The last of all pairs: its run has a due time, and few are due then.
    wait_for(lambda: search_report(f"run:{run}") == (["edge9"], 1, 1), 20)
    wait_for(lambda: search_report(run) == (["edge9"], 1, 1), 20)
    wait_for(lambda: search_report(f"run:{run} cluster:edge8") == ([], 1, 1), 20)
    # A manual run does not reveal its pair.
    wait_for(lambda: search_report(f"run:{by_hand}") == ([], 3, 12), 20)
    wait_for(lambda: search_report(f"run:{by_hand} cluster:edge9") == (["edge9"], 1, 1), 20)
    wait_for(lambda: len(search_report("item:n1")[0]) == 3, 20)


def test_outdated_cursor_shows_the_first_page(redis_client: redis.Redis) -> None:
    fleet = good_fleet(redis_client)
    sources = Sources(PageDataReader(redis_client))
    [view] = [candidate for candidate in VIEWS if candidate.path == "/"]

    def grown(start: int, end: int) -> None:
        for number in range(start, end):
            fleet.registry.put_cluster(fleet.make_cluster_record(f"edge{number}"))
            fleet.entry(f"edge{number}")

    def shows_first_page(mode: str, rows: int, cursor: str) -> bool:
        context = view.build(sources, {}, {"cursor": cursor})
        return context["mode"] == mode and len(context["lines"] if mode == "matrix" else context["page"].rows) == rows

    grown(0, 198)
    wait_for(lambda: shows_first_page("matrix", 200, ""), 20)
    # All is counted again and again here.
    wait_for(lambda: shows_first_page("matrix", 200, "3/30000000000.0/a/b"), 20)
    grown(198, 250)
    wait_for(lambda: shows_first_page("large", 100, ""), 20)
    wait_for(lambda: shows_first_page("large", 100, "-3.0/edge100"), 20)


def test_clusters_without_pairs_are_not_counted_in_the_matrix(
    redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = good_fleet(redis_client)
    for number in range(160):
        fleet.registry.put_cluster(fleet.make_cluster_record(f"edge{number:03}"))
        if number % 2:
            fleet.entry(f"edge{number:03}")
    monkeypatch.setattr(views, "_count_matrix_rows", lambda *_: 50)
    sources = Sources(PageDataReader(redis_client))
    sizes: list[int] = []

    def read() -> bool:
        sizes.clear()
        query: dict[str, str] = {}
        while True:
            context = VIEWS[0].build(sources, {}, query)
            if context["mode"] != "matrix" or context["page"].total != 82:
                return False
            sizes.append(len(context["lines"]))
            if context["page"].cursor is None:
                # All is counted again and again here.
                return sizes == [50, 32]
            query = {"cursor": context["page"].cursor}

    wait_for(read, 20)


def test_invalid_cursor_is_refused(page: WebProcess, redis_client: redis.Redis) -> None:
    good_fleet(redis_client)
    for path in (f"/scorers/{SAMPLE}", "/clusters/worker01", "/find?q=state:ok"):
        sign = "&" if "?" in path else "?"
        fetch(page, f"{path}{sign}cursor=", "worker01")
        assert page.get(f"{path}{sign}cursor=0/nan/a/b").status_code == 400


def test_missing_page_is_reported_with_status_404(page: WebProcess, redis_client: redis.Redis) -> None:
    good_fleet(redis_client)
    for path in ("/scorers/nothing", "/clusters/nothing", "/clusters/worker01/scorers/x", "/nothing"):
        response = page.get(path)
        assert response.status_code == 404
        assert "There is no such" in response.text
        assert response.headers["content-type"].startswith("text/html")


PROBE = "\"'><script>alert(1)</script><!--e--><!--b live-->{{7*7}}"


def test_foreign_texts_are_escaped(page: WebProcess, redis_client: redis.Redis) -> None:
    fleet = Fleet(redis_client)
    for cluster in CLUSTERS:
        fleet.entry(cluster)
    fleet.score("worker01")
    score = json.loads(redis_client.hget("dsf:pair:worker01/sample-scorer", "score") or "{}")
    score |= {"score_name": PROBE, "items": [[PROBE, 3]], "results": [[{"node": PROBE}, 3.5]], "run": PROBE}
    redis_client.hset("dsf:pair:worker01/sample-scorer", "score", json.dumps(score))
    fleet.failure("worker02", message=PROBE)
    # A row as earlier versions wrote it, in which everything may be any text.
    row = dict.fromkeys(("run", "outcome", "stage", "reason", "message"), PROBE)
    redis_client.lpush("dsf:history:worker02/sample-scorer", json.dumps({**row, "at": 1.0, "counts": {PROBE: 1}}))
    record = json.loads(redis_client.hget("dsf:scorers", SAMPLE) or "{}")
    redis_client.hset("dsf:scorers", SAMPLE, json.dumps({**record, "description": PROBE, "problem": PROBE}))
    redis_client.hset("dsf:clusters:agents", "worker01", json.dumps({"version": PROBE}))
    redis_client.hset("dsf:schedule:overrides", f"*/{SAMPLE}", json.dumps({"note": PROBE, "by": PROBE, "interval": 7}))
    fetch(page, "/", "&lt;script&gt;")
    for path in ("/", f"/scorers/{SAMPLE}", "/clusters/worker01", PAIR, PAIR.replace("01", "02"), f"/find?q={PROBE}"):
        html = fetch(page, path, *([] if path == "/clusters/worker01" else ["{{7*7}}"]))
        assert "alert(1)</script>" not in html, path


def test_foreign_names_are_escaped(page: WebProcess, redis_client: redis.Redis) -> None:
    """Write arbitrary values into a registry, a schedule and a stream of changes, as another program could."""
    name = "\"'><img src=x onerror=alert(2)>{{7*7}}"
    fleet = good_fleet(redis_client)
    fleet.registry.put_cluster(fleet.make_cluster_record(name))
    fleet.registry.put_scorer(ScorerRecord(name=name, score_name=name, interval=10, validity=300))
    for cluster, scorer in ((name, name), ("worker01", name), (name, SAMPLE)):
        fleet.entry(cluster, scorer)
        fleet.failure(cluster, scorer)
        fleet.cycle(cluster, scorer)
    Notices(redis_client).write_cluster(ClusterNotice(name=name, labels={CLUSTER_SET: name, "env": name}))
    user_action = UserAction(action=Action.PAUSE, scorer=name, clusters=(name,), note=name, detail=name)
    record_change(redis_client, Actor(name=name, claimed=True, way="page"), user_action)
    fetch(page, "/", "&lt;img src=x")
    quoted_name = quote(name, safe="")
    fetch(page, f"/clusters/{quoted_name}", "&lt;img src=x")
    paths = (
        f"/scorers/{quoted_name}",
        f"/clusters/{quoted_name}/scorers/{quoted_name}",
        f"/find?q={quoted_name}",
        "/changes",
        "/parts",
    )
    for path in (
        "/",
        *paths,
        "/parts?by=env",
        f"/parts?by={quoted_name}",
        f"/?set={quoted_name}",
        f"/changes?scorer={quoted_name}",
    ):
        response = page.get(path)
        assert response.status_code == 200, path
        assert "<img" not in response.text, path
        assert "49" not in re.findall(r"&gt;(\d+)", response.text), path


def test_runs_and_pages_link_to_flower_and_grafana(
    redis_server: RedisServer, redis_client: redis.Redis, tmp_path: Path
) -> None:
    run = make_run_id(time.time())
    good_fleet(redis_client).cycle("worker01", run=run)
    url_settings = {"web_flower_url": "https://flower.example/", "web_grafana_url": "https://grafana.example/d/1"}
    with WebProcess(redis_server.url, tmp_path / "log", **url_settings) as page:
        html = fetch(page, PAIR, run)
        assert f'href="https://flower.example/tasks?name=dsf.%20{run}"' in html
        for external_url in url_settings.values():
            assert f'<a href="{external_url}" rel="noopener">' in html
        assert page.terminate() == 0


def test_pages_load_no_foreign_resources(page: WebProcess, redis_client: redis.Redis) -> None:
    good_fleet(redis_client)
    html = fetch(page, "/", "All 2 scores")
    loaded = re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="([^"]*)"', html)
    assert len(loaded) == 3
    for resource_path in loaded:
        response = page.get(resource_path)
        assert response.status_code == 200, resource_path
        assert "immutable" in response.headers["cache-control"]
    assert " style=" not in html
    assert not re.search(r"<[^>]* on\w+=", html)


def test_pages_work_behind_a_prefix(
    redis_client: redis.Redis, redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    good_fleet(redis_client)
    folder = tmp_path_factory.mktemp("prefixed")
    with WebProcess(redis_server.url, folder / "log", web_root_path="/dsf") as prefixed:
        html = fetch(prefixed, "/dsf/", "All 2 scores")
        links = re.findall(r'(?:href|src|action)="(/[^"]*)"', html)
        assert links
        assert all(link.startswith("/dsf/") for link in links)
        assert all(prefixed.get(link.partition("#")[0]).status_code == 200 for link in links)


def test_address_with_an_extra_slash_does_not_redirect(page: WebProcess, redis_client: redis.Redis) -> None:
    good_fleet(redis_client)
    for path in ("/plans/", "/scorers/", "/api/v1/summary/"):
        response = page.get(path)
        assert response.status_code == 404
        assert "location" not in response.headers


def test_prefix_may_not_be_an_address_of_the_page(page: WebProcess, redis_client: redis.Redis) -> None:
    """Each address begins with one of `list_own_segments`."""
    good_fleet(redis_client)
    html = fetch(page, "/", "All 2 scores are fresh") + page.get("/docs").text
    described = list(page.get("/openapi.json").json()["paths"])
    addresses = [*re.findall(r'(?:href|src|action)="(/[^"]*)"', html), *described, *(v.path for v in list_views(VIEWS))]
    begins = {re.split("[/?#]", address)[1] for address in addresses} - {""}
    assert begins >= {"scorers", "static", "api", "placements"}
    assert begins <= list_own_segments()


MANIFEST = """\
apiVersion: dynamic-scoring.open-cluster-management.io/v1alpha1
kind: DynamicScorer
metadata: {name: sample-scorer, namespace: open-cluster-management}
spec:
  description: d
  configURL: http://scorer.test/config
  configSyncMode: Full
  scoring: {path: /mine}
  execution: {maxRetries: 1}
status:
  lastSyncedConfigTime: "2026-01-01T00:00:00Z"
  lastSyncedConfig:
    name: n
    source: {type: Prometheus, params: {query: up, range: 60, step: 15}}
    scoring: {params: {name: sample_score, interval: 10}}
  conditions:
  - type: ConfigSynced
    status: "False"
    reason: ConfigInvalid
    message: no JSON
    lastTransitionTime: "2026-01-02T00:00:00Z"
"""


def test_settings_are_shown_with_their_origin(
    redis_server: RedisServer, redis_client: redis.Redis, tmp_path: Path
) -> None:
    good_fleet(redis_client)
    ScheduleStore(redis_client).set_override(f"*/{SAMPLE}", interval=7, note="load test", by="ann")
    folder = tmp_path / "_out" / "dynamicscorers"
    folder.mkdir(parents=True)
    (folder / f"{SAMPLE}.yaml").write_text(MANIFEST)
    with WebProcess(redis_server.url, tmp_path / "log", manifests=tmp_path) as page:
        html = fetch(page, f"/scorers/{SAMPLE}", "Origin of each setting")
        scorer_settings = Client(page.url).scorer(SAMPLE).settings
        described = page.get("/openapi.json").json()["components"]["schemas"]
        # As for readers without that right.
        (folder / f"{SAMPLE}.yaml").unlink()
        assert Client(page.url).scorer(SAMPLE).settings is None
    rows = re.findall(
        r'data-name="Setting">([^<]*)</th>.*?<code>([^<]*)</code>.*?class="mark">([^<]*)</span>(.*?)</td>', html
    )
    settings = {
        unescape(name): (unescape(value), origin, unescape(re.sub("<[^>]*>", "", explanation)).strip())
        for name, value, origin, explanation in rows
    }
    assert settings["query"] == ("up", "/config", "")
    assert settings["scoring path"] == ("/mine", "spec", "")
    assert settings["retries"] == ("1", "spec", "")
    assert settings["source host"] == ("http://scorer.test", "default", "")
    assert settings["validity (s)"][:2] == ("300 (3 intervals, at least 300)", "default")
    assert settings["interval (s)"] == ("7", "override", "set by ann: load test; declared: 10 in /config")
    # The JSON API has the same settings.
    assert scorer_settings is not None
    assert {setting.name: (setting.value, setting.origin, setting.instead) for setting in scorer_settings} == settings
    assert set(described["SettingView"]["properties"]) == {"name", "value", "origin", "instead"}
    assert "settings" in described["ScorerDetail"]["properties"]
    assert "<b>7 s</b> in force, set by a user; declared are 10 s" in html
    text = re.sub(r"<[^>]*>", "", html)
    assert re.search(r"not good any more since \d+ d ago \(ConfigInvalid\); this is the last good one", text)
    assert re.search(r"it first answered this \d+ d ago", text)


def test_scorer_that_could_not_run_shows_its_condition(page: WebProcess, redis_client: redis.Redis) -> None:
    good_fleet(redis_client)
    notices = Notices(redis_client)
    condition = ConditionNotice(
        type="ConfigSynced", status="False", reason="MissingInterval", message=f"no interval {PROBE}", since=1.0
    )
    notices.write_scorer(ScorerNotice(name="broken", conditions=(condition,)))
    notices.write_cluster(ClusterNotice(name="worker01", labels={"env": PROBE}, absent={STATIC: f"masked {PROBE}"}))
    html = fetch(page, "/", "broken could not run yet")
    assert "MissingInterval" in html
    assert "broken could not run yet" in fetch(page, "/scorers/broken", "MissingInterval")
    cluster = fetch(page, "/clusters/worker01", f'{STATIC}</a>: <span class="soft">masked')
    assert "<code>env=" in cluster
    assert not [text for text in (html, cluster) if "<script>alert" in text]
    [unready_scorer] = wait_for(lambda: page.get("/api/v1/summary").json()["unready"], 20)
    assert (unready_scorer["name"], unready_scorer["conditions"][0]["reason"]) == ("broken", "MissingInterval")


def test_fleet_is_grouped_by_cluster_set_and_label(page: WebProcess, redis_client: redis.Redis) -> None:
    good_fleet(redis_client).failure("worker02")
    for cluster, region in (("worker01", "eu"), ("worker02", "us east")):
        labels = {CLUSTER_SET: region, "env": "prod"}
        Notices(redis_client).write_cluster(ClusterNotice(name=cluster, labels=labels))
    html = fetch(page, "/parts", "1 failing", ">us east</a>", ">eu</a>")
    assert html.index(">us east</a>") < html.index(">eu</a>")
    [region_link] = re.findall(r'href="([^"]*)">us east</a>', html)
    await_pairs(page, unescape(region_link), ["worker02"], "1 pair ")
    assert 'href="/?set=eu#choose"' in html
    await_pairs(page, "/?label=env%3Dp*&set=eu", ["worker01"], "1 cluster;")
    await_pairs(page, "/?set=asia", [], "0 clusters;")
    html = fetch(page, "/parts?by=env", "Clusters by env", 'href="/?label=env%3Dprod#choose"')
    assert 'href="/find?q=label%3Aenv%3Dprod">prod</a>' in html
    fetch(page, "/find?q=label:env=p*+set:eu+state:ok", "1 pair ")
    fetch(page, "/find?q=set:asia", "0 pairs")
    # Kubernetes has these two apart.
    for cluster, region in (("worker01", "EU"), ("worker02", "eu")):
        Notices(redis_client).write_cluster(ClusterNotice(name=cluster, labels={CLUSTER_SET: region, "Zone": region}))
    for by, name in (("", "ClusterSets"), ("?by=Zone", "Clusters by Zone")):
        html = fetch(page, f"/parts{by}", ">EU</a>", ">eu</a>")
        assert name in html
        for region, cluster in (("EU", "worker01"), ("eu", "worker02")):
            [region_link] = re.findall(rf'href="([^"]*)">{region}</a>', html)
            await_pairs(page, unescape(region_link), [cluster], "1 pair ")
    fetch(page, "/?set=EU", "1 cluster;")
    fetch(page, "/find?q=LABEL:Zone=E*+cluster:WORKER*", "1 pair ")


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_page_listens_on_ipv6(redis_server: RedisServer, redis_client: redis.Redis, tmp_path: Path) -> None:
    good_fleet(redis_client)
    with WebProcess(redis_server.url, tmp_path / "log", listen_host="::1") as page:
        assert page.url.startswith("http://[::1]:")
        fetch(page, "/", "All 2 scores are fresh")


def test_headline_reports_that_no_ticks_are_sent(page: WebProcess, redis_client: redis.Redis) -> None:
    good_fleet(redis_client)
    redis_client.zadd(keys.DUE, {"worker01/sample-scorer": time.time() - 60})
    fetch(page, "/", "No ticks are sent: worker01/sample-scorer has been due for")
