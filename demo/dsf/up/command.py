"""`dsf up`: the hub on a folder of manifests, with local agents, until Ctrl-C."""

from __future__ import annotations

import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from dsf.up.stack import Stack

#: Seconds between two checks of children and clusters.
TICK = 0.25
#: Seconds within which every server must respond: a slow machine starts many programs at once.
START_TIMEOUT = 60.0

RedisOption = Annotated[
    str | None,
    typer.Option(
        "--redis-url",
        help="Use this Redis; default: an embedded one. Data of another hub there would be replaced, so "
        "DSF_REDIS_URL is ignored. Other users of this machine can see a password here; use --redis-url-file.",
    ),
]
RedisFileOption = Annotated[
    Path | None,
    typer.Option(
        "--redis-url-file",
        help="File with the URL, in place of --redis-url; read once, at startup.",
        exists=True,
        dir_okay=False,
    ),
]


def add(app: typer.Typer) -> None:
    """Add the command to `dsf`."""
    app.command(rich_help_panel="Run a process")(up)


def up(
    manifests: Annotated[
        Path,
        typer.Option("--manifests", help="Folder of manifests; changes are picked up.", exists=True, file_okay=False),
    ],
    backend: Annotated[
        Literal["dir"], typer.Option("--backend", help="Only dir: on Kubernetes, use the chart.")
    ] = "dir",
    redis_url: RedisOption = None,
    redis_url_file: RedisFileOption = None,
    out_dir: Annotated[
        Path | None, typer.Option("--out-dir", help="Output folder for statuses and scores; default MANIFESTS/_out.")
    ] = None,
    state_dir: Annotated[
        Path | None,
        typer.Option("--state-dir", help="Redis' data and logs; default a folder below ~/.local/state/dsf."),
    ] = None,
    agents: Annotated[bool, typer.Option(help="Run an agent for every accepted cluster on this machine.")] = True,
    flower: Annotated[bool, typer.Option(help="Run Flower.")] = True,
) -> None:
    """Run everything on a folder of manifests: the hub with its page, Flower and local agents.

    Scores and overrides of the schedule survive restarts. Ctrl-C ends all processes.

    Example: dsf up --backend dir --manifests my-manifests
    """
    from dsf.up.ports import Ports
    from dsf.up.stack import Stack, StackOptions
    from dsf.up.statefolder import get_default_state_dir, lock_state
    from dsf.up.supervisor import run_supervisor

    manifests = manifests.resolve()
    state_dir = (state_dir or get_default_state_dir(manifests)).resolve()
    options = StackOptions(
        manifests=manifests,
        out_dir=(out_dir or manifests / "_out").resolve(),
        state_dir=state_dir,
        redis_url=find_foreign_redis(redis_url, redis_url_file),
        agents=agents,
        flower=flower,
    )
    with lock_state(state_dir):
        try:
            with run_supervisor(state_dir, say) as supervisor, Stack(options, supervisor, Ports(say), say) as stack:
                stack.start()
                with announce_stack(stack, manifests.name):
                    supervisor.wait_ready(START_TIMEOUT, meanwhile=stack.update_agents)
                    _print_addresses(stack)
                    while True:
                        stack.update_agents()
                        supervisor.check()
                        time.sleep(TICK)
        except KeyboardInterrupt:
            say("all processes have ended; the schedule's overrides and the scores are kept")


def find_foreign_redis(url: str | None, file: Path | None) -> str | None:
    """Return the URL of --redis-url, or the one in the file of --redis-url-file; None for an embedded Redis.

    Raises typer.BadParameter if both options are set, if the file cannot be read, or if the URL is invalid. The error
    does not quote the URL, which may contain a password.
    """
    from dsf.errors import SettingsError
    from dsf.redislink import address

    if url is not None and file is not None:
        raise typer.BadParameter("give one of --redis-url and --redis-url-file", param_hint="--redis-url")
    option_name = "--redis-url"
    if file is not None:
        option_name = "--redis-url-file"
        try:
            url = file.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise typer.BadParameter(f"cannot read {file}: {error.strerror}", param_hint=option_name) from None
        except UnicodeDecodeError:
            raise typer.BadParameter(f"not text: {file}", param_hint=option_name) from None
    if url is None:
        return None
    try:
        address.parse(url)
    except SettingsError as error:
        # The URL is not from the environment variable that the error names.
        raise typer.BadParameter(str(error).removeprefix("DSF_REDIS_URL: "), param_hint=option_name) from None
    return url


def say(text: str) -> None:
    """Print a message to standard error, because standard output is for data."""
    from dsf.cli.output import escape_control_characters

    typer.echo(f"dsf: {escape_control_characters(text)}", err=True)


@contextmanager
def announce_stack(
    stack: Stack, name: str, host_aliases: Mapping[str, Mapping[str, str]] | None = None
) -> Iterator[None]:
    """Publish this stack to commands in other terminals under `name`.

    `host_aliases` maps each cluster to the host aliases of its agent.
    """
    from dsf.cli import context

    with ExitStack() as exit_stack:
        try:
            exit_stack.enter_context(
                context.publish_demo(
                    redis_url=stack.redis_url,
                    name=name,
                    manifests=stack.options.manifests,
                    out_dir=stack.options.out_dir,
                    host_aliases=host_aliases,
                )
            )
        except OSError as error:
            folder = context.get_folder()
            say(f"commands in other terminals will not find this run: cannot write into {folder}: {error.strerror}")
        yield


def _print_addresses(stack: Stack) -> None:
    from dsf.cli.output import make_console

    values_by_label = {
        "page": stack.web_url,
        "manifests": str(stack.options.manifests),
        "written": str(stack.options.out_dir),
        "state, logs": str(stack.options.state_dir),
        "Redis": stack.redis_address,
        "metrics": f"{stack.web_url}/metrics",
        "Flower": stack.flower_url or "off",
    }
    for label, value in values_by_label.items():
        make_console().print(f"{label:<12} {value}")
    make_console().print("Look around with `dsf status` in another terminal. Ctrl-C ends everything.")
