"""The tab of a scorer with its backtests: real pages, Redis, Prometheus with a past, and a scoring API."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis
import yaml
from playwright.sync_api import Browser, expect

from dsf import keys
from dsf.api.scorer import DynamicScorer
from dsf.api.summary import ScorerSummary, dump_summaries
from dsf.backtest import runstore
from dsf.backtest.errors import BacktestError
from dsf.backtest.redisrights import make_backtests_key
from dsf.backtest.runner import BacktestRunner, RunRequest
from dsf.backtest.runstore import KeptRun
from dsf.fleet import changes
from dsf.settings import Settings
from dsf.store.registry import ScorerRecord
from dsf.web.objects import read_from_folder
from dsf.web.pagedata import PageDataReader
from dsf.web.pages import Sources
from tests.integration.cli.conftest import Dsf, dsf
from tests.integration.exporter.fleet import SAMPLE, STATIC, good_fleet
from tests.integration.web.visitor import TOKEN, Visitor
from tests.support.browser import THEMES, Tab
from tests.support.recordedprometheus import RecordedPrometheus
from tests.support.redisserver import RedisServer, free_port
from tests.support.scoringservices import ROOT, load, served
from tests.support.wait import wait_for
from tests.support.webprocess import WebProcess

from .conftest import CLUSTERS, busy

__all__ = ["dsf"]

# The one with the browser wants its own process, and Prometheus is started once.
#: Read before the fixture `dsf` removes all settings.
PICTURES = os.environ.get("DSF_PICTURES", "")
TAB = f"/scorers/{SAMPLE}/backtests"
#: A second version of it: two minutes instead of half an hour.
HASTY = "hasty-scorer"
PLACEMENT = """
apiVersion: cluster.open-cluster-management.io/v1beta1
kind: Placement
metadata: {name: web, namespace: apps}
spec:
  numberOfClusters: 1
  prioritizerPolicy:
    mode: Exact
    configurations:
      - {weight: 1, scoreCoordinate: {type: AddOn, addOn: {resourceName: busy, scoreName: busy}}}
"""


#: Paths of the requests to the scoring API.
ASKED: list[str] = []


@pytest.fixture(scope="module")
def scoring() -> Iterator[str]:
    app = load(Path(ROOT) / "samples" / "sample-scorer" / "app.py").app

    async def noted(scope: Any, receive: Any, send: Any) -> None:
        ASKED.append(scope.get("path", ""))
        await app(scope, receive, send)

    with served(noted) as url:
        yield url


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory, scoring: str) -> Iterator[Path]:
    """The folder of a hub that has delivered a scorer to two clusters, and one whose source does not exist."""
    out, end = tmp_path_factory.mktemp("hub"), int(time.time()) // 60 * 60
    with RecordedPrometheus(
        tmp_path_factory.mktemp("past") / "prometheus",
        {
            f'instance:node_cpu_busy:ratio{{cluster="{name}"}}': lambda at, name=name: busy(name, at)  # type: ignore[misc]
            for name in CLUSTERS
        },
        range(end - 25 * 3600, end + 600, 60),
    ) as prometheus:
        for cluster in CLUSTERS:
            folder = out / "clusters" / cluster
            folder.mkdir(parents=True)
            summaries = [
                summary(SAMPLE, prometheus.url, scoring, cluster, 1800),
                summary(HASTY, prometheus.url, scoring, cluster, 120),
                summary(STATIC, f"http://127.0.0.1:{free_port()}", scoring, cluster, 60),
            ]
            manifest = {"kind": "ConfigMap", "data": {"summaries": dump_summaries(summaries)}}
            (folder / "dynamic-scoring-config.yaml").write_text(yaml.safe_dump(manifest))
        (out / "source").write_text(prometheus.url)
        yield out


def summary(name: str, source: str, scoring: str, cluster: str, length: int) -> ScorerSummary:
    """As it would be delivered."""
    return ScorerSummary(
        name=name,
        score_name="busy",
        source_type="Prometheus",
        source_endpoint=f"{source}/api/v1/query_range",
        source_query=f'100 * avg(instance:node_cpu_busy:ratio{{cluster="{cluster}"}})',
        source_range=length,
        source_step=60,
        scoring_endpoint=f"{scoring}/scoring",
        scoring_interval=30,
        score_dimension_format="busy",
    )


@pytest.fixture
def acting(redis_server: RedisServer, hub: Path, tmp_path: Path) -> Iterator[WebProcess]:
    """Everybody on this machine may act."""
    with WebProcess(redis_server.url, tmp_path / "log", web_auth="local", out_dir=hub) as page:
        yield page


def start_backtest(visitor: Visitor, scorer: str = SAMPLE, **fields: str) -> str:
    """Start a backtest; the place of its run."""
    form = visitor.get(f"/act/backtest?scorer={scorer}")
    form_fields = {"cluster": "worker01", "hours": "1", "every": "120", **fields}
    status, text, location = visitor.post("/act/backtest", form, **form_fields)
    assert status == 303, text
    return location


def finished_run(client: redis.Redis, scorer: str = SAMPLE) -> KeptRun:
    """Return the newest run, once it has ended."""
    wait_for(lambda: not runstore.read_runs(client, scorer)[0].is_running, 90, "the backtest to end")
    return runstore.read_runs(client, scorer)[0]


def test_backtest_started_on_the_page_is_drawn_there(acting: WebProcess, redis_client: redis.Redis) -> None:
    good_fleet(redis_client)
    visitor = Visitor(acting)
    assert "None yet" in visitor.get(TAB)
    location = start_backtest(visitor, note="before we trust it")
    assert location.startswith(f"{TAB}?run=")
    assert "running" in visitor.get(location)
    run = finished_run(redis_client)
    [view] = run.backtests
    assert (view.moments, view.asked, view.outcomes) == (31, 31, {"ok": 31})
    # The backtest's score equals the recorded mean of half an hour, in percent.
    end = int(view.end.timestamp())
    mean = 100 * sum(busy("worker01", at) for at in range(end - 1800, end + 1, 60)) / 31
    assert abs((view.items[0].line[-1] or 0) - mean) <= 1
    html = visitor.get(location)
    assert "31 moments from" in html
    assert len(re.findall('<path class="line', html)) == 1
    assert f'data-name="Lowest" class="num">{view.items[0].minimum}<' in html
    assert f'<a href="{TAB}"' in visitor.get(f"/scorers/{SAMPLE}")
    [change] = changes.read_changes(redis_client).changes
    assert (change.action, change.way, change.clusters, change.note) == (
        "backtest", "page", ["worker01"], "before we trust it",
    )  # fmt: skip
    # A backtest publishes nothing and queries no agent.
    assert redis_client.llen(keys.spoke_queue("worker01")) == 0


def test_backtest_without_access_to_its_source_suggests_the_agent_command(
    acting: WebProcess, redis_client: redis.Redis
) -> None:
    fleet = good_fleet(redis_client)
    fleet.entry("worker01", STATIC)
    visitor = Visitor(acting)
    location = start_backtest(visitor, STATIC)
    run = finished_run(redis_client, STATIC)
    assert run.backtests[0].moments == 5
    html = visitor.get(location)
    assert "failed" in html
    assert "fetch: " in html
    assert f"exec deploy/dynamic-scoring-agent -- dsf backtest {STATIC} --since 24h" in html


def test_backtests_run_one_at_a_time_and_their_moments_survive_the_page(
    acting: WebProcess, redis_client: redis.Redis
) -> None:
    good_fleet(redis_client)
    visitor, before = Visitor(acting), len(ASKED)
    # As many moments as may be: it is not over before it is stopped.
    start_backtest(visitor, hours="24", every="90")
    form = visitor.get(f"/act/backtest?scorer={SAMPLE}")
    fields = {"cluster": "worker02", "hours": "1", "every": "300"}
    status, text, _ = visitor.post("/act/backtest", form, **fields)
    assert status == 422
    assert "another backtest or comparison runs" in text
    for wrong, reason in (
        ({"every": "3"}, "moments are more than 1000"),
        ({"hours": "x"}, "How far back: a whole number of hours"),
        ({"every": "7200"}, "no moment"),
        ({"cluster": ""}, "Cluster: choose one"),
    ):
        status, text, _ = visitor.post("/act/backtest", form, **(fields | wrong))
        assert (status, reason in text) == (422, True), text
    assert len(changes.read_changes(redis_client).changes) == 1
    # Moments are computed in order, so that all requested ones but the last are complete.
    wait_for(lambda: len(ASKED) >= before + 3, 90, "some moments to be asked")
    assert acting.terminate() == 0
    run = finished_run(redis_client)
    assert 0 < run.backtests[0].moments < run.backtests[0].asked
    assert "interrupted" in run.problem


def runs_of(page: WebProcess) -> list[psutil.Process]:
    """Return the processes of backtests and comparisons that a page has started."""
    assert page.process is not None
    return [
        child for child in psutil.Process(page.process.pid).children(recursive=True) if "dsf.cli" in child.cmdline()
    ]


def test_killed_page_leaves_no_backtest_process_behind(acting: WebProcess, redis_client: redis.Redis) -> None:
    versions(redis_client)
    visitor = Visitor(acting)
    start_backtest(visitor, hours="24", every="300")
    wait_for(lambda: runs_of(acting), 60, "the process of the backtest")
    [backtest_process] = runs_of(acting)
    assert acting.process is not None
    acting.process.kill()
    wait_for(
        lambda: not backtest_process.is_running() or backtest_process.status() == psutil.STATUS_ZOMBIE, 60, "its end"
    )
    # The next page shows that the run has not ended, without waiting for it.
    assert runstore.read_runs(redis_client, SAMPLE)[0].is_running


def versions(client: redis.Redis) -> None:
    """Both versions run on both clusters, and have scores."""
    fleet = good_fleet(client)
    fleet.registry.put_scorer(ScorerRecord(name=HASTY, score_name="sample_score", interval=10, validity=300))
    for cluster in CLUSTERS:
        fleet.entry(cluster, HASTY)
        fleet.score(cluster, HASTY)


def test_comparison_started_on_the_page_is_drawn_there(
    acting: WebProcess, browser: Browser, redis_client: redis.Redis
) -> None:
    versions(redis_client)
    with Tab(browser, acting.url, viewport={"width": 1280, "height": 900}) as tab:
        page = tab.open(TAB)
        page.get_by_role("link", name="Compare").click()
        expect(page.get_by_role("heading", level=1)).to_have_text(f"Compare: {SAMPLE}")
        # All other scorers of the hub, and nothing else.
        expect(page.locator("#other option")).to_have_text([HASTY, STATIC])
        assert tab.violations(*THEMES) == []
        page.get_by_role("radio", name="over the past").check()
        page.get_by_role("spinbutton", name="how far back").fill("2")
        page.get_by_label("Note").fill("sooner?")
        page.get_by_role("button", name="Run a comparison").click()
        expect(page.locator("#chosen-h")).to_contain_text(f"{SAMPLE} (A) and {HASTY} (B)")
        # The open page shows the outcome by itself.
        expect(page.locator("#chosen path.line")).to_have_count(4, timeout=120_000)
        expect(page.locator("#chosen")).to_contain_text("rank correlation")
        expect(page.locator("#chosen table tbody tr")).to_have_count(2)
        assert tab.violations(*THEMES) == []
        page.goto(f"{acting.url}/scorers/{HASTY}/backtests")
        expect(page.locator("#chosen path.line")).to_have_count(4)
        assert (tab.foreign_requests, tab.wrong) == ([], [])
    run = finished_run(redis_client)
    assert run.comparison is not None
    assert (run.problem, run.comparison.moments, run.comparison.clusters) == ("", 25, list(CLUSTERS))
    assert runstore.read_runs(redis_client, HASTY) == [run]
    [change] = changes.read_changes(redis_client).changes
    assert (change.action, change.scorer, change.detail, change.note, change.way) == (
        "compare", SAMPLE, f"with {HASTY}: 7200 s, every 300 s", "sooner?", "page",
    )  # fmt: skip


def test_scores_in_force_are_compared_without_a_source(acting: WebProcess, redis_client: redis.Redis) -> None:
    versions(redis_client)
    visitor = Visitor(acting)
    status, text, location = visitor.post(
        "/act/compare", visitor.get(f"/act/compare?scorer={SAMPLE}"), other=HASTY, how="now"
    )
    assert status == 303, text
    run = finished_run(redis_client)
    assert run.comparison is not None, run.problem
    assert (run.comparison.every, run.comparison.backtests) == (0, [])
    html = visitor.get(location)
    assert "scores as they were" in html
    assert '<span aria-hidden="true">✓</span> ok' in html
    assert [change.detail for change in changes.read_changes(redis_client).changes] == [
        f"with {HASTY}: scores in force"
    ]
    form = visitor.get(f"/act/compare?scorer={SAMPLE}")
    for wrong, reason in (
        ({"other": "nobody", "how": "now"}, "The other scorer: choose one"),
        ({"other": SAMPLE, "how": "now"}, "The other scorer: choose one"),
        ({"other": STATIC, "how": "now"}, f"{STATIC} and {SAMPLE} do not both run on any cluster"),
        ({"other": HASTY, "how": "past", "hours": "1", "every": "1"}, "moments are more than 1000"),
    ):
        status, text, _ = visitor.post("/act/compare", form, **wrong)
        assert (status, reason in text) == (422, True), text
    assert visitor.post("/act/compare", "", scorer=SAMPLE, other=HASTY)[0] == 403


def test_comparison_without_access_to_its_source_suggests_commands(
    acting: WebProcess, redis_client: redis.Redis
) -> None:
    fleet = good_fleet(redis_client)
    fleet.entry("worker01", STATIC)
    visitor = Visitor(acting)
    form = visitor.get(f"/act/compare?scorer={SAMPLE}&cluster=worker01")
    form_fields = {"other": STATIC, "how": "past", "hours": "1", "every": "120"}
    location = visitor.post("/act/compare", form, **form_fields)[2]
    finished_run(redis_client)
    html = visitor.get(location)
    assert "✕</span> failed" in html
    assert f"this page cannot reach the source of {STATIC} on worker01 (" in html
    assert (
        f"exec deploy/dynamic-scoring-agent -- dsf backtest {STATIC} --since 24h -o jsonl &gt; {STATIC}.jsonl" in html
    )
    assert f"<code>dsf compare {SAMPLE}.jsonl {STATIC}.jsonl --keep</code>" in html


def test_backtests_are_started_by_operators_only(
    page: WebProcess, closed: WebProcess, redis_client: redis.Redis
) -> None:
    good_fleet(redis_client)
    reader = Visitor(page)
    assert "/act/backtest" not in reader.get(TAB)
    data = {"scorer": SAMPLE, "cluster": "worker01", "hours": "1", "every": "120"}
    assert page.request("POST", "/act/backtest", data=data).status_code == 403
    assert page.request("POST", "/act/compare", data={**data, "other": STATIC}).status_code == 403
    # A login is required, and then the form's own secret.
    assert closed.request("POST", "/act/backtest", data=data).headers["location"].startswith("/login")
    visitor = Visitor(closed)
    visitor.post("/login", visitor.get("/login"), token=TOKEN)
    assert visitor.post("/act/backtest", "", **data)[0] == 403
    assert redis_client.exists(make_backtests_key(SAMPLE)) == 0
    assert changes.read_changes(redis_client).changes == []


def test_page_on_kubernetes_passes_the_manifest_to_the_backtest(
    redis_client: redis.Redis, hub: Path, scoring: str, tmp_path: Path
) -> None:
    """The page may get DynamicScorers, and has no files of clusters."""
    good_fleet(redis_client)
    source = (hub / "source").read_text()
    spec = {
        # Text in Kubernetes, and a number for some readers of YAML.
        "description": "08",
        "configURL": f"{scoring}/config",
        "configSyncMode": "None",
        "scoreDimensionFormat": "busy",
        "source": {
            "type": "Prometheus",
            "host": source,
            "path": "/api/v1/query_range",
            "params": {"query": "100 * avg(instance:node_cpu_busy:ratio)", "range": 600, "step": 60},
        },
        "scoring": {"params": {"name": "busy", "interval": 30}},
    }
    manifest = {"metadata": {"name": SAMPLE}, "spec": spec}
    (tmp_path / "dynamicscorers").mkdir()
    manifest_fields = DynamicScorer.from_manifest(manifest).model_dump(mode="json", by_alias=True, exclude_none=True)
    (tmp_path / "dynamicscorers" / f"{SAMPLE}.yaml").write_text(yaml.safe_dump(manifest_fields))
    reading = PageDataReader(redis_client)
    runner = BacktestRunner(Sources(reading, partial(read_from_folder, tmp_path)))
    noted: list[str] = []
    runner.start(RunRequest(SAMPLE, ["worker01"], 3600, 600), "ann", lambda: noted.append("ann"))
    run = finished_run(redis_client)
    assert (run.problem, run.by, noted) == ("", "ann", ["ann"])
    assert run.backtests[0].outcomes == {"ok": 7}
    runner.start(RunRequest(SAMPLE, CLUSTERS, 3600, 600, SAMPLE), "ann", lambda: None)
    run = finished_run(redis_client)
    assert run.comparison is not None, run.problem
    assert [(view.cluster, view.outcomes) for view in run.comparison.backtests_b] == [
        (name, {"ok": 7}) for name in CLUSTERS
    ]
    bounded = Settings(scorer_hosts=["elsewhere.example"])
    bounded_runner = BacktestRunner(Sources(reading, partial(read_from_folder, tmp_path), settings=bounded))
    with pytest.raises(BacktestError, match="may not name http"):
        bounded_runner.start(RunRequest(SAMPLE, ["worker01"], 3600, 600), "ann", lambda: None)
    blind = BacktestRunner(Sources(reading))
    with pytest.raises(Exception, match="cannot be read from here"):
        blind.start(RunRequest(SAMPLE, ["worker01"], 3600, 600), "ann", lambda: None)


def test_comparison_of_the_command_line_is_drawn_with_its_placements(
    page: WebProcess, browser: Browser, dsf: Dsf, redis_client: redis.Redis, hub: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    good_fleet(redis_client)
    monkeypatch.setenv("DSF_OUT_DIR", str(hub))
    (tmp_path / "placement.yaml").write_text(PLACEMENT)
    both = [argument for name in CLUSTERS for argument in ("--cluster", name)]
    for name in ("before", "after"):
        every = ["--since", "24h", "--every", "15m", "--rate", "1000", "--out", str(tmp_path / f"{name}.jsonl")]
        if name == "after":
            # Make the second version worse: a range of two minutes.
            for cluster in CLUSTERS:
                file = tmp_path / "clusters" / cluster / "dynamic-scoring-config.yaml"
                file.parent.mkdir(parents=True)
                text = (hub / "clusters" / cluster / file.name).read_text()
                file.write_text(text.replace('"sourceRange":1800', '"sourceRange":120'))
                assert file.read_text() != text
            monkeypatch.setenv("DSF_OUT_DIR", str(tmp_path))
        result = dsf("backtest", SAMPLE, *both, *every, *(["--keep"] if name == "before" else []))
        assert result.exit_code == 0, result.output
    files = [str(tmp_path / f"{name}.jsonl") for name in ("before", "after")]
    result = dsf("compare", *files, "--placement", str(tmp_path / "placement.yaml"), "--keep")
    assert result.exit_code == 0, result.output
    assert f"kept for the page of {SAMPLE}" in result.stderr
    [newest, first] = runstore.read_runs(redis_client, SAMPLE)
    assert newest.comparison is not None
    [placement] = newest.comparison.placements
    assert placement.flaps_b > placement.flaps_a
    with Tab(browser, page.url, viewport={"width": 1280, "height": 900}) as tab:
        browser_page = tab.open(f"/scorers/{SAMPLE}")
        browser_page.get_by_role("link", name="Backtests").click()
        expect(browser_page.locator("#chosen")).to_contain_text(
            f"{placement.differ} of {placement.decisions} decisions differ"
        )
        # Two versions on each of two clusters.
        expect(browser_page.locator("#chosen path.line")).to_have_count(4)
        assert browser_page.locator("#chosen .strip .other").count() == len(placement.spans)
        # The strip is as wide as the plots below it, but for the width of their lines.
        ground = browser_page.locator("#chosen .strip .ground").bounding_box()
        grid = browser_page.locator("#chosen .over-time .grid").first.bounding_box()
        assert ground is not None
        assert grid is not None
        assert [ground[key] for key in ("x", "width")] == pytest.approx([grid[key] for key in ("x", "width")], abs=2)
        assert tab.violations(*THEMES) == []
        tab.page.emulate_media(color_scheme="light")
        monkeypatch.setenv("DSF_PICTURES", PICTURES)
        tab.picture("backtests")
        browser_page.locator(f"a[href='{TAB}?run={first.id}']").click()
        expect(browser_page.locator("#chosen")).to_contain_text("97 moments from")
        expect(browser_page.locator("#chosen path.line")).to_have_count(2)
        assert tab.violations(*THEMES) == []
        assert tab.nodes < 5000
        for width in (1280, 320):
            browser_page.set_viewport_size({"width": width, "height": 800})
            assert browser_page.evaluate("document.documentElement.scrollWidth") <= width
        assert (tab.foreign_requests, tab.wrong) == ([], [])
