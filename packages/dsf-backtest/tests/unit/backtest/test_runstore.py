"""Stored runs are bounded, whatever their size was."""

from __future__ import annotations

import json

from dsf.backtest.runstore import KeptRun, limit_size, make_run_id
from dsf.backtest.summary import COLUMNS
from tests.support.backtests import backtest, comparison, with_backtests


def test_small_run_is_stored_unchanged() -> None:
    run = comparison(1e9)
    assert limit_size(run) == run
    run = with_backtests(run, [backtest()])
    restored_run = KeptRun.model_validate_json(limit_size(run).model_dump_json(by_alias=True, exclude_defaults=True))
    assert restored_run.comparison is not None
    assert [view.items for view in restored_run.comparison.backtests] == [backtest().items] * 2


def test_large_run_is_truncated_with_a_note() -> None:
    run = KeptRun(
        id="1",
        at=1e9,
        by="ann",
        way="page",
        clusters=[f"c{number}" for number in range(50)],
        backtests=[backtest(f"c{number}", items=500, columns=COLUMNS, text="x" * 5000) for number in range(50)],
    )
    cut = limit_size(run)
    assert "50 clusters were tested; 10 are shown" in cut.problem
    assert len(cut.backtests[0].items) == 8
    assert cut.backtests[0].notes[0] == "and 492 items more, which changed less often"
    assert len(json.dumps(cut.model_dump(mode="json"))) < 256 * 1024
    both = comparison(1e9, clusters=500, placements=100, spans=1000, items=1000)
    assert len(limit_size(with_backtests(both, run.backtests)).model_dump_json()) < 256 * 1024


def test_comparison_with_oversized_lines_is_stored_without_them() -> None:
    lines = [backtest(f"c{number}", items=8, columns=COLUMNS, text="x" * 9000) for number in range(10)]
    cut = limit_size(with_backtests(comparison(1e9), lines))
    assert cut.comparison is not None
    assert cut.comparison.backtests == []
    assert "its lines are too large to be shown" in cut.problem


def test_ids_are_in_the_order_of_time() -> None:
    assert make_run_id(9.0) < make_run_id(10.0) < make_run_id(1e9) < make_run_id(4e9)
