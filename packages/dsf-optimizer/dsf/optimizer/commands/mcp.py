"""`dsf mcp`: MCP server of the optimiser for an assistant on this machine."""

from __future__ import annotations


def mcp() -> None:
    """Serve the optimiser to an assistant over standard input and output (Model Context Protocol).

    The assistant starts this command, with the rights of your kubeconfig. For a shared server, run `dsf optimizer`,
    which serves the same tools at /mcp.

    Example: dsf mcp
    """
    from contextlib import closing

    import dsf.log
    from dsf.cli.localuser import who
    from dsf.cli.session import hub_settings
    from dsf.optimizer.mcp import run_stdio
    from dsf.optimizer.service import make_service
    from dsf.optimizer.settings import OptimizerSettings

    settings = hub_settings(OptimizerSettings.load())
    dsf.log.setup(settings)
    with closing(make_service(settings, "mcp", who())) as service:
        run_stdio(service)
