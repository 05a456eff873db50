"""`dsf status` reports the cause first."""

from __future__ import annotations

from datetime import UTC, datetime

from rich.console import Console

from dsf.cli.status import _render
from dsf.cli.statusreport import StatusReport
from dsf.fleet.objectproblems import UnmetCondition

AT = datetime(2026, 1, 1, tzinfo=UTC)


def render_report(report: StatusReport, scorer_name: str | None = None) -> str:
    console = Console(width=200)
    with console.capture() as capture:
        console.print(_render(report, scorer_name))
    return capture.get()


def test_scorers_that_cannot_run_yet_are_named() -> None:
    conditions = [
        UnmetCondition(scorer=name, type=kind, status="False", reason="ConfigInvalid", message="m")
        for name in ("cpu", "mem")
        for kind in ("Healthy", "ConfigSynced")
    ]
    text = render_report(StatusReport(at=AT, ok=False, scorers=[], conditions=conditions))
    assert "None of 2 DynamicScorers can run yet: cpu, mem" in text
    assert "No scorer is registered" not in text
    assert "No scorer is registered" in render_report(StatusReport(at=AT, ok=False, scorers=[]))
