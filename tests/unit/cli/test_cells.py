"""`dsf status` over several cells."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import cast

from dsf.cli.session import asks_api
from dsf.cli.statusreport import StatusReport, ask_reports
from dsf.client import Client
from dsf.clients import Clients, together
from dsf.fleet.outfolder import ConditionView
from dsf.fleet.views import ClusterCounts, ScorerList, ScorerView
from dsf.settings import Settings

NOW = datetime(2026, 11, 24, tzinfo=UTC)


class Cells:
    """Cells that have these reports."""

    def __init__(self, *reports: StatusReport) -> None:
        self._reports = reports

    def ask(self, question: Callable[[Client], StatusReport]) -> list[StatusReport]:
        del question
        return [*self._reports]


def report(clusters: int, *types: str) -> StatusReport:
    scorer = ScorerView(
        name="s",
        score_name="s",
        description="",
        location="",
        score_destination="",
        interval_seconds=30,
        validity_seconds=300,
        rate_limit=None,
        suspended=False,
        health_status="Active",
        clusters=ClusterCounts(desired=clusters, succeeding=clusters),
        last_success=NOW,
    )
    said = [ConditionView(scorer="s", type=kind, status="False", reason="R", message="m") for kind in types]
    return StatusReport(at=NOW, ok=not types, scorers=[scorer], conditions=said)


def told(*reports: StatusReport) -> tuple[bool, list[str]]:
    found = ask_reports(cast("Clients", Cells(*reports)), None)
    return found.ok, [one.type for one in found.conditions]


def test_a_cell_without_clusters_has_no_say_about_where_a_scorer_runs() -> None:
    assert told(report(2), report(0, "Distributed")) == (True, [])
    assert told(report(2), report(1, "Distributed")) == (False, ["Distributed"])
    assert told(report(0, "Distributed"), report(0, "Distributed")) == (False, ["Distributed"])
    # What is wrong with the scorer itself is said by any, and once.
    assert told(report(2, "Healthy"), report(0, "Healthy", "Distributed")) == (False, ["Healthy"])


def test_blanks_are_no_address() -> None:
    assert [asks_api(Settings(api_url=text)) for text in (" ", " http://a http://b ")] == [False, True]


def test_a_scorer_that_runs_in_one_cell_only_says_so() -> None:
    def problem(*said: str) -> str:
        lists = [ScorerList(at=NOW, scorers=[report(1).scorers[0].model_copy(update={"problem": one})]) for one in said]
        return together(lists).scorers[0].problem

    assert problem("", "") == ""
    assert problem("", "A: x") == "A: x (in 1 of 2 cells)"
    assert problem("A: x", "A: x") == "A: x"
