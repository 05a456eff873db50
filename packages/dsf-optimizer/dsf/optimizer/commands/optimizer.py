"""`dsf optimizer`: the server of the optimiser."""

from __future__ import annotations

from typing import Annotated, Literal

import typer


def optimizer(
    host: Annotated[str | None, typer.Option("--host", help="Address to listen on; default 127.0.0.1.")] = None,
    port: Annotated[
        int | None, typer.Option("--port", min=0, max=65535, help="Port; default 8338, 0 takes a free one.")
    ] = None,
    auth: Annotated[
        Literal["kubernetes", "token", "none"] | None,
        typer.Option("--auth", help="Authentication of callers; none only on a loopback address."),
    ] = None,
) -> None:
    """Run the optimiser: HTTP API for plans, scores and their explanation, with /docs; for assistants at /mcp.

    Example: dsf optimizer --auth none
    """
    from dsf.cli.localuser import get_local_user
    from dsf.cli.session import add_kubeconfig
    from dsf.optimizer.main import run
    from dsf.optimizer.settings import OptimizerSettings

    options = {"listen_host": host, "listen_port": port, "optimizer_auth": auth}
    update = {name: value for name, value in options.items() if value is not None}
    settings = add_kubeconfig(OptimizerSettings.load().model_copy(update=update))
    raise typer.Exit(run(settings, get_local_user()))
