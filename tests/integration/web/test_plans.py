"""The page of plans: proposed and current plans with reasons; foreign names are only text."""

from __future__ import annotations

import re
import time
from typing import Any

import redis
from playwright.sync_api import Browser, expect

from dsf.optimizer.plans import PlanComparison, remove_comparison, store_comparison
from tests.integration.web.test_pages import fetch
from tests.support.browser import THEMES, TIMEOUT, Tab
from tests.support.webprocess import WebProcess

expect.set_options(timeout=TIMEOUT)

XSS = "<script>alert(1)</script>"


def block(workload: str, share: float, score: float) -> dict[str, Any]:
    return {"workload": workload, "replicas": 1, "score": score, "share": share}


def column(cluster: str, *blocks: dict[str, Any]) -> dict[str, Any]:
    policy = {"policy": f"p-{cluster}", "device": "half"} if blocks else {}
    return {"cluster": cluster, "blocks": list(blocks), **policy}


def comparison(namespace: str = "apps", text: str = XSS, **overrides: Any) -> PlanComparison:
    clusters = [
        {
            "cluster": "worker01",
            "now": column("worker01", block("a", 0.5, 10), block("b", 0.5, 60)),
            "proposed": column("worker01", block("b", 0.5, 60)),
            "changes": True,
        },
        {
            "cluster": "worker02",
            "now": column("worker02"),
            "proposed": column("worker02", block("a", 1.0, 90)),
            "changes": True,
        },
    ]
    current_placement = {"cluster": "worker01", "device": "half", "replicas": 1, "score": 10.0}
    better = {**current_placement, "cluster": "worker02", "score": 90.0}
    moves = [
        {
            "workload": "a",
            "change": "moves",
            "now": [current_placement],
            "proposed": [better],
            "why": f"scores 80 less {text}",
        },
        {
            "workload": "b",
            "change": "stays",
            "now": [current_placement],
            "proposed": [current_placement],
            "next_best": "worker02 with all (7)",
        },
    ]
    report = {"namespace": namespace, "plan_id": "0123", "applied": False, "gap": 0.0, "warnings": [text]}
    plan_fields = {"score_now": 70.0, "score_proposed": 150.0, "clusters": clusters, "moves": moves}
    return PlanComparison.model_validate({"at": time.time(), "status": "Optimal", **report, **plan_fields, **overrides})


def test_proposal_is_shown_beside_the_plan_in_force(page: WebProcess, redis_client: redis.Redis) -> None:
    # The navigation leads to no page that is empty without an API server.
    html = fetch(page, "/plans", "<h1>Plans</h1>", "There are no plans yet")
    assert not re.search('href="/(plans|placements)"', html)
    assert "this page has no API server. Run it in a pod" in fetch(page, "/placements", "<h1>Placements</h1>")
    store_comparison(redis_client, comparison())
    html = fetch(page, "/plans", "Plan of apps")
    assert re.findall('href="(/plans|/placements)"', html) == ["/plans"]
    assert "the scores would sum to 150, now to 70" in html
    assert html.index("<b>moves</b>") < html.index(">stays<")
    assert "scores 80 less &lt;script&gt;" in html
    assert XSS not in html
    assert html.count('class="plan-bar"') == 4
    assert 'aria-label="proposed: a takes 100 percent"' in html
    assert 'href="/clusters/worker02"' in html
    assert "style=" not in html
    store_comparison(redis_client, comparison("shop", applied=True))
    html = fetch(page, "/plans?namespace=shop", "This plan is in force")
    assert 'href="/plans?namespace=apps"' in html
    assert "There is no plan for namespace other" in fetch(page, "/plans?namespace=other", "other")
    remove_comparison(redis_client, "apps")
    remove_comparison(redis_client, "shop")
    fetch(page, "/plans", "There are no plans yet")


def test_axe_finds_nothing_on_plans(page: WebProcess, browser: Browser, redis_client: redis.Redis) -> None:
    store_comparison(redis_client, comparison(text="where it runs now", warnings=[]))
    with Tab(browser, page.url) as tab:
        expect(tab.open("/plans").locator("h1")).to_contain_text("Plan of apps")
        tab.picture("plan")
        assert tab.violations(*THEMES) == []
        assert tab.wrong == []
    remove_comparison(redis_client, "apps")


def test_large_plan_is_truncated(page: WebProcess, redis_client: redis.Redis) -> None:
    plan = comparison()
    many = plan.model_copy(update={"clusters": plan.clusters * 90, "moves": plan.moves * 90, "more_moves": 7})
    store_comparison(redis_client, many)
    html = fetch(page, "/plans", "Plan of apps")
    assert "87 more are not shown" in html
    assert "132 more clusters are not shown" in html
    assert html.count("<") < 10_000
