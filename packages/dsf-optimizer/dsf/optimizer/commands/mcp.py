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
    from dsf.cli.localuser import get_local_user
    from dsf.cli.session import add_kubeconfig
    from dsf.optimizer.mcp import run_stdio
    from dsf.optimizer.service import make_service
    from dsf.optimizer.settings import OptimizerSettings

    settings = add_kubeconfig(OptimizerSettings.load())
    dsf.log.setup(settings)
    with closing(make_service(settings, "mcp", get_local_user())) as service:
        run_stdio(service)
