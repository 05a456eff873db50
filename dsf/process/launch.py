"""`python -m dsf.ROLE`: one process of this project, without the command line.

This module imports nothing of the project at first: `end_when_told` has to come before what takes long to import.
"""

from __future__ import annotations

import os
import pkgutil
import signal
import sys
from typing import Final, NoReturn

#: Exit codes of all roles: failure; a setting is missing or wrong.
FAILED: Final = 1
USAGE: Final = 2


def end_when_told() -> None:
    """Let signals end this process until it handles them itself.

    Linux ignores signals to process 1 of a container that has no handler for them, so a pod that is deleted while its
    process imports would be waited for until its grace period is over.
    """
    if os.getpid() == 1:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda number, _: os._exit(128 + number))


def launch(role: str, run: str) -> NoReturn:
    """Call `run` (`module:function`) with this role and the settings of the environment; exit with what it returns.

    The project's own errors are one line on standard error, not a traceback.
    """
    end_when_told()
    # Celery's worker restarts at SIGHUP with the words of `sys.argv`, of which the first is a file after `-m`.
    sys.argv = sys.orig_argv[1:]
    # Celery's signals have no other way to know it.
    os.environ["DSF_ROLE"] = role
    from dsf.errors import DsfError, SettingsError
    from dsf.settings import settings

    try:
        sys.exit(pkgutil.resolve_name(run)(settings()))
    except DsfError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(USAGE if isinstance(error, SettingsError) else FAILED)
