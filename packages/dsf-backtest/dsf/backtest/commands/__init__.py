"""Commands of backtests.

backtest   `dsf backtest`
compare    `dsf compare`
replay     runs the tests of both
"""

from __future__ import annotations

import typer

from dsf.backtest.commands import backtest, compare
from dsf.cli.group import FleetCommand


def add(app: typer.Typer) -> None:
    """Add them to `dsf`."""
    app.command(cls=FleetCommand, rich_help_panel="Look")(backtest.backtest)
    app.command(cls=FleetCommand, rich_help_panel="Look")(compare.compare)
