"""First pages stay below the number of elements that browsers render quickly, with any fleet."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import cast

import pytest

from dsf.fleet.selection import PairFilter
from dsf.fleet.verdict import Verdict
from dsf.fleet.views import (
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
from dsf.settings import Settings
from dsf.store.notices import CLUSTER_SET
from dsf.web.pagedata import PAGE_ROWS, PageDataReader, ScoreProblem, TablePage, TableRow
from dsf.web.pages import Sources
from dsf.web.rendering import render
from dsf.web.states import STATES
from dsf.web.views import VIEWS

NOW = datetime(2026, 1, 1, tzinfo=UTC)
#: Elements around the live part, with the most that settings can add.
AROUND = 70


class Fleet:
    """A fleet of any size for the first page, with every kind of problem."""

    def __init__(self, clusters: int, scorers: int, groups: int, unready: int, labels: int) -> None:
        self.names = [f"c{number:03}" for number in range(clusters)]
        self.scorers = [f"scorer-{number}" for number in range(scorers)]
        make_group = partial(ReasonGroup, stage="fetch", reason="bad_query", message="no", at=NOW)
        self.group = [make_group(scorer="s", state=Verdict.FAILING, clusters=3, cluster="c")] * groups
        self.fleet_queries = self
        self.not_ready = unready
        self.values = labels
        self.is_bad = groups > 1

    def summary(self) -> FleetOverview:
        bad = dict.fromkeys(("failing", "expired", "skipped", "never", "paused", "empty"), 1)
        states = StateCounts(ok=len(self.names), **(bad if self.is_bad else {"failing": 1}))
        condition = ConditionView(type="Healthy", status="False", reason="Unreachable", message="no", since=NOW)
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
                UnreadyScorer(name=f"u{number}", namespace="n", conditions=[condition])
                for number in range(self.not_ready)
            ],
        )

    def list_problem_groups(self, scorers: Iterable[ScorerOverview]) -> list[ReasonGroup]:
        return self.group

    def labels(self) -> dict[str, dict[str, str]]:
        return {"c000": {f"key-{number}": "value" for number in range(self.values)}}

    def list_cluster_names(self) -> list[str]:
        return self.names

    def read_page(self, pair_filter: PairFilter, cursor: str | None = None, *, limit: int = PAGE_ROWS) -> TablePage:
        problem = ScoreProblem("fetch", "bad_query", "no", 1.0)
        row = partial(TableRow, state=STATES["failing"], problem=problem, score=None, expired=False, entry=None)
        rows = [
            row(f"c{number}", "s", pair_row=PairRow(cluster=f"c{number}", scorer="s", state=Verdict.FAILING))
            for number in range(limit)
        ]
        return TablePage(rows, 2 * limit, "next")

    def clusters(self, *, limit: int, names: object, cursor: str | None, has_pairs: bool) -> ClusterPage:
        assert has_pairs
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

        def list_cluster_names(self) -> list[str]:
            return names

        @property
        def fleet_queries(self) -> Parts:
            return self

    [view] = [candidate for candidate in VIEWS if candidate.path == "/parts"]
    listed_clusters: list[str] = []
    query: dict[str, str] = {}
    while True:
        context = view.build(Sources(cast("PageDataReader", Parts())), {}, query)
        html = render(view.template, "", {**context, "options": Settings(), "query": query})
        assert len(re.findall("<[a-zA-Z]", html)) + AROUND < 5000
        listed_clusters += re.findall(r">of (c\d+)</a>", html)
        next_link = re.search(r'rel="next" href="/parts\?[^"]*cursor=(\d+)"', html)
        if next_link is None:
            break
        query = {"cursor": next_link[1]}
    assert listed_clusters == sorted(names)


def first_page(fleet: Fleet, query: Mapping[str, str]) -> str:
    sources = Sources(cast("PageDataReader", fleet))
    context = VIEWS[0].build(sources, {}, query)
    return render(VIEWS[0].template, "", {**context, "options": Settings(), "query": query})


@pytest.mark.parametrize(
    ("clusters", "scorers", "groups", "unready", "labels"),
    [(200, 10, 1, 0, 4), (200, 10, 30, 30, 40), (60, 33, 40, 0, 0), (20, 100, 30, 0, 0), (7, 280, 0, 40, 50)],
)
def test_matrix_of_any_fleet_stays_below_the_element_limit(
    clusters: int, scorers: int, groups: int, unready: int, labels: int
) -> None:
    fleet = Fleet(clusters, scorers, groups, unready, labels)
    listed_clusters: list[str] = []
    query: dict[str, str] = {}
    while True:
        html = first_page(fleet, query)
        assert len(re.findall("<[a-zA-Z]", html)) + AROUND < 5000
        listed_clusters += re.findall(r'<tr><th scope="row"><a href="/clusters/([^"/]*)"', html)
        next_link = re.search(r'rel="next" href="/\?cursor=([^"#]*)', html)
        if next_link is None:
            break
        query = {"cursor": next_link[1]}
    # All clusters appear, and a usual fleet of 200 x 10 fits on one page.
    assert listed_clusters == fleet.names
    if (clusters, groups) == (200, 1):
        assert query == {}


@pytest.mark.parametrize(("clusters", "scorers"), [(1, 1000), (2, 1000), (1, 2000)])
def test_oversized_matrix_is_shown_as_a_list(clusters: int, scorers: int) -> None:
    html = first_page(Fleet(clusters, scorers, 30, 30, 40), {})
    assert len(re.findall("<[a-zA-Z]", html)) + AROUND < 5000
    assert html.count('<td data-name="State"') == 100
