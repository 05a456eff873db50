"""`dsf mcp`: MCP server of the optimiser for an assistant on this machine."""

from __future__ import annotations

import typer


def mcp() -> None:
    """Serve the optimiser to an assistant over standard input and output (Model Context Protocol).

    The assistant starts this command, with the rights of your kubeconfig. For a shared server, run `dsf optimizer`,
    which serves the same tools at /mcp.

    Example: dsf mcp
    """
    from dsf.cli.session import hub_settings
    from dsf.optimizer.commands.optimizer import board, recorder, rescorer
    from dsf.optimizer.mcp import run_stdio
    from dsf.settings import Settings

    settings = hub_settings(Settings.load().model_copy(update={"role": "optimizer"}))
    raise typer.Exit(run_stdio(settings, rescorer(settings), recorder(settings, "mcp"), board(settings)))
