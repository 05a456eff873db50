"""Printed tables, JSON and YAML."""

from __future__ import annotations

import io
import re
from datetime import UTC, datetime, timedelta

import pytest
import yaml
from pydantic import BaseModel
from rich.console import Console
from rich.text import Text

from dsf.cli import output
from dsf.cli.output import escape_control_characters, format_age, format_number, format_time_until, make_table


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(None, "-"), (-3, "0s"), (0, "0s"), (12.9, "12s"), (59, "59s"), (60, "1m"), (3599, "59m"), (3600, "1h"),
     (86399, "23h"), (200000, "2d")],
)  # fmt: skip
def test_ages(seconds: float | None, expected: str) -> None:
    assert format_age(seconds) == expected


def test_until() -> None:
    now = datetime(2024, 1, 1, tzinfo=UTC)
    assert format_time_until(None, now) == "-"
    assert format_time_until(now - timedelta(hours=1), now) == "now"
    assert format_time_until(now + timedelta(minutes=5), now) == "5m"


def test_numbers_are_rounded_for_display() -> None:
    assert format_number(0.1 + 0.2) == "0.3"
    assert format_number(-100) == "-100"


def test_control_characters_are_escaped() -> None:
    assert escape_control_characters("a\x1b[31mb\x07\r") == r"a\x1b[31mb\x07\r"
    assert escape_control_characters("two\nlines, ümlaut") == "two\nlines, ümlaut"
    assert escape_control_characters("\u202e\ud800") == r"\u202e\ud800"


def test_external_text_is_not_interpreted_as_markup() -> None:
    console = Console(file=io.StringIO(), width=80)
    console.print(
        make_table(("NAME", "VALUE"), [("[red]x[/red]", ("\x1b[0m", "bold"))], right_aligned_headers=("VALUE",))
    )
    assert isinstance(console.file, io.StringIO)
    assert r"[red]x[/red]  \x1b[0m" in console.file.getvalue()


@pytest.mark.parametrize("width", ["25", "24"])
def test_exactly_fitting_table_looks_like_a_foldable_one(
    width: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", width)
    rows = [("点", ("1", "red"), ""), ("a longer name", "22", "x"), ("", "-3.5", "")]
    output.make_console().print(make_table(("NAME", "VALUE", "?"), rows, right_aligned_headers=("VALUE",)))
    terminal_text = capsys.readouterr().out
    assert re.search(r"\x1b\[31m *1 *\x1b", terminal_text)
    assert [Text.from_ansi(line).plain.rstrip() for line in terminal_text.splitlines()] == [
        "NAME           VALUE  ?",
        "点                 1",
        "a longer name     22  x",
        "                -3.5",
    ]


class _Message(BaseModel):
    message: str


@pytest.mark.parametrize("form", [output.Format.JSON, output.Format.YAML])
def test_output_has_no_control_characters_and_parses_back(
    form: output.Format, capsys: pytest.CaptureFixture[str]
) -> None:
    printed_model = _Message(message="a\x9b31m \u202eb \x1b é 点")
    output.emit(printed_model, form, lambda: "")
    text = capsys.readouterr().out
    assert text.replace("\n", "").isprintable()
    assert yaml.safe_load(text) == printed_model.model_dump()


def test_cell_keeps_its_style() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system="standard")
    console.print(make_table(("NAME", "STATE"), [("a", ("failing", "red"))]))
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().splitlines() == [
        "\x1b[1mNAME\x1b[0m\x1b[1m  \x1b[0m\x1b[1mSTATE  \x1b[0m",
        "a     \x1b[31mfailing\x1b[0m",
    ]


def test_truncated_table_is_noted_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_omission_note(100, 100)
    assert capsys.readouterr() == ("", "")
    output.print_omission_note(100, 101)
    out, err = capsys.readouterr()
    assert (out, "100 of 101 pairs" in err) == ("", True)
