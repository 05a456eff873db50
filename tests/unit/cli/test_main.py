"""Commands that other distributions add."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints

import pytest
import typer

from dsf.cli import main
from tests.support import commandline


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
    main.add_installed_commands(app)
    assert [command.name for command in app.registered_commands] == ["works"]
    assert capsys.readouterr().err == (
        "warning: the commands of no.such.package:add are left out: ModuleNotFoundError: No module named 'no'\n"
    )


def test_explain_names_the_command_that_runs_a_manifest() -> None:
    result = commandline.dsf("explain", "-f", "scorer.yaml")
    assert result.exit_code == 2
    message = " ".join(result.stderr.replace("│", "").split())
    assert "`dsf backtest -f scorer.yaml --cluster CLUSTER --since 5m --every 5m`" in message
