"""The extras that messages name are those of pyproject.toml, and each optional command and source has one."""

from __future__ import annotations

import tomllib
from importlib.metadata import entry_points
from pathlib import Path
from typing import cast

import pytest
import typer
from typer.core import TyperGroup as Group
from typer.main import get_command

from dsf.extras import describe_missing_extra, read_extras

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


def test_extras_of_messages_are_those_of_the_distribution() -> None:
    assert read_extras() == PROJECT["entry-points"]["dsf.extras"]
    assert set(read_extras().values()) <= set(PROJECT["optional-dependencies"])


def test_command_of_another_distribution_has_an_extra() -> None:
    app = typer.Typer()
    for entry in entry_points(group="dsf.commands"):
        entry.load()(app)
    assert set(cast("Group", get_command(app)).commands) <= set(read_extras())


@pytest.mark.parametrize("entry", entry_points(group="dsf.sources"), ids=lambda entry: entry.name)
def test_source_of_another_distribution_has_an_extra(entry: object) -> None:
    assert getattr(entry, "name", "") in read_extras()


def test_message_says_how_to_install_an_extra() -> None:
    assert (
        describe_missing_extra("plot") == "this needs the extra `plot`: pip install 'dynamic-scoring-framework[plot]'"
    )
