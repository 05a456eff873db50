"""The group of all commands: what happens when one fails.

Exit codes: 0 ok; 1 the thing asked about is bad, or an error that one line on stderr explains; 2 wrong usage;
130 Ctrl-C.
"""

from __future__ import annotations

import sys
from typing import Any

import typer
from typer.core import TyperGroup

from dsf.errors import DsfError

BAD = 1
USAGE = 2
INTERRUPTED = 130


class CommandGroup(TyperGroup):
    """Turns our own errors into one line and an exit code. Other errors are bugs and keep their traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was named."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            # The reader, such as `head`, has seen enough. Nothing may be flushed into the closed pipe at exit.
            sys.stdout = None
            raise typer.Exit(BAD) from None
        except DsfError as error:
            fail(str(error))
        except Exception as error:
            if not _is_redis_error(error):
                raise
            from dsf.cli.session import redis_hint

            fail(redis_hint(error))


def fail(message: str) -> None:
    """Say what is wrong in one line on stderr and end with exit code 1."""
    from dsf.cli.output import flat

    typer.echo(f"error: {flat(message)}", err=True)
    raise typer.Exit(BAD) from None


def _is_redis_error(error: Exception) -> bool:
    # Whoever raised one has imported redis; importing it here would make every command slower.
    module = sys.modules.get("redis")
    return module is not None and isinstance(error, module.RedisError)
