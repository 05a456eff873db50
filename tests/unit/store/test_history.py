"""Rows of the history are read as they were written."""

from __future__ import annotations

from typing import Any

import pytest

from dsf.store.history import HistoryEntry, parse_row, parse_run_id

RUN = "1795358156863-0a688a7a"
AT = 1795358156.863
OK: dict[str, Any] = {
    "timings": {"fetch": 0.0123, "score": 0.0234, "publish": 0.0012},
    "counts": {"series": 100, "bytes_in": 221000, "bytes_out": 221000, "results": 10, "items": 10},
    "value": 4.5,
}


@pytest.mark.parametrize(
    "values",
    [
        OK,
        {},
        {"outcome": "skipped", "reason": "overlap"},
        {"outcome": "error", "stage": "fetch", "reason": "timeout", "message": "after 5 s:  no response\nof it "},
        {"timings": {"score": 0.5}, "counts": {"items": 0, "made_up": 7, "clamped": 2**53}, "value": -1e-7},
        {"counts": {"made_up": 1, "other": 0}, "value": 0.0},
        {"outcome": "partial", "counts": {"results": 10, "items": 9, "refused": 1}, "value": 1.25},
        {"outcome": "error", "stage": "publish", "reason": "x", "message": "y", "counts": {"results": 3, "retries": 1}},
        {"counts": {"items": 3}},
        {"reason": "odd"},
        {"outcome": "lost", "reason": "lost", "message": "nothing was heard of it"},
    ],
)
def test_history_row_is_read_back_unchanged(values: dict[str, Any]) -> None:
    entry = HistoryEntry(**{"run": RUN, "at": AT, "outcome": "ok", **values})
    assert parse_row(entry.dump()) == entry
    assert parse_run_id(entry.dump()) == RUN


def test_history_row_is_short_and_as_documented() -> None:
    row = HistoryEntry(run=RUN, at=AT, outcome="ok", **OK).dump()
    assert row == "q83HSw.0aq8FW 1X,3G,c 1A,RZ8,RZ8,a 4.5"
    # Fifty rows, each with two more bytes while shorter than 64, fit into 2 KiB, a size class of jemalloc.
    assert 50 * (len(row) + 2) + 7 <= 2048


@pytest.mark.parametrize(
    "row",
    [
        "",
        "{",
        "2 of a version to come",
        "a-b ok ? ? ?",
        "a-b ok",
        "?thirteen????   ",
        "?thirteen???? ok   ",
        "q83HSw.0aq8FW ok",
        "short ok   ",
    ],
)
def test_unreadable_history_row_is_none(row: str) -> None:
    assert parse_row(row) is None
