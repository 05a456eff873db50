"""Commands that run one process of the system until it is stopped.

The commands read their settings from `DSF_` variables; the most common settings are also options. They ignore running
demos, because a process that joins another system by accident would be hard to find.
"""

from __future__ import annotations

import importlib.util
import os
import pkgutil
import sys
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer

ManifestsOption = Annotated[
    Path | None, typer.Option("--manifests", help="Folder of manifests (backend dir).", exists=True, file_okay=False)
]


def hub(
    target: Annotated[
        str | None,
        typer.Option("--target", "-t", help="Services, with commas: controller, beat, results, web; default all."),
    ] = None,
    backend: Annotated[
        Literal["kube", "dir"] | None, typer.Option("--backend", help="Storage of the objects: Kubernetes or a folder.")
    ] = None,
    manifests: ManifestsOption = None,
    host: Annotated[
        str | None,
        typer.Option(
            "--host", help="Address of all ports; default: 127.0.0.1 for the page, all addresses for the probes."
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option("--port", min=0, max=65535, help="Port of the service web; default 8080, 0 takes a free one."),
    ] = None,
    auth: Annotated[
        Literal["none", "local", "open", "anyone", "token", "kubernetes", "proxy"] | None,
        typer.Option("--auth", help="Authentication of the page's users; none and local only on this machine."),
    ] = None,
    allow_actions: Annotated[
        bool, typer.Option("--allow-actions", help="The same as --auth local: users of this machine may act.")
    ] = False,
    end_sessions: Annotated[
        bool, typer.Option("--end-sessions", help="Only end the logins of all users of the page.")
    ] = False,
    leave: Annotated[
        bool, typer.Option("--leave", help="Before an uninstallation: stop the hub, delete what it delivered.")
    ] = False,
) -> None:
    """Run the services of the hub in one process: controller, beat, results and web, or some of them.

    Example: dsf hub --backend dir --manifests my-manifests
    """
    if allow_actions and auth not in (None, "none", "local"):
        raise typer.BadParameter(f"auth {auth} itself says who may act", param_hint="--allow-actions")
    from dsf.settings import Settings, describe_target_error

    if target is not None and (error := describe_target_error(target)):
        raise typer.BadParameter(error, param_hint="--target")
    _set_environment(
        role="hub",
        target=target,
        backend=backend,
        manifests=manifests,
        listen_host=host,
        listen_port=port,
        web_auth="local" if allow_actions else auth,
    )
    if leave:
        _run_process("dsf.hub.uninstall:run")
    # Load the settings in this process, so that the command reports invalid ones.
    settings = Settings.load()
    if end_sessions:
        from dsf.store.client import connect
        from dsf.web.sessions import Sessions

        Sessions(connect(settings, name="dsf-web")).end_all()
        return
    if importlib.util.find_spec("fastapi") is None:
        # Report the missing package here: in the image of agents, the new process would print only a traceback.
        raise ModuleNotFoundError(name="fastapi")
    # Replace this process by one without the modules of the command line, to save memory.
    _replace_process([sys.executable, "-P", "-m", "dsf.hub"])


def agent(
    cluster: Annotated[
        str | None, typer.Option("--cluster", "-c", help="Name of the managed cluster; default DSF_CLUSTER.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only check the way to the hub's Redis, step by step; takes no tick.")
    ] = False,
) -> None:
    """Run the agent of one managed cluster.

    Example: dsf agent --cluster worker01
    """
    _run_process("dsf.agent.check:run" if check else "dsf.agent.main:run", role="agent", cluster=cluster)


def flower(
    address: Annotated[str, typer.Option("--address", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Port.")] = 5555,
    read_only: Annotated[
        bool, typer.Option("--read-only/--no-read-only", help="Read-only, or allow starting tasks from its API.")
    ] = True,
) -> None:
    """Run Flower: tasks by name with scorer and run id. It has no login; put a proxy in front to share it.

    With --no-read-only, its Redis user needs the right to push ticks, as dsf-flower-tasks has.

    Example: dsf flower --port 5555
    """
    from dsf.worker import commands

    if importlib.util.find_spec("flower") is None:
        # Report the missing package here: in the image of agents, Celery would only report an unknown command.
        raise ModuleNotFoundError(name="flower")
    _set_environment(role="flower")
    _replace_process(commands.make_flower_command(address, port, read_only=read_only))


def _run_process(function: str, **values: object) -> NoReturn:
    """Run a function with these settings and those of the environment, and exit with the code that it returns.

    `function` is `<module>:<name>`.
    """
    _set_environment(**values)
    # Import the function after setting the variables, because Celery's application reads the settings on import.
    run = pkgutil.resolve_name(function)
    from dsf.settings import Settings

    raise typer.Exit(run(Settings.load()))


def _set_environment(**values: object) -> None:
    """Set the `DSF_` variables of these settings, except for None. Call it before the process reads its settings."""
    for name, value in values.items():
        if value is not None:
            os.environ[f"DSF_{name.upper()}"] = str(value)


def _replace_process(command: list[str]) -> NoReturn:
    """Replace this process by `command`, which then receives its signals and sets its exit code."""
    sys.stdout.flush()
    os.execv(command[0], command)  # noqa: S606  # a list that we built; no shell
