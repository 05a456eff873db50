"""Runs `python -m dsf.ROLE`: one process of this project, without the command line.

Functions import other modules of the project late, because `install_signal_handlers` must run before slow imports.
"""

from __future__ import annotations

import os
import pkgutil
import signal
import sys
from typing import Final, NoReturn

#: Exit code of all roles after a failure.
EXIT_FAILURE: Final = 1
#: Exit code of all roles for a missing or wrong setting.
EXIT_USAGE: Final = 2


def install_signal_handlers() -> None:
    """Let signals end process 1 of a container until the process installs its own handlers.

    Linux drops signals to process 1 that have no handler. Without these handlers, a pod that is deleted during the
    imports would run until the end of its grace period.
    """
    if os.getpid() == 1:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda number, _: os._exit(128 + number))


def launch(role: str, function: str) -> NoReturn:
    """Call a function with the settings of the environment, and exit with the code that it returns.

    `function` is `<module>:<name>`. Prints an error of the project as one line to standard error.
    """
    install_signal_handlers()
    # Restore the arguments: Celery's worker restarts at SIGHUP with `sys.argv`, in which Python has replaced `-m` and
    # the module by a file.
    sys.argv = sys.orig_argv[1:]
    # Set the role for the receivers of Celery's signals, which read it from the environment.
    os.environ["DSF_ROLE"] = role
    from dsf.errors import DsfError, SettingsError
    from dsf.settings import settings

    try:
        sys.exit(pkgutil.resolve_name(function)(settings()))
    except DsfError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(EXIT_USAGE if isinstance(error, SettingsError) else EXIT_FAILURE)
