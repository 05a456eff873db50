"""`python -m dsf.ROLE`: one process of this project, without the command line."""

from __future__ import annotations

import os
import pkgutil
import sys
from typing import Final, NoReturn

#: Exit codes of all roles: failure; a setting is missing or wrong.
FAILED: Final = 1
USAGE: Final = 2


def launch(role: str, run: str) -> NoReturn:
    """Call `run` (`module:function`) with this role and the settings of the environment; exit with what it returns.

    The project's own errors are one line on standard error, not a traceback.
    """
    # The Celery application has no other way to know it.
    os.environ["DSF_ROLE"] = role
    from dsf.errors import DsfError, SettingsError
    from dsf.settings import settings

    try:
        sys.exit(pkgutil.resolve_name(run)(settings()))
    except DsfError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(USAGE if isinstance(error, SettingsError) else FAILED)
