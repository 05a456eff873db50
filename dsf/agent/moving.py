"""Move to another Redis: the worker shuts down regularly and restarts in the same process.

Running cycles are finished and sent to the Redis that their tick came from.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Final

from celery.worker import state

import dsf.log
from dsf.errors import SettingsError
from dsf.redislink import address
from dsf.settings import ENV_PREFIX, Settings

log = dsf.log.get(__name__)

#: Exit code of a worker that ended by itself. A signal sets 0, also afterwards.
_MOVING: Final = 75
# Its stubs lack the codes.
_codes: Any = state


class Moving:
    """Follows the Redis URL delivered by the hub."""

    def __init__(self, settings: Settings) -> None:
        self._own = settings.resolved_redis_url()
        self._used = str(address.parse(settings.current_redis_url()))
        self._url = ""

    def heard(self, url: str) -> None:
        """The hub has set this Redis URL; empty: that of the agent's settings. Called by any thread."""
        try:
            said = str(address.parse(url or self._own))
        except SettingsError as error:
            log.error("where Redis is cannot be read, the agent stays", problem=str(error))
            return
        if said == self._used:
            return
        log.info("this cluster's Redis is another one now", redis=said, before=self._used)
        self._url = url
        _codes.should_stop = _MOVING

    def go(self) -> None:
        """Restart if that is why the worker ended; else return."""
        if _codes.should_stop != _MOVING:
            return
        os.environ[f"{ENV_PREFIX}AGENT_REDIS_URL"] = self._url
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(sys.executable, [sys.executable, "-m", "dsf.agent"])  # noqa: S606 (no user input)
