"""Commands that other distributions add."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints

import pytest
import typer

from dsf.cli import main


def _add(app: typer.Typer) -> None:
    app.command("works")(lambda: None)


def test_commands_that_cannot_be_loaded_are_skipped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = [
        EntryPoint("a", "no.such.package:add", "dsf.commands"),
        EntryPoint("b", f"{__name__}:_add", "dsf.commands"),
    ]
    monkeypatch.setattr(main, "entry_points", lambda group: EntryPoints(entries).select(group=group))
    app = typer.Typer()
    main.add_installed(app)
    assert [command.name for command in app.registered_commands] == ["works"]
    assert capsys.readouterr().err == (
        "warning: the commands of no.such.package:add are left out: ModuleNotFoundError: No module named 'no'\n"
    )
