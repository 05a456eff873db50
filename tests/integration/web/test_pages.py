"""Every page over a fleet in a real Redis, as a browser without JavaScript gets it."""

from __future__ import annotations

import json
import re
import socket
import time
from pathlib import Path

import pytest
import redis

from dsf.store.model import ModelKeeper, is_whole
from dsf.store.notices import CLUSTER_SET, ClusterNotice, Notices, Said, ScorerNotice
from dsf.store.schedule import ScheduleStore
from tests.integration.exporter.fleet import CLUSTERS, SAMPLE, STATIC, Fleet, good_fleet
from tests.support.redisserver import RedisServer
from tests.support.wait import wait_for
from tests.support.webprocess import WebProcess

PAIR = f"/clusters/worker01/scorers/{SAMPLE}"


def fetch(page: WebProcess, path: str, wanted: str) -> str:
    """A page once it has this text: one reading of the fleet is shown for a second."""

    def shown() -> str:
        answer = page.get(path)
        assert answer.status_code == 200, answer.text
        assert wanted in answer.text
        return answer.text

    return wait_for(shown, 20, f"{wanted!r} on {path}")


def test_a_good_fleet(page: WebProcess, redis_client: redis.Redis) -> None:
    good_fleet(redis_client)
    html = fetch(page, "/", "All 2 scores are fresh")
    assert html.count('class="state s-ok"') >= 2
    for cluster in CLUSTERS:
        assert f'href="{PAIR.replace("worker01", cluster)}"' in html


def test_the_first_line_says_what_fails_where_and_why(page: WebProcess, redis_client: redis.Redis) -> None:
    fleet = good_fleet(redis_client)
    fleet.failure("worker02", message="parse error: unexpected <eof>")
    html = fetch(page, "/", "sample-scorer fails on worker02: bad_query")
    assert "parse error: unexpected &lt;eof&gt;" in html
    assert "mend the query" in html
    # What needs a person comes first.
    table = html[html.index('id="pairs"') :]
    assert table.index("worker02") < table.index("worker01")


def test_the_pair(page: WebProcess, redis_client: redis.Redis) -> None:
    fleet = good_fleet(redis_client)
    fleet.failure("worker01", message="the whole text " * 40, in_a_row=4)
    fleet.cycle("worker01", outcome="error", stage="fetch", reason="bad_query", message="no")
    html = fetch(page, PAIR, "4 cycles in a row")
    assert ("the whole text " * 40).strip() in html
    assert "<svg" in html
    assert "Scheduled</dt><dd>7" in html
    assert "kubectl get addonplacementscore sample-score -n worker01" in html
    assert "Last 2 cycles" in html


def test_the_scorer_and_the_cluster(page: WebProcess, redis_client: redis.Redis) -> None:
    fleet = good_fleet(redis_client)
    fleet.entry("worker01", STATIC)
    fleet.skips("worker01", "inactive", 5, scorer=STATIC)
    html = fetch(page, f"/scorers/{STATIC}", "inactive")
    assert "Inactive" in html
    html = fetch(page, "/clusters/worker01", STATIC)
    assert "key 1" in html
    assert "spoke.worker01" in html


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("state:failing", ["worker02"]),
        ("reason:bad_* cluster:worker*", ["worker02"]),
        ("cluster:worker01", ["worker01"]),
        ("state:ok scorer:sample-*", ["worker01"]),
        ("item:n1 cluster:worker01", ["worker01"]),
        ("item:nothing", []),
        ("sample", ["worker01", "worker02"]),
    ],
)
def test_search(page: WebProcess, redis_client: redis.Redis, query: str, found: list[str]) -> None:
    fleet = good_fleet(redis_client)
    fleet.failure("worker02")

    def searched() -> None:
        html = page.request("GET", "/find", params={"q": query}).text
        rows = re.findall(r'<tr id="pairs-([^/]*)/', html)
        assert sorted(rows) == found

    wait_for(lambda: searched() is None, 20)


def test_a_run_is_found(page: WebProcess, redis_client: redis.Redis) -> None:
    run = good_fleet(redis_client).score("worker01")
    fetch(page, f"/find?q=run:{run}", "1 pair ")


@pytest.mark.parametrize("path", ["/scorers/nothing", "/clusters/nothing", "/clusters/worker01/scorers/x", "/nothing"])
def test_what_is_not_there(page: WebProcess, redis_client: redis.Redis, path: str) -> None:
    good_fleet(redis_client)
    answer = page.get(path)
    assert answer.status_code == 404
    assert "There is no such" in answer.text
    assert answer.headers["content-type"].startswith("text/html")


PROBE = "\"'><script>alert(1)</script><!--e--><!--b live-->{{7*7}}"


def test_texts_of_others_stay_texts(page: WebProcess, redis_client: redis.Redis) -> None:
    fleet = Fleet(redis_client)
    for cluster in CLUSTERS:
        fleet.entry(cluster)
    fleet.score("worker01")
    stored = json.loads(redis_client.hget("dsf:pair:worker01/sample-scorer", "score") or "{}")
    stored |= {"score_name": PROBE, "items": [[PROBE, 3]], "results": [[{"node": PROBE}, 3.5]], "run": PROBE}
    redis_client.hset("dsf:pair:worker01/sample-scorer", "score", json.dumps(stored))
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
        answer = page.get(path)
        assert answer.status_code == 200, path
        assert "alert(1)</script>" not in answer.text, path
        assert "{{7*7}}" in answer.text or path == "/clusters/worker01", path


def test_nothing_is_loaded_from_elsewhere(page: WebProcess, redis_client: redis.Redis) -> None:
    good_fleet(redis_client)
    html = fetch(page, "/", "All 2 scores")
    loaded = re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="([^"]*)"', html)
    assert len(loaded) == 4
    for place in loaded:
        answer = page.get(place)
        assert answer.status_code == 200, place
        assert "immutable" in answer.headers["cache-control"]
    assert " style=" not in html
    assert not re.search(r"<[^>]* on\w+=", html)


def test_behind_a_prefix(
    redis_client: redis.Redis, redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    good_fleet(redis_client)
    folder = tmp_path_factory.mktemp("prefixed")
    with WebProcess(redis_server.url, folder / "log", web_root_path="/dsf") as prefixed:
        html = fetch(prefixed, "/dsf/", "All 2 scores")
        places = re.findall(r'(?:href|src|action|data-live)="(/[^"]*)"', html)
        assert places
        assert all(place.startswith("/dsf/") for place in places)
        assert all(prefixed.get(place.partition("#")[0]).status_code == 200 for place in places if "/live" not in place)


def test_redis_away_and_back(tmp_path: Path) -> None:
    with RedisServer(aof=True) as server, WebProcess(server.url, tmp_path / "log") as page:
        client = server.client()
        good_fleet(client)
        keeper = ModelKeeper(client)
        wait_for(lambda: not keeper.turn(time.time()) and is_whole(client), 20)
        fetch(page, "/", "All 2 scores")
        server.kill()
        answer = wait_for(lambda: [one for one in [page.get("/")] if one.status_code == 503], 20)[0]
        assert "Redis cannot be read" in answer.text
        assert page.get("/readyz").status_code == 503
        assert page.get("/healthz").status_code == 200
        server.restart()
        fetch(page, "/", "All 2 scores")


def test_it_ends_well(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> None:
    with WebProcess(redis_server.url, tmp_path_factory.mktemp("ends") / "log") as page:
        assert page.terminate() == 0


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


def test_where_each_setting_comes_from(redis_server: RedisServer, redis_client: redis.Redis, tmp_path: Path) -> None:
    good_fleet(redis_client)
    ScheduleStore(redis_client).set_override(f"*/{SAMPLE}", interval=7, note="load test", by="ann")
    folder = tmp_path / "_out" / "dynamicscorers"
    folder.mkdir(parents=True)
    (folder / f"{SAMPLE}.yaml").write_text(MANIFEST)
    with WebProcess(redis_server.url, tmp_path / "log", manifests=tmp_path) as page:
        html = fetch(page, f"/scorers/{SAMPLE}", "Where each setting comes from")
    rows = re.findall(
        r'data-name="Setting">([^<]*)</th>.*?<code>([^<]*)</code>.*?class="mark">([^<]*)</span>(.*?)</td>', html
    )
    settings = {name: (value, origin, re.sub("<[^>]*>", "", rest).strip()) for name, value, origin, rest in rows}
    assert settings["query"] == ("up", "/config", "")
    assert settings["scoring path"] == ("/mine", "spec", "")
    assert settings["retries"] == ("1", "spec", "")
    assert settings["source host"] == ("http://scorer.test", "default", "")
    assert settings["validity (s)"][:2] == ("300 (3 intervals, at least 300)", "default")
    assert settings["interval (s)"] == ("7", "override", "set by ann: load test; declared: 10 in /config")
    assert "<b>7 s</b> in force, set by a person; declared are 10 s" in html
    text = re.sub(r"<[^>]*>", "", html)
    assert re.search(r"not good any more since \d+ d ago \(ConfigInvalid\); this is the last good one", text)
    assert re.search(r"it first answered this \d+ d ago", text)


def test_what_could_not_run_yet(page: WebProcess, redis_client: redis.Redis) -> None:
    good_fleet(redis_client)
    notices = Notices(redis_client)
    why = Said(type="ConfigSynced", status="False", reason="MissingInterval", message=f"no interval {PROBE}", since=1.0)
    notices.tell_scorer(ScorerNotice(name="broken", conditions=(why,)))
    notices.tell_cluster(ClusterNotice(name="worker01", labels={"env": PROBE}, absent={STATIC: f"masked {PROBE}"}))
    html = fetch(page, "/", "broken could not run yet")
    assert "MissingInterval" in html
    assert "broken could not run yet" in fetch(page, "/scorers/broken", "MissingInterval")
    cluster = fetch(page, "/clusters/worker01", f'{STATIC}</a>: <span class="soft">masked')
    assert "<code>env=" in cluster
    assert not [text for text in (html, cluster) if "<script>alert" in text]
    api = page.get("/api/v1/summary").json()["unready"]
    assert [(one["name"], one["conditions"][0]["reason"]) for one in api] == [("broken", "MissingInterval")]


def test_the_fleet_by_cluster_set_and_by_label(page: WebProcess, redis_client: redis.Redis) -> None:
    good_fleet(redis_client).failure("worker02")
    for cluster, region in (("worker01", "eu"), ("worker02", "us east")):
        labels = {CLUSTER_SET: region, "env": "prod"}
        Notices(redis_client).tell_cluster(ClusterNotice(name=cluster, labels=labels))
    html = fetch(page, "/parts", "1 failing")
    assert html.index(">us east</a>") < html.index(">eu</a>")
    [place] = re.findall(r'href="([^"]*)">us east</a>', html)
    assert re.findall(r'<tr id="pairs-([^/]*)/', fetch(page, place, "1 pair ")) == ["worker02"]
    html = fetch(page, "/parts?by=env", "Clusters by env")
    assert 'href="/find?q=label%3Aenv%3Dprod">prod</a>' in html
    fetch(page, "/find?q=label:env=p*+set:eu+state:ok", "1 pair ")
    fetch(page, "/find?q=set:asia", "0 pairs")


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6")
def test_it_listens_on_ipv6(redis_server: RedisServer, redis_client: redis.Redis, tmp_path: Path) -> None:
    good_fleet(redis_client)
    with WebProcess(redis_server.url, tmp_path / "log", web_host="::1") as page:
        assert page.url.startswith("http://[::1]:")
        fetch(page, "/", "All 2 scores are fresh")
