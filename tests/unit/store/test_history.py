"""Rows of the history: what is written is read again, and so is what earlier versions wrote."""

from __future__ import annotations

from typing import Any

import pytest

from dsf.store.history import HistoryEntry, read_row, run_of

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
        {"outcome": "error", "stage": "fetch", "reason": "timeout", "message": "after 5 s:  no answer\nof it "},
        {"timings": {"score": 0.5}, "counts": {"items": 0, "made_up": 7, "clamped": 2**53}, "value": -1e-7},
        {"counts": {"made_up": 1, "other": 0}, "value": 0.0},
        {"outcome": "partial", "counts": {"results": 10, "items": 9, "refused": 1}, "value": 1.25},
        {"outcome": "error", "stage": "publish", "reason": "x", "message": "y", "counts": {"results": 3, "retries": 1}},
        {"counts": {"items": 3}},
        {"reason": "odd"},
    ],
)
def test_what_is_written_is_read(values: dict[str, Any]) -> None:
    entry = HistoryEntry(**{"run": RUN, "at": AT, "outcome": "ok", **values})
    assert read_row(entry.row()) == entry
    assert read_row(entry.model_dump_json(exclude_defaults=True)) == entry


def test_a_row_is_short_and_as_documented() -> None:
    row = HistoryEntry(run=RUN, at=AT, outcome="ok", **OK).row()
    assert row == "q83HSw.0aq8FW 1X,3G,c 1A,RZ8,RZ8,a 4.5"
    # Fifty of them, with two bytes more each while one is shorter than 64, fit into 2 KiB, a size that jemalloc has.
    assert 50 * (len(row) + 2) + 7 <= 2048


@pytest.mark.parametrize(
    ("row", "values"),
    [
        (
            "q83HSw.0aq8FW ok ji,AG,1X 1A,RZ8,RZ8,a,a 4.5",
            {**OK, "timings": {"fetch": 0.01234, "score": 0.02346, "publish": 0.00123}},
        ),
        ("q83HSw.0aq8FW ok ji ,,,a 4.5", {"timings": {"fetch": 0.01234}, "counts": {"results": 10}, "value": 4.5}),
        ("q83HSw.0aq8FW error  ,,, ", {"outcome": "error"}),
        (
            "q83HSw.0aq8FW error ji   fetch timeout after 5 s",
            {
                "outcome": "error",
                "timings": {"fetch": 0.01234},
                "stage": "fetch",
                "reason": "timeout",
                "message": "after 5 s",
            },
        ),
    ],
)
def test_a_row_with_a_field_for_the_outcome_is_read(row: str, values: dict[str, Any]) -> None:
    assert read_row(row) == HistoryEntry(**{"run": RUN, "at": AT, "outcome": "ok", **values})
    assert run_of(row) == RUN


def test_a_row_of_an_earlier_version_is_read() -> None:
    row = "mwrxw3sv-2vys8q ok 9ix,i3k,ya 2s,4qiw,4qiw,a,a,,,1,made_up=b 4.5"
    timings = {"fetch": 0.012345, "score": 0.023456, "publish": 0.001234}
    counts = {**OK["counts"], "retries": 1, "made_up": 11}
    entry = HistoryEntry(run=RUN, at=AT, outcome="ok", **{**OK, "timings": timings, "counts": counts})
    assert read_row(row) == entry
    assert run_of(row) == RUN


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
def test_a_row_that_cannot_be_read_is_none(row: str) -> None:
    assert read_row(row) is None
