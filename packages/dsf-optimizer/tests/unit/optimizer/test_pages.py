"""The plan page stays below the number of elements that browsers render quickly."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest
import redis

from dsf.optimizer import pages
from dsf.optimizer.plans import ClusterPlan, PlanBlock, PlanColumn, PlanComparison, PlanMove, PlanPlace
from dsf.settings import Settings
from dsf.web.pagedata import PageDataReader
from dsf.web.pages import Sources
from dsf.web.rendering import render
from tests.unit.web.test_nodes import AROUND

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(("blocks", "pictured"), [(1, 48), (12, 16), (50, 15)])
def test_plan_page_stays_small_for_any_plan(blocks: int, pictured: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def column(cluster: str) -> PlanColumn:
        plan_blocks = [
            PlanBlock(workload=f"w{number}", replicas=2, score=number, share=1 / blocks) for number in range(blocks)
        ]
        return PlanColumn(cluster=cluster, policy="p", device="d", blocks=plan_blocks)

    assignments = [PlanPlace(cluster=f"c{number}", device="d", replicas=2, score=1.0) for number in range(200)]
    plan = PlanComparison(
        namespace="n0",
        at=NOW,
        plan_id="p",
        applied=False,
        status="Optimal",
        score_now=1.0,
        score_proposed=2.0,
        gap=0.5,
        clusters=[
            ClusterPlan(cluster=assignment.cluster, now=column("c"), proposed=column("c"), changes=True)
            for assignment in assignments
        ],
        moves=[
            PlanMove(workload=f"w{number}", change="moves", now=assignments, proposed=assignments, unplaced=1)
            for number in range(200)
        ],
        warnings=["w"] * 20,
    )

    plans = [plan, *(plan.model_copy(update={"namespace": f"n{number}"}) for number in range(1, 100))]
    monkeypatch.setattr(pages, "read_plans", lambda _: plans)
    [view] = pages.PAGES.views
    query = {"namespace": "n0"}
    context = view.build(Sources(PageDataReader(redis.Redis())), {}, query)
    html = render(view.template, "", {**context, "options": Settings(), "query": query})
    assert len(re.findall("<[a-zA-Z]", html)) + AROUND < 5000
    # Omitted parts are counted.
    assert html.count('class="plan-pair"') == pictured
    assert f"{200 - pictured} more clusters are not shown" in html
    assert "and 197 more" in html
    assert ("38 others, on average" in html) is (blocks == 50)
