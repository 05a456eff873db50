"""`python -m dsf.ROLE`: one process of this project, without the command line."""

from __future__ import annotations

import pkgutil
import sys
from typing import Final

#: Exit codes of all roles: failure; a setting is missing or wrong.
FAILED: Final = 1
USAGE: Final = 2


def launch(role: str) -> int:
    """Call `module:function` with the settings of the environment; returns the exit code of the process.

    The project's own errors are one line on standard error, not a traceback.
    """
    from dsf.errors import DsfError, SettingsError
    from dsf.settings import settings

    try:
        return int(pkgutil.resolve_name(role)(settings()))
    except DsfError as error:
        print(f"error: {error}", file=sys.stderr)
        return USAGE if isinstance(error, SettingsError) else FAILED
