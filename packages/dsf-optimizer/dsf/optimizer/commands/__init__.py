"""Commands of the optimiser.

optimize   `dsf optimize`: computes, applies and resets plans
optimizer  `dsf optimizer`: the server
mcp        `dsf mcp`: the MCP server for an assistant on this machine
"""

from __future__ import annotations

import typer

from dsf.optimizer.commands import mcp, optimize, optimizer


def add(app: typer.Typer) -> None:
    """Add the commands to `dsf`."""
    app.command(rich_help_panel="Change")(optimize.optimize)
    app.command(rich_help_panel="Run a process")(optimizer.optimizer)
    app.command(rich_help_panel="Run a process")(mcp.mcp)
