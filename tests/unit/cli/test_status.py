"""`dsf status` names the cause first."""

from __future__ import annotations

from datetime import UTC, datetime

from rich.console import Console

from dsf.cli.status import _render
from dsf.cli.statusreport import StatusReport
from dsf.fleet.outfolder import UnmetCondition
from dsf.fleet.overviews import ScorerOverview, Spread, StateCounts
from dsf.fleet.verdict import Verdict
from dsf.fleet.views import ScoreView

AT = datetime(2026, 1, 1, tzinfo=UTC)


def shown(report: StatusReport, named: str | None = None) -> str:
    console = Console(width=200)
    with console.capture() as capture:
        console.print(_render(report, named))
    return capture.get()


def test_scorers_that_cannot_run_yet_are_named() -> None:
    conditions = [
        UnmetCondition(scorer=name, type=kind, status="False", reason="ConfigInvalid", message="m")
        for name in ("cpu", "mem")
        for kind in ("Healthy", "ConfigSynced")
    ]
    text = shown(StatusReport(at=AT, ok=False, scorers=[], conditions=conditions))
    assert "None of 2 DynamicScorers can run yet: cpu, mem" in text
    assert "No scorer is registered" not in text
    assert "No scorer is registered" in shown(StatusReport(at=AT, ok=False, scorers=[]))


def test_clusters_of_an_inactive_scorer_are_not_called_paused() -> None:
    scorer = ScorerOverview(
        name="cpu",
        score_name="cpu",
        interval_seconds=30,
        effective_interval_seconds=30,
        validity_seconds=300,
        health_status="Inactive",
        problem="Timeout: no complete answer in time",
        pairs=1,
        states=StateCounts(paused=1),
        ages=Spread(),
    )
    score = ScoreView.model_construct(
        scorer="cpu",
        cluster="c1",
        state=Verdict.PAUSED,
        items=[],
        age_seconds=None,
        failing=0,
        failure=None,
        remark=None,
        skips=None,
    )
    report = StatusReport.model_construct(
        at=AT, ok=False, scorers=[scorer], scores=[score], scores_total=1, conditions=[], problems=[]
    )
    text = shown(report, "cpu")
    assert "paused" not in text
    [row] = [line for line in text.splitlines() if "c1" in line]
    assert "unhealthy" in row
    assert "Timeout" in row
