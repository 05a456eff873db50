"""Runs `python -m dsf.ROLE`: one process of this project, without the command line.

The module's imports are deferred, because `install_signal_handlers` must run before the slow imports.
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


def install_signal_handlers() -> None:
    """Let signals end process 1 of a container until the process installs its own handlers.

    Linux drops signals to process 1 that have no handler. Without this one, a pod that is deleted during the imports
    would run until the end of its grace period.
    """
    if os.getpid() == 1:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda number, _: os._exit(128 + number))


def launch(role: str, run: str) -> NoReturn:
    """Call `run` (`module:function`) with the settings of the environment, and exit with the code that it returns.

    Errors of the project become one line on standard error.
    """
    install_signal_handlers()
    # Celery's worker restarts at SIGHUP with `sys.argv`, whose first item Python replaces with a file for `-m`.
    sys.argv = sys.orig_argv[1:]
    # Receivers of Celery's signals read the role from the environment.
    os.environ["DSF_ROLE"] = role
    from dsf.errors import DsfError, SettingsError
    from dsf.settings import settings

    try:
        sys.exit(pkgutil.resolve_name(run)(settings()))
    except DsfError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(USAGE if isinstance(error, SettingsError) else FAILED)
