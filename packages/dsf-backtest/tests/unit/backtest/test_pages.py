"""The tab of backtests stays below the number of elements that browsers render quickly."""

from __future__ import annotations

import re
import time
from typing import cast

import pytest

from dsf.backtest import runstore
from dsf.backtest.pages import PAGES
from dsf.backtest.runstore import MAX_RUNS, limit_size
from dsf.backtest.summary import COLUMNS
from dsf.settings import Settings
from dsf.store.registry import ScorerRecord
from dsf.web.pagedata import PageDataReader
from dsf.web.pages import Sources
from dsf.web.rendering import render
from tests.support.backtests import backtest, comparison, with_backtests

#: Elements around the live part, with the most that settings can add.
AROUND = 70


def test_backtest_tab_with_the_largest_stored_runs_stays_below_the_element_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Renders the largest comparison and the largest backtest that the store keeps."""
    views = [backtest(f"c{number}", items=50, columns=COLUMNS) for number in range(30)]
    views = [
        view.model_copy(
            # Every second moment is a gap.
            update={"items": [item.model_copy(update={"line": [1, None] * (COLUMNS // 2)}) for item in view.items]}
        )
        for view in views
    ]
    large = comparison(time.time(), clusters=50, placements=50, spans=500, items=500)
    runs = [
        limit_size(run.model_copy(update={"id": f"{number}"}))
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

        def read_scorer(self, name: str) -> ScorerRecord:
            return ScorerRecord(name=name, score_name=name, interval=10, validity=300)

        @property
        def registry(self) -> Registered:
            return self

    monkeypatch.setattr(runstore, "read_runs", lambda *_: runs)
    [view] = PAGES.views
    for run in ("0", "1", "2"):
        query = {"run": run, "allowed": "placements"}
        context = view.build(Sources(cast("PageDataReader", Registered())), {"scorer": "s"}, query)
        html = render(view.template, "", {**context, "options": Settings(), "query": query})
        assert len(re.findall("<[a-zA-Z]", html)) + AROUND < 5000
        assert html.count('<th scope="row" data-name="What"') == MAX_RUNS
