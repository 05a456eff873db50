"""The demo as a person runs it: `dsf demo`, and commands in another terminal."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests
import yaml
from playwright.sync_api import Browser, expect

from demo.tests.integration.demo.reader import TUTORIAL, Reader
from dsf.demo.extras import EXTRAS
from dsf.demo.services import SCRAPE_INTERVAL
from dsf.settings import ENV_PREFIX
from tests.support import forked
from tests.support.browser import TIMEOUT, Tab, browser
from tests.support.child import Child, run_program
from tests.support.document import parse_steps
from tests.support.programs import find
from tests.support.uv import ROOT, build_wheel, make_venv
from tests.support.wait import wait_for

# The tests run one at a time and in this order: each takes the well-known ports if they are free, and most share one
# demo.
DSF = (sys.executable, "-m", "dsf.cli")
__all__ = ["browser"]
#: Packages of an installation without a checkout around it.
PACKAGES = (ROOT, ROOT / "demo", ROOT / "packages" / "dsf-backtest", ROOT / "packages" / "dsf-scorer")

expect.set_options(timeout=TIMEOUT)
PAIRS = [
    (cluster, scorer)
    for cluster in ("worker01", "worker02")
    for scorer in (
        "example-performance-scorer",
        "example-powerconsumption-scorer",
        "free-memory",
        "memory-and-power",
        "sample-scorer",
    )
]

#: Tasks of one cycle.
STAGES = ("dsf.cycle", "dsf.fetch", "dsf.score", "dsf.publish")
#: `dsf` with a demo whose time is over as soon as, and not before, the hub reports why the score of LACKING is
#: missing.
IMPATIENT = """
from dsf.cli.main import run
from dsf.demo import command
from dsf.demo.report import DemoReport
missing = DemoReport.explain_missing_scores
def looked(report, since):
    found = missing(report, since)
    if "Healthy" in found.get("worker01/nobody", ""):
        command.ONCE_TIMEOUT = 0.0
    return found or {"all": "not yet"}
DemoReport.explain_missing_scores = looked
command.ONCE_TIMEOUT = 200.0
run()
"""
#: `dsf` of an installation with a demo that has all scores when the file of MAY_END is there. A busy machine may need
#: more than the minute that a person's has.
PATIENT = """
import os
from dsf.cli.main import run
from dsf.demo import command
from dsf.demo.report import DemoReport
missing = DemoReport.explain_missing_scores
def looked(report, since):
    return missing(report, since) or ({} if os.path.exists(os.environ["MAY_END"]) else {"all": "not yet"})
DemoReport.explain_missing_scores = looked
command.ONCE_TIMEOUT = 200.0
run()
"""
#: A scorer without a server, and an invalid one.
LACKING = """
{apiVersion: dynamic-scoring.open-cluster-management.io/v1alpha1, kind: DynamicScorer,
 metadata: {name: nobody, namespace: open-cluster-management},
 spec: {description: d, configURL: 'http://127.0.0.1:1/config', configSyncMode: Full}}
---
{apiVersion: dynamic-scoring.open-cluster-management.io/v1alpha1, kind: DynamicScorer,
 metadata: {name: typo, namespace: open-cluster-management},
 spec: {description: d, configUrl: 'http://127.0.0.1:1/config', configSyncMode: Full}}
"""
#: A query that Prometheus does not take.
WRONG = """configSyncMode: None
  source:
    host: http://kube-prometheus-kube-prome-prometheus.monitoring.svc:9090
    path: /api/v1/query_range
    params: {query: "rate(up[1m]", range: 60, step: 15}
  scoring: {params: {name: sample_my_score, interval: 5}}"""


def make_environment(folder: Path) -> dict[str, str]:
    """This process's environment with a state folder of its own and without settings."""
    for name in ("prometheus", "prometheus-node-exporter"):
        # Downloaded before the clock of a test runs.
        find(name)
    variables = {name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX)}
    # Deleted clusters are removed at once.
    demo_variables = {"XDG_STATE_HOME": str(folder / "state"), "TMPDIR": str(folder), "PYTHONUNBUFFERED": "1"}
    return variables | demo_variables | {"DSF_DEPARTURE_GRACE": "0"}


def check_nothing_is_left(environment: dict[str, str], variable: str = "XDG_STATE_HOME") -> None:
    """Wait until every process of the demo has ended; processes of other demos have another folder in this variable."""
    wait_for(lambda: not _find_processes(variable, environment[variable]), 10, "all processes to end")


def _find_processes(variable: str, value: str) -> list[str]:
    command_lines = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(variable) == value and process.pid != os.getpid():
                command_lines.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return command_lines


class Demo:
    """A demo that runs on a kept folder, with a user's actions beside it."""

    def __init__(self, folder: Path, environment: dict[str, str], command: tuple[str, ...] = (*DSF, "demo")) -> None:
        self.folder = folder
        self.environment = environment
        log = folder.parent / ("once.log" if "--once" in command else "demo.log")
        #: File of its standard error: separate with --once, as scripts read it.
        self.errors = folder.parent / "once.errors" if "--once" in command else log
        self.process = Child((*command, "--keep", str(folder)), log, environment, inherit=False, errors=self.errors)
        self._context: dict[str, Any] = {}

    def dsf(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return forked.dsf(arguments, self.environment | variables, timeout=300)

    def data(self, *arguments: str) -> Any:
        process = self.dsf(*arguments, "-o", "json")
        return json.loads(process.stdout) if process.stdout.startswith("{") else {}

    def _fetch_scores(self) -> set[tuple[str, str]]:
        try:
            url = self.context()["web_url"]
            scores = requests.get(f"{url}/api/v1/scores", timeout=300).json().get("scores", [])
        except (OSError, ValueError, KeyError, requests.RequestException):
            return set()
        return {(score["cluster"], score["scorer"]) for score in scores if score["fresh"] and score["items"]}

    def wait_fresh(self, pairs: list[tuple[str, str]]) -> None:
        wait_for(lambda: self._fetch_scores() == set(pairs), 60, f"fresh scores; the demo said {self.process.tail()}")

    def edit(self, name: str, old: str, new: str) -> None:
        file = self.folder / name
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new))

    def context(self) -> dict[str, Any]:
        """Its state as other terminals read it, and addresses of its processes; cached until the demo ends."""
        if "web_url" not in self._context:
            self._context = self._read_context()
        return self._context

    def _read_context(self) -> dict[str, Any]:
        [file] = (Path(self.environment["XDG_STATE_HOME"]) / "dsf" / "contexts").glob("*.json")
        state: dict[str, Any] = json.loads(file.read_text())
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                values = process.environ()
                role = values.get("DSF_ROLE")
                if role == "hub" and values.get("DSF_MANIFESTS") == str(self.folder):
                    state["web_url"] = f"http://127.0.0.1:{values['DSF_LISTEN_PORT']}"
                    state["flower_url"] = values["DSF_WEB_FLOWER_URL"]
        return state

    def items(self, cluster: str, scorer: str = "sample-scorer") -> set[str]:
        """Return the names of the items of a score."""
        scores = self.data("scores", "--cluster", cluster, "--scorer", scorer).get("scores", [])
        return {item["name"] for score in scores for item in score["items"]}

    def scheduled(self, scorer: str, folder: Path | None = None) -> Any:
        """Entries of the schedule of this demo, or of the one on another folder, if it is there."""
        return self.data("schedule", "list", scorer, "--demo", str(folder or self.folder)).get("entries", [])

    def stages(self, run: str = "") -> set[str]:
        """Return the names of the tasks, of this run if one is given, that Flower knows so far."""
        tasks = requests.get(f"{self.context()['flower_url']}/api/tasks", timeout=300).json().values()
        return {task["name"] for task in tasks if run in json.dumps(task)}


@pytest.fixture(scope="module")
def lacking(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """A demo with --once that ended because a score was missing, after a user had set an interval."""
    folder = tmp_path_factory.mktemp("demo")
    environment = make_environment(folder)
    first = Demo(folder / "demo", environment, (sys.executable, "-c", IMPATIENT, "demo", "--once"))
    try:
        wait_for(lambda: first.scheduled("sample-scorer"), 60, "the schedule", interval=0.5)
        assert first.dsf("schedule", "set", "sample-scorer", "--interval", "3").returncode == 0
        (first.folder / "lacking.yaml").write_text(LACKING)
        first.process.wait(270)
    finally:
        first.process.kill()
    check_nothing_is_left(environment)
    (first.folder / "lacking.yaml").unlink()
    return first


@pytest.fixture(scope="module")
def demo(lacking: Demo) -> Iterator[Demo]:
    """All tests that read, or that restore their changes, share this demo; the last two edit and end it.

    The demo runs on the folder of the ended one.
    """
    running = Demo(lacking.folder, lacking.environment)
    yield running
    running.process.signal(signal.SIGTERM)
    running.process.wait(120)
    check_nothing_is_left(running.environment)


def test_once_reports_why_a_score_is_missing(lacking: Demo) -> None:
    error_output = lacking.errors.read_text()
    assert lacking.process.wait() == 1, error_output
    assert "worker01/nobody is not in the schedule; Healthy" in error_output
    assert "configUrl" in error_output
    assert "the log of hub ends with:" in error_output


def test_interval_override_survives_a_restart(demo: Demo) -> None:
    try:
        demo.wait_fresh(PAIRS)
        entries = demo.data("schedule", "list", "sample-scorer")["entries"]
        assert {entry["intervalSeconds"] for entry in entries} == {3}
        assert {entry["entryIntervalSeconds"] for entry in entries} == {10}
    finally:
        reset = demo.dsf("schedule", "reset", "sample-scorer")
    assert reset.returncode == 0


def test_demo_serves_all_documented_parts(demo: Demo) -> None:
    demo.wait_fresh(PAIRS)
    context = demo.context()

    # Real metrics of a real node, one Prometheus per cluster under one name.
    for cluster in ("worker01", "worker02"):
        # The first score may be of the other queries alone.
        wait_for(lambda: f"{cluster}-node;memory" in demo.items(cluster), 60, cluster, interval=0.5)  # noqa: B023
    explained = demo.data("explain", "sample-scorer", "--cluster", "worker02")
    assert explained["outcome"] == "ok"
    assert len(explained["queries"]) == 3

    # The three stages by name, with scorer and run id. Flower learns of them from their own events.
    wait_for(lambda: set(STAGES) <= demo.stages(), 60, "all stages in Flower", interval=0.5)

    def with_scorer() -> bool:
        tasks = requests.get(f"{context['flower_url']}/api/tasks", timeout=300).json().values()
        return any((task["args"] or "").startswith("('sample-scorer', '") for task in tasks)

    wait_for(with_scorer, 60, "a task of sample-scorer in Flower", interval=0.5)

    # Both kinds of /metrics.
    agent = _agents(demo.environment)["worker01"].environ()["DSF_LISTEN_PORT"]
    for url in (f"{context['web_url']}/metrics", f"http://127.0.0.1:{agent}/metrics"):

        def exposed(url: str = url) -> str:
            text = requests.get(url, timeout=300).text
            assert "dynamic_score{" in text
            return text

        text = wait_for(exposed, 30, url)
        checked = run_program([find("promtool"), "check", "metrics"], input=text)
        assert checked.returncode == 0, checked.stdout + checked.stderr

    def is_scored_again() -> bool:
        rescored = demo.dsf("rescore", "sample-scorer", "--cluster", "worker01", "--wait")
        assert rescored.returncode == 0, rescored.stdout + rescored.stderr
        return True

    # On a slow machine the cycle of the schedule may run just then.
    wait_for(is_scored_again, 30, "a score by hand", interval=1)


def test_page_reports_a_failure_and_rescores_after_its_correction(demo: Demo, browser: Browser) -> None:
    demo.wait_fresh(PAIRS)
    manifest_file = demo.folder / "sample-scorer.yaml"
    before = manifest_file.read_text()
    page = demo.context()["web_url"]
    # The first address in the log must be the page's.
    assert re.findall(r"https?://\S+", (demo.folder.parent / "demo.log").read_text())[0] == page
    with Tab(browser, page) as tab:
        browser_page = tab.open("/")
        expect(browser_page.locator("h1")).to_contain_text("All 10 scores are fresh")
        browser_page.evaluate("window.same = true")
        # The hub, OCM's way to the agents, real Prometheus servers, results: all of it is in between.
        manifest_file.write_text(before.replace("configSyncMode: Full", WRONG))
        try:
            expect(browser_page.locator("h1")).to_contain_text("sample-scorer fails on 2 clusters: bad_query")
            # The page shows Prometheus' own message.
            expect(browser_page.locator("#problems")).to_contain_text("unclosed left parenthesis")
            assert browser_page.evaluate("window.same")
        finally:
            manifest_file.write_text(before)
        # Until then a run still has the wrong query, and ends with its first stage.
        expect(browser_page.locator("h1")).to_contain_text("All 10 scores are fresh")
        browser_page = tab.open("/clusters/worker01/scorers/sample-scorer")
        browser_page.get_by_role("link", name="Score now").click()
        browser_page.get_by_role("button", name="Score now on 1 cluster").click()
        expect(browser_page.locator("h1")).to_contain_text("1 of 1 run has ended")
        run = browser_page.locator("#page tbody code").first.inner_text()
        browser_page.get_by_role("link", name="worker01").click()
        expect(browser_page.locator("tr.asked")).to_contain_text(run)
        assert tab.wrong == []
        # Flower finds the tasks of this run once it has received their events; its page must be reloaded for that.
        wait_for(lambda: set(STAGES) <= demo.stages(run), 60, f"the stages of {run} in Flower", interval=0.5)
        browser_page.locator("tr.asked").get_by_role("link", name=run).click()
        rows = browser_page.locator("#tasks-table tbody tr")
        for stage in STAGES:
            expect(rows.filter(has_text=stage)).to_have_count(1)
        expect(rows.filter(has_text=stage)).to_contain_text(run)
    demo.wait_fresh(PAIRS)


def test_prometheus_scrapes_less_often_after_the_first_scores(demo: Demo) -> None:
    demo.wait_fresh(PAIRS)
    urls = re.findall(r"Prometheus of worker0\d +(http://\S+)", (demo.folder.parent / "demo.log").read_text())
    assert len(urls) == 2

    def is_slow(url: str) -> bool:
        config = yaml.safe_load(requests.get(f"{url}/api/v1/status/config", timeout=300).json()["data"]["yaml"])
        return bool(config["global"]["scrape_interval"] == SCRAPE_INTERVAL)

    for url in urls:
        wait_for(lambda url=url: is_slow(url), 30, "Prometheus to read its new configuration", interval=0.5)


def test_explain_works_with_the_printed_environment(demo: Demo) -> None:
    demo.wait_fresh(PAIRS)
    explained = demo.dsf("explain", "sample-scorer", "-c", "worker01", DSF_REDIS_URL=demo.context()["redis_url"])
    assert explained.returncode == 0, explained.stderr


def test_compare_shows_a_scorer_and_its_worse_second_version(demo: Demo, tmp_path: Path) -> None:
    demo.wait_fresh(PAIRS)
    address_match = re.search(r"http://(127\.0\.0\.1:\d+)/config", (demo.folder / "sample-scorer.yaml").read_text())
    assert address_match is not None
    files = [tmp_path / f"{name}-scorer.yaml" for name in ("steady", "hasty")]
    for file in files:
        text = (ROOT / "demo" / "backtest" / file.name).read_text()
        file.write_text(text.replace("127.0.0.1:8000", address_match[1]))
    placement = ROOT / "demo" / "backtest" / "placement.yaml"
    options = ("--since", "20s", "--every", "5s", "--rate", "50", "--placement", str(placement))
    process = demo.dsf("compare", *map(str, files), *options)
    assert process.returncode == 0, process.stdout + process.stderr
    assert re.search(r"Placement apps/web: \d of \d decisions differ; flaps \d -> \d", process.stdout), process.stdout
    # Each cluster queried its own Prometheus.
    assert "on worker01, worker02: " in process.stdout


def test_second_demo_from_wheels_runs_beside_the_first(demo: Demo, tmp_path: Path) -> None:
    """Each command uses the selected demo, and names it; the end of one demo does not affect the other."""
    wheels = [build_wheel(package, tmp_path / f"dist{number}", "--wheel") for number, package in enumerate(PACKAGES)]
    programs = make_venv(tmp_path / "environment", *wheels)
    demo.wait_fresh(PAIRS)
    second_environment = demo.environment | {"TMPDIR": str(tmp_path), "MAY_END": str(tmp_path / "may-end")}
    output, errors = tmp_path / "output", tmp_path / "errors"
    command = (programs / "python", "-c", PATIENT, "demo", "--once", "--with", ",".join(EXTRAS))
    with output.open("wb") as out, errors.open("wb") as err:
        process = subprocess.Popen(
            command, env=second_environment, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=out, stderr=err
        )
    try:
        (manifests,) = wait_for(lambda: list(tmp_path.glob("dsf-demo-*/manifests")), 60, "the other's folder")
        wait_for(lambda: demo.scheduled("sample-scorer", manifests), 60, "the other demo", interval=0.5)
        # The current folder belongs to neither demo.
        with contextlib.chdir(programs):
            ambiguous = demo.dsf("schedule", "pause", "sample-scorer")
        assert (ambiguous.returncode, ambiguous.stdout) == (2, "")
        assert f"demo ({demo.folder})" in ambiguous.stderr
        assert f"({manifests})" in ambiguous.stderr

        paused = demo.dsf("schedule", "pause", "sample-scorer", "--demo", str(manifests))
        assert paused.returncode == 0
        assert paused.stderr == f"dsf: using the demo {manifests.parent.name} ({manifests})\n"
        for folder, state in ((demo.folder, False), (manifests, True)):
            assert {entry["paused"] for entry in demo.scheduled("sample-scorer", folder)} == {state}
        assert demo.dsf("schedule", "resume", "sample-scorer", "--demo", str(manifests)).returncode == 0
        (tmp_path / "may-end").touch()
        code = process.wait(270)
    finally:
        process.terminate()
        process.wait(120)
    error_output = errors.read_text()
    assert code == 0, output.read_text() + error_output
    assert "every cluster has every score" in error_output
    assert "Traceback" not in error_output
    rows = [line.split() for line in output.read_text().splitlines()]
    assert rows[0][:5] == ["CLUSTER", "SCORER", "ITEMS", "LOW", "HIGH"]
    extra = [
        (cluster, extra_service.sample) for cluster in ("worker01", "worker02") for extra_service in EXTRAS.values()
    ]
    assert [(row[0], row[1]) for row in rows[1:]] == sorted([*PAIRS, *extra])
    assert all(int(row[2]) >= 1 and -100 <= int(row[3]) <= int(row[4]) <= 100 for row in rows[1:])
    # A demo without --keep leaves neither folder nor context; the remaining context belongs to the first demo.
    assert not list(tmp_path.glob("dsf-demo-*"))
    contexts = Path(demo.environment["XDG_STATE_HOME"]) / "dsf" / "contexts"
    assert len(list(contexts.glob("*.json"))) == 1
    check_nothing_is_left(second_environment, "TMPDIR")
    assert demo.dsf("scores").stderr == f"dsf: using the demo demo ({demo.folder})\n"


def test_tutorial_leads_from_an_empty_folder_to_a_score(
    demo: Demo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tutorial of docs/tutorial.md, followed beside this demo."""
    demo.wait_fresh(PAIRS)
    with Reader(tmp_path, demo.environment, demo.folder) as reader:
        # Where its servers are started.
        monkeypatch.chdir(reader.folder)
        try:
            for step in parse_steps(TUTORIAL):
                reader.follow(step)
            scores = reader.scores()
        finally:
            (demo.folder / "cpu-headroom.yaml").unlink(missing_ok=True)
    assert {cluster: [item["name"] for item in items] for cluster, items in scores.items()} == {
        cluster: [f"{cluster}-node"] for cluster in ("worker01", "worker02")
    }
    assert all(0 <= int(item["value"]) <= 100 for items in scores.values() for item in items)
    scored = [output for command, output in reader.outputs.items() if "/scoring -d" in command]
    assert [json.loads(output)["results"][0]["score"] for output in scored] == [71.0, 50.0]
    assert all(output in TUTORIAL.read_text() for output in scored)
    demo.wait_fresh(PAIRS)


def test_running_demo_follows_edited_manifests(demo: Demo) -> None:
    """The last test but one of the shared demo: afterwards a cluster and a score are missing."""
    demo.wait_fresh(PAIRS)
    before = len(demo.process.log.read_text())

    demo.edit(
        "dynamic-scoring-config.yaml",
        "  masks: []\n",
        "  masks: [{clusterName: worker02, scoreName: example_performance_score}]\n",
    )
    masked = [pair for pair in PAIRS if pair != ("worker02", "example-performance-scorer")]
    demo.wait_fresh(masked)

    demo.edit("static-scorer.yaml", "configSyncMode: Full", "configSyncMode: Fool")
    wait_for(lambda: yaml.safe_load((demo.folder / "_out" / "problems.yaml").read_text()), 10)
    demo.edit("static-scorer.yaml", "configSyncMode: Fool", "configSyncMode: Full")

    agents = wait_for(
        lambda: current_agents if set(current_agents := _agents(demo.environment)) == {"worker01", "worker02"} else {},
        20,
    )
    # An agent must survive all of these edits.
    assert not re.findall(r".*agent worker.* ended.*|.* is gone.*", demo.process.log.read_text()[before:])
    agents["worker01"].kill()
    wait_for(lambda: _agents(demo.environment).get("worker01", agents["worker01"]).pid != agents["worker01"].pid, 20)

    clusters = demo.folder / "clusters.yaml"
    clusters.write_text(clusters.read_text().partition("---")[0])
    wait_for(lambda: set(_agents(demo.environment)) == {"worker01"}, 20)
    demo.wait_fresh([pair for pair in PAIRS if pair[0] == "worker01"])
    assert "cluster worker02 is gone; ending its agent" in demo.process.tail()


def test_sigterm_ends_the_demo_like_ctrl_c(demo: Demo) -> None:
    """The last test of the shared demo, which ends it. The tests of `dsf up` cover Ctrl-C itself."""
    # Run alone, this test starts the demo; after the others, one of its clusters is missing.
    wait_for(demo._fetch_scores, 60, "the demo to run")
    demo.process.signal(signal.SIGTERM)
    assert demo.process.wait(120) == 0, demo.process.tail()
    assert "all processes have ended; the manifests are in" in demo.process.tail()
    check_nothing_is_left(demo.environment)


def _agents(environment: dict[str, str]) -> dict[str, psutil.Process]:
    processes = {}
    for process in psutil.process_iter():
        try:
            values = process.environ()
        except psutil.Error:
            continue
        if values.get("XDG_STATE_HOME") == environment["XDG_STATE_HOME"] and values.get("DSF_ROLE") == "agent":
            processes[values["DSF_CLUSTER"]] = process
    return processes
