"""Commands of backtests.

backtest   `dsf backtest`
compare    `dsf compare`
replay     runs the backtests of both commands
"""

from __future__ import annotations

import typer

from dsf.backtest.commands import backtest, compare
from dsf.cli.group import FleetCommand


def add(app: typer.Typer) -> None:
    """Add the commands to `dsf`."""
    app.command(cls=FleetCommand, rich_help_panel="Look")(backtest.backtest)
    app.command(cls=FleetCommand, rich_help_panel="Look")(compare.compare)
