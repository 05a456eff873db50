"""Inputs of a composite on its page, in the JSON API and in `dsf explain`: their values, or why they are missing."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml
from playwright.sync_api import Browser, expect

from dsf import keys
from dsf.api.expressions import ScoreInput
from dsf.api.summary import ScorerSummary, dump_summaries
from dsf.store.notices import ClusterNotice, ConditionNotice, Notices, ScorerNotice
from dsf.store.registry import ScorerRecord
from tests.integration.cli.conftest import Dsf, dsf, loaded
from tests.integration.exporter.fleet import Fleet
from tests.support.browser import THEMES, TIMEOUT, Tab
from tests.support.wait import wait_for
from tests.support.webprocess import WebProcess

__all__ = ["dsf"]

HUB = "open-cluster-management"
PAIR = "/clusters/worker01/scorers/mix"
#: Input -> start and part of its error message.
PROBLEMS = {
    "valid": ("", ""),
    "several": ("", ""),
    "expired": (
        "its last score is 400 s old and was valid for 300 s",
        "; its cycles fail, fetch bad_query: parse error",
    ),
    "never": ("it had no score on this cluster yet", ""),
    "failing": ("it had no score on this cluster yet", "; its cycles fail, fetch bad_query: no data"),
    "inactive": ("it had no score on this cluster yet", "; HealthCheckFailed: connection refused"),
    "masked": ("it had no score on this cluster yet", "; masked by the DynamicScoringConfig"),
    "refused": ("DynamicScorer 'refused' does not run: ExpressionInvalid: column 7", ""),
    "theirs": ("there is no DynamicScorer 'theirs'", "; the one in namespace 'team-a' does not count"),
    "gone": (f"there is no DynamicScorer 'gone' in namespace '{HUB}'", ""),
    "empty": ("its last score has no item", ""),
}


@pytest.fixture
def fleet(redis_client: redis.Redis) -> Fleet:
    """A composite with an input in each state."""
    fleet = Fleet(redis_client)
    inputs = tuple(
        ScoreInput(scorer=name, name=name, default=-100.0 if name in ("never", "gone") else None) for name in PROBLEMS
    )
    record = ScorerRecord(name="mix", namespace=HUB, score_name="mix", interval=30, validity=300, inputs=inputs)
    fleet.registry.put_scorer(record)
    fleet.entry("worker01", "mix")
    for name in PROBLEMS.keys() - {"refused", "gone"}:
        changes: dict[str, Any] = {"name": name, "score_name": name, "inputs": ()}
        if name == "theirs":
            changes["namespace"] = "team-a"
        if name == "inactive":
            changes["problem"] = "HealthCheckFailed: connection refused"
        fleet.registry.put_scorer(record.model_copy(update=changes))
    fleet.score("worker01", "valid", results=[({}, 41.5)])
    fleet.score("worker01", "several", results=[({"node": "a"}, 10.0), ({"node": "b"}, 20.0)])
    fleet.score("worker01", "theirs", results=[({}, 1.0)])
    fleet.score("worker01", "empty", results=[])
    fleet.score("worker01", "expired", age=400, valid_for=-100)
    fleet.failure("worker01", "expired", message="parse error")
    fleet.failure("worker01", "failing", message="no data")
    notices = Notices(redis_client)
    condition = ConditionNotice(
        type="Healthy", status="False", reason="ExpressionInvalid", message="column 7", since=1.0
    )
    notices.write_scorer(ScorerNotice(name="refused", namespace=HUB, conditions=(condition,)))
    notices.write_cluster(ClusterNotice(name="worker01", absent={"masked": "masked by the DynamicScoringConfig"}))
    return fleet


def check_problem(name: str, problem: str) -> None:
    begin, part = PROBLEMS[name]
    # The clock continues between the setup and the response.
    problem = re.sub(r"\b40[0-9] s old", "400 s old", problem)
    assert problem.startswith(begin), name
    assert part in problem, name
    assert bool(problem) == bool(begin), name


def test_json_api_lists_inputs_with_value_or_problem(page: WebProcess, fleet: Fleet) -> None:
    assert fleet.redis.hexists(keys.ENTRIES, "worker01/mix")
    inputs = page.get("/api/v1/pairs/worker01/mix").json()["inputs"]
    assert [score["name"] for score in inputs] == list(PROBLEMS)
    for score in inputs:
        check_problem(score["name"], score["problem"])
    by_name = {score["name"]: (score["results"], score["value"], score["default"]) for score in inputs}
    assert by_name["valid"] == (1, 41.5, None)
    assert by_name["several"] == (2, 15.0, None)
    assert by_name["never"] == (0, None, -100.0)


def test_page_shows_beside_each_input_why_it_is_missing(page: WebProcess, fleet: Fleet) -> None:
    assert fleet.redis.hexists(keys.ENTRIES, "worker01/mix")
    html = wait_for(
        lambda: (text := page.get(PAIR).text).count('data-name="Variable"') == 11 and text, 20, "the inputs"
    )
    rows = dict(
        re.findall(r'data-name="Variable"><code>(\w+)</code></th>.*?data-name="Value" class="why">(.*?)</td>', html)
    )
    assert rows.keys() == PROBLEMS.keys()
    for name, cell in rows.items():
        problem = unescape(re.search(r'<span class="text">(.*?)</span>', cell)[1]) if "missing" in cell else ""  # type: ignore[index]
        check_problem(name, problem)
    assert "<b>41.5</b>" in rows["valid"]
    assert "mean of 2 items" in rows["several"]
    # A default makes a missing score harmless.
    assert "s-never" in rows["gone"]
    assert "s-failing" in rows["expired"]
    linked_scorers = re.findall(r'data-name="Score of"><a href="/clusters/worker01/scorers/(\w+)"', html)
    assert linked_scorers == [name for name in PROBLEMS if name not in ("refused", "theirs", "gone")]


def test_page_of_a_scorer_without_inputs_has_no_table_of_them(page: WebProcess, fleet: Fleet) -> None:
    fleet.entry("worker01", "valid")
    html = wait_for(lambda: page.get(PAIR.replace("mix", "valid")).text, 20, "the page")
    assert "Table of inputs" not in html


def test_explain_shows_beside_each_input_why_it_is_missing(dsf: Dsf, fleet: Fleet, tmp_path: Path) -> None:
    summary = ScorerSummary(
        name="mix",
        score_name="mix",
        source_type="Scores",
        scores=fleet.registry.read_scorer("mix").inputs,
        expression="valid + several",
    )
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump({"kind": "ConfigMap", "data": {"summaries": dump_summaries([summary])}}))
    command = ("explain", "mix", "--cluster", "worker01", "--config", str(file))
    report = loaded(dsf(*command, "-o", "json"))
    assert [score["name"] for score in report["inputs"]] == list(PROBLEMS)
    for score in report["inputs"]:
        check_problem(score["name"], score["problem"])
    text = dsf(*command).stdout
    assert "input    several, the score of several: mean of 2 results, 15" in text
    assert "input    gone, the score of gone: missing: there is no DynamicScorer 'gone'" in text


@pytest.mark.parametrize("width", [1280, 390])
def test_table_of_inputs_fits_and_has_no_axe_violations(
    page: WebProcess, browser: Browser, fleet: Fleet, width: int
) -> None:
    assert fleet.redis.hexists(keys.ENTRIES, "worker01/mix")
    with Tab(browser, page.url, viewport={"width": width, "height": 900}) as tab:
        browser_page = tab.open(PAIR)
        expect(browser_page.locator("#inputs tbody tr")).to_have_count(len(PROBLEMS), timeout=TIMEOUT)
        assert tab.violations(*THEMES) == []
        assert browser_page.evaluate("document.documentElement.scrollWidth") <= width
        tab.picture(f"inputs-{width}")
