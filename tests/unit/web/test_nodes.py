"""No first page has more elements than a browser is quick with, whatever the fleet."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import cast

import pytest

from dsf.backtest import kept
from dsf.backtest.kept import MAX_RUNS, fitting
from dsf.backtest.summary import COLUMNS
from dsf.fleet.overviews import (
    ClusterOverview,
    ClusterPage,
    ConditionView,
    FleetOverview,
    PairRow,
    ReasonGroup,
    ScorerOverview,
    Spread,
    StateCounts,
    UnreadyScorer,
)
from dsf.fleet.selection import PairFilter
from dsf.fleet.verdict import Verdict
from dsf.settings import Settings
from dsf.store.notices import CLUSTER_SET
from dsf.store.registry import ScorerRecord
from dsf.web.pages import Sources
from dsf.web.reading import PAGE_ROWS, Reading, Rows, TableRow, Why
from dsf.web.rendering import render
from dsf.web.states import STATES
from dsf.web.views import VIEWS
from tests.unit.backtest.test_kept import backtest, comparison, with_backtests

NOW = datetime(2026, 1, 1, tzinfo=UTC)
#: Elements around the live part, with all that settings add to it.
AROUND = 70


class Fleet:
    """What the first page reads, of any size, and with something wrong in each corner."""

    def __init__(self, clusters: int, scorers: int, groups: int, unready: int, labels: int) -> None:
        self.names = [f"c{number:03}" for number in range(clusters)]
        self.scorers = [f"scorer-{number}" for number in range(scorers)]
        why = partial(ReasonGroup, stage="fetch", reason="bad_query", message="no", at=NOW)
        self.group = [why(scorer="s", state=Verdict.FAILING, clusters=3, cluster="c")] * groups
        self.model = self
        self.not_ready = unready
        self.values = labels
        self.is_bad = groups > 1

    def summary(self) -> FleetOverview:
        bad = dict.fromkeys(("failing", "expired", "skipped", "never", "paused", "empty"), 1)
        states = StateCounts(ok=len(self.names), **(bad if self.is_bad else {"failing": 1}))
        said = ConditionView(type="Healthy", status="False", reason="Unreachable", message="no", since=NOW)
        return FleetOverview(
            at=NOW,
            sequence=1,
            clusters=len(self.names),
            pairs=len(self.names) * len(self.scorers),
            states=states,
            overdue=0,
            scorers=[
                ScorerOverview(
                    name=name,
                    score_name=name,
                    interval_seconds=30,
                    effective_interval_seconds=10,
                    pairs=len(self.names),
                    states=states,
                    ages=Spread(count=3, p50=1, p99=2),
                    problem="why",
                )
                for name in self.scorers
            ],
            unready=[
                UnreadyScorer(name=f"u{number}", namespace="n", conditions=[said]) for number in range(self.not_ready)
            ],
        )

    def groups(self, scorers: Iterable[ScorerOverview]) -> list[ReasonGroup]:
        return self.group

    def labels(self) -> dict[str, dict[str, str]]:
        return {"c000": {f"key-{number}": "value" for number in range(self.values)}}

    def cluster_names(self) -> list[str]:
        return self.names

    def page(self, wanted: PairFilter, cursor: str | None = None, *, limit: int = PAGE_ROWS) -> Rows:
        why = Why("fetch", "bad_query", "no", 1.0)
        row = partial(TableRow, state=STATES["failing"], why=why, score=None, expired=False, entry=None)
        rows = [
            row(f"c{one}", "s", data=PairRow(cluster=f"c{one}", scorer="s", state=Verdict.FAILING))
            for one in range(limit)
        ]
        return Rows(rows, 2 * limit, "next")

    def clusters(self, *, limit: int, names: object, cursor: str | None, paired: bool) -> ClusterPage:
        assert paired
        start = int(cursor or 0)
        return ClusterPage(
            at=NOW,
            total=len(self.names),
            cursor=str(start + limit) if start + limit < len(self.names) else None,
            clusters=[
                ClusterOverview(
                    name=name,
                    pairs=len(self.scorers),
                    states=StateCounts(),
                    scorers=dict.fromkeys(self.scorers, Verdict.OK),
                )
                for name in self.names[start : start + limit]
            ],
        )


def test_parts_of_any_number() -> None:
    states = StateCounts(failing=1, expired=1, skipped=1, never=1, paused=1, empty=1, ok=1)
    names = [f"c{number}" for number in range(200)]

    class Parts:
        def labels(self) -> dict[str, dict[str, str]]:
            return {name: {CLUSTER_SET: f"of {name}"} for name in names}

        def cluster_states(self) -> dict[str, StateCounts]:
            return dict.fromkeys(names, states)

        def cluster_names(self) -> list[str]:
            return names

        @property
        def model(self) -> Parts:
            return self

    [view] = [one for one in VIEWS if one.path == "/parts"]
    seen: list[str] = []
    query: dict[str, str] = {}
    while True:
        context = view.build(Sources(cast("Reading", Parts())), {}, query)
        html = render(view.template, "", {**context, "options": Settings(), "query": query})
        assert len(re.findall("<[a-zA-Z]", html)) + AROUND < 5000
        seen += re.findall(r">of (c\d+)</a>", html)
        found = re.search(r'rel="next" href="/parts\?[^"]*cursor=(\d+)"', html)
        if found is None:
            break
        query = {"cursor": found[1]}
    assert seen == sorted(names)


def first_page(fleet: Fleet, query: Mapping[str, str]) -> str:
    sources = Sources(cast("Reading", fleet))
    context = VIEWS[0].build(sources, {}, query)
    return render(VIEWS[0].template, "", {**context, "options": Settings(), "query": query})


@pytest.mark.parametrize(
    ("clusters", "scorers", "groups", "unready", "labels"),
    [(200, 10, 1, 0, 4), (200, 10, 30, 30, 40), (60, 33, 40, 0, 0), (20, 100, 30, 0, 0), (7, 280, 0, 40, 50)],
)
def test_the_matrix_of_any_fleet(clusters: int, scorers: int, groups: int, unready: int, labels: int) -> None:
    fleet = Fleet(clusters, scorers, groups, unready, labels)
    seen: list[str] = []
    query: dict[str, str] = {}
    while True:
        html = first_page(fleet, query)
        assert len(re.findall("<[a-zA-Z]", html)) + AROUND < 5000
        seen += re.findall(r'<tr><th scope="row"><a href="/clusters/([^"/]*)"', html)
        found = re.search(r'rel="next" href="/\?cursor=([^"#]*)', html)
        if found is None:
            break
        query = {"cursor": found[1]}
    # Nothing is lost by that, and a usual fleet of 200 x 10 is on one page.
    assert seen == fleet.names
    if (clusters, groups) == (200, 1):
        assert query == {}


@pytest.mark.parametrize(("clusters", "scorers"), [(1, 1000), (2, 1000), (1, 2000)])
def test_oversized_matrix_is_shown_as_a_list(clusters: int, scorers: int) -> None:
    html = first_page(Fleet(clusters, scorers, 30, 30, 40), {})
    assert len(re.findall("<[a-zA-Z]", html)) + AROUND < 5000
    assert html.count('<td data-name="State"') == 100


def test_the_tab_of_backtests_with_as_much_as_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the store cuts it: the largest comparison, and the largest backtest."""
    views = [backtest(f"c{number}", items=50, columns=COLUMNS) for number in range(30)]
    views = [
        view.model_copy(
            # A gap at every second moment.
            update={"items": [one.model_copy(update={"line": [1, None] * (COLUMNS // 2)}) for one in view.items]}
        )
        for view in views
    ]
    large = comparison(time.time(), clusters=50, placements=50, spans=500, items=500)
    runs = [
        fitting(run.model_copy(update={"id": f"{number}"}))
        for number, run in enumerate(
            [
                with_backtests(large, views),
                large.model_copy(update={"backtests": views, "comparison": None}),
                *[large] * (MAX_RUNS - 2),
            ]
        )
    ]

    class Registered:
        redis = None

        def scorer(self, name: str) -> ScorerRecord:
            return ScorerRecord(name=name, score_name=name, interval=10, validity=300)

        @property
        def registry(self) -> Registered:
            return self

    monkeypatch.setattr(kept, "read", lambda *_: runs)
    [view] = [one for one in VIEWS if one.path == "/scorers/{scorer}/backtests"]
    for run in ("0", "1", "2"):
        query = {"run": run, "allowed": "placements"}
        context = view.build(Sources(cast("Reading", Registered())), {"scorer": "s"}, query)
        html = render(view.template, "", {**context, "options": Settings(), "query": query})
        assert len(re.findall("<[a-zA-Z]", html)) + AROUND < 5000
        assert html.count('<th scope="row" data-name="What"') == MAX_RUNS
