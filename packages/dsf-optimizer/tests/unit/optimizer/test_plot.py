"""Pictures of plans."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dsf.errors import ToolError
from dsf.optimizer.labels import read_problem
from dsf.optimizer.model import Preference, SearchLimits
from dsf.optimizer.plan import Plan
from dsf.optimizer.plot import MAX_CLUSTERS, draw_plan
from dsf.optimizer.solve import solve
from tests.support.planproblems import make_problem

from . import upstream
from .test_labels import NOW


@pytest.fixture(scope="module")
def plan() -> Plan:
    scores = upstream.scores("score", upstream.POWER)
    return solve(read_problem(upstream.workloads(), upstream.policies(), scores, [Preference("score")], now=NOW))


def test_png(plan: Plan, tmp_path: Path) -> None:
    draw_plan(plan, tmp_path / "plan.png")
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


def test_svg_names_what_is_where_and_is_the_same_each_time(plan: Plan, tmp_path: Path) -> None:
    draw_plan(plan, tmp_path / "plan.svg")
    text = (tmp_path / "plan.svg").read_text()
    for word in ("cluster1", "2g.24gb", "policy-enable-mig-2g-cluster1", "gpu 2 of 3", "mwrs-app01", "score 80", "170"):
        assert word in text
    draw_plan(plan, str(tmp_path / "again.svg"))
    assert (tmp_path / "again.svg").read_text() == text


def test_many_clusters_and_unplaced_workloads(tmp_path: Path) -> None:
    plan = solve(make_problem(80, MAX_CLUSTERS + 5, 2, load=3), SearchLimits(time_limit=0.5))
    draw_plan(plan, tmp_path / "plan.svg")
    text = (tmp_path / "plan.svg").read_text()
    assert "5 more clusters are not drawn." in text
    assert "Unplaced: workload" in text
    assert " more</text>" in text


def test_empty_plan_is_plotted(tmp_path: Path) -> None:
    draw_plan(solve(make_problem(0, 1, 1)), tmp_path / "plan.svg")
    assert "0 placed, 0 unplaced" in (tmp_path / "plan.svg").read_text()


def test_errors(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ToolError, match=r"the name has to end in \.png or \.svg"):
        draw_plan(plan, tmp_path / "plan.gif")
    with pytest.raises(ToolError, match=r"cannot write .*nowhere/plan\.png: .*nowhere is no folder or file that"):
        draw_plan(plan, tmp_path / "nowhere" / "plan.png")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ToolError, match=r"pip install 'dynamic-scoring-framework\[plot\]'"):
        draw_plan(plan, tmp_path / "plan.png")
