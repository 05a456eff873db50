"""The command group with error handling and exit codes.

Exit codes: 0 ok; 1 a problem with the queried object, or an error in one line on stderr; 2 wrong usage; 130 Ctrl-C.
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from dsf.cli import context
from dsf.cli.output import flatten
from dsf.errors import ContextError, DsfError
from dsf.extras import describe_missing_extra, read_extras

#: Exit code for a problem or an error.
EXIT_FAILURE = 1
#: Exit code for wrong usage.
EXIT_USAGE = 2
#: Exit code after Ctrl-C: 128 plus the number of SIGINT.
EXIT_INTERRUPTED = 130

#: Packages that the Dockerfile omits from the agent's image.
_PACKAGES_NOT_IN_AGENTS = ("cryptography", "fastapi", "flower", "jinja2", "starlette", "uvicorn")

#: Name that a user may take for a command -> the service of the hub. `exporter` was a command of earlier versions.
_SERVICES = {name: name for name in ("controller", "beat", "results", "web")} | {"exporter": "web"}

#: Typer app that is never run: typer converts the annotations of its only command into options.
_options_app = typer.Typer(add_completion=False)


@_options_app.command()
def _declare_fleet_options(
    name_or_folder: Annotated[
        str | None,
        typer.Option(
            "--demo",
            metavar="NAME|FOLDER",
            callback=context.select_demo,
            expose_value=False,
            help="Use this running demo, even if environment variables select another fleet. Default: the demo of the "
            "current folder.",
        ),
    ] = None,
    kubeconfig: Annotated[
        Path | None,
        typer.Option(
            "--kubeconfig",
            metavar="FILE",
            callback=context.choose_kubeconfig,
            expose_value=False,
            help="Use the hub of this kubeconfig. Default: KUBECONFIG, else ~/.kube/config.",
        ),
    ] = None,
    kube_context: Annotated[
        str | None,
        typer.Option(
            "--context",
            metavar="NAME",
            callback=context.choose_kube_context,
            expose_value=False,
            help="Use the hub of this context of the kubeconfig. Default: the current context.",
        ),
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace",
            "-n",
            metavar="NAME",
            callback=context.choose_namespace,
            expose_value=False,
            help="Use the kubeconfig, and act on the DynamicScorer of this namespace. Default: DSF_NAMESPACE.",
        ),
    ] = None,
    all_namespaces: Annotated[
        bool,
        typer.Option(
            "--all-namespaces",
            "-A",
            callback=context.choose_all_namespaces,
            expose_value=False,
            help="Use the kubeconfig and all namespaces, which is also the default: reads show the whole fleet.",
        ),
    ] = False,
) -> None:
    """Declare the options of commands about a fleet. This function is not called: only its options are used."""


_FLEET_OPTIONS = get_command(_options_app).params


class FleetCommand(TyperCommand):
    """Command about a fleet, with the options that select it: a running demo, or a kubeconfig and a namespace."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.extend(_FLEET_OPTIONS)

    def invoke(self, ctx: Any) -> Any:
        """Run the command with less garbage collection."""
        # With the default threshold, the collector would scan all imported objects repeatedly, and free almost nothing.
        gc.set_threshold(100_000)
        return super().invoke(ctx)


class CommandGroup(TyperGroup):
    """Group of all commands, which converts exceptions into error messages of one line and exit codes.

    It handles the errors of the project and of Redis, missing extras and packages, closed pipes and Ctrl-C. Any other
    exception is a bug and is printed with its traceback.
    """

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command; None if it is unknown.

        Exit with an error for the name of a service, or if the command needs an extra that is not installed.
        """
        command = super().get_command(ctx, cmd_name)
        if command is None and cmd_name in read_extras():
            fail(describe_missing_extra(read_extras()[cmd_name]))
        if command is None and cmd_name in _SERVICES:
            fail(f"there is no command {cmd_name}: run `dsf hub --target {_SERVICES[cmd_name]}`", EXIT_USAGE)
        return command

    def invoke(self, ctx: Any) -> Any:
        """Run the selected command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Exit(EXIT_INTERRUPTED) from None
        except BrokenPipeError:
            # Remove the stream: a reader such as `head` has closed the pipe, and Python would flush the stream at exit.
            sys.stdout = None
            raise typer.Exit(EXIT_FAILURE) from None
        except DsfError as error:
            fail(str(error), EXIT_USAGE if isinstance(error, ContextError) else EXIT_FAILURE)
        except ModuleNotFoundError as error:
            name = (error.name or "").partition(".")[0]
            if name in read_extras():
                fail(describe_missing_extra(read_extras()[name]))
            if name not in _PACKAGES_NOT_IN_AGENTS:
                raise
            fail(
                f"this needs {name}, which the agent's image leaves out: use the hub's image, or "
                f"pip install dynamic-scoring-framework"
            )
        except Exception as error:
            if not _is_redis_error(error):
                raise
            from dsf.cli.session import describe_redis_error

            fail(describe_redis_error(error))


def fail(message: str, code: int = EXIT_FAILURE) -> None:
    """Print the message as one line to stderr, and exit with this code."""
    typer.echo(f"error: {flatten(message)}", err=True)
    raise typer.Exit(code) from None


def _is_redis_error(error: Exception) -> bool:
    # Do not import redis, which would slow down every command. The module that raised the error has imported it.
    module = sys.modules.get("redis")
    return module is not None and isinstance(error, module.RedisError)
