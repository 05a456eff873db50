"""Durations and moments as people type them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
import typer

from dsf.api.scorerule import HoldRule
from dsf.cli.duration import parse_hold, parse_pause_end, parse_seconds

NOW = 1_700_000_000.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", 0), ("90", 90), ("90s", 90), ("5m", 300), ("2h", 7200), ("1h30m", 5400), ("2d", 172800)],
)
def test_durations(text: str, expected: int) -> None:
    assert parse_seconds(text) == expected


@pytest.mark.parametrize("text", ["", "-5", "5x", "m", "1.5h", "5 m", "²", "1h30"])
def test_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="use seconds such as 90"):
        parse_seconds(text)


@pytest.mark.parametrize("text", ["2147483648", "999999999999", "99999999d", "9" * 400, "9" * 5000, "9" * 5000 + "d"])
def test_too_long_duration_is_refused(text: str) -> None:
    for parse in (parse_seconds, parse_pause_end):
        with pytest.raises(typer.BadParameter, match=r"too long; at most 2147483647 seconds \(68 years\)") as raised:
            parse(text)
        assert len(raised.value.message) < 250
    assert parse_seconds("2147483647") == 2147483647


def test_duration_counts_from_now() -> None:
    assert parse_pause_end("2h", NOW) == NOW + 7200


def test_iso_8601_with_a_zone() -> None:
    expected = datetime(2024, 1, 1, 12, tzinfo=UTC).timestamp()
    assert parse_pause_end("2024-01-01T12:00:00Z", NOW) == expected
    assert parse_pause_end("2024-01-01T13:00+01:00", NOW) == expected


def test_moment_without_a_zone_is_local_time() -> None:
    assert parse_pause_end("2024-01-01T12:00", NOW) == datetime(2024, 1, 1, 12).astimezone().timestamp()


@pytest.mark.parametrize("text", ["0", "2020-01-01T00:00Z"])
def test_moment_in_the_past_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is in the past"):
        parse_pause_end(text, NOW)


@pytest.mark.parametrize("text", ["tomorrow", "18:00", "9999999999-01-01"])
def test_invalid_moment_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="use ISO 8601"):
        parse_pause_end(text, NOW)


def test_hold_is_parsed_as_points_and_duration() -> None:
    assert parse_hold("5:10m") == HoldRule(min_change=5, for_seconds=600)
    assert parse_hold("200:0") == HoldRule(min_change=200, for_seconds=0)


@pytest.mark.parametrize("text", ["", "5", "5:", ":5m", "0:5m", "-1:5m", "201:5m", "5:x", "5.5:1m", "٣:1m", "5:5m:1"])
def test_invalid_hold_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_hold(text)
