"""A cluster's Redis is another one from now on: the worker ends as if it was told to, and begins anew in its process.

What has begun is finished and sent to where its tick came from.
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

#: As a worker's exit code: it ended by itself. A signal says 0, also when it comes after this.
_MOVING: Final = 75
# Its types know no codes.
_codes: Any = state


class Moving:
    """Follows what the hub says of where Redis is."""

    def __init__(self, settings: Settings) -> None:
        self._own = settings.resolved_redis_url()
        self._used = str(address.parse(settings.current_redis_url()))
        self._url = ""

    def heard(self, url: str) -> None:
        """The hub says that Redis is there; empty: where the agent's own settings say. Called by any thread."""
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
        """Begin anew if that is why the worker ended; returns if it is not."""
        if _codes.should_stop != _MOVING:
            return
        os.environ[f"{ENV_PREFIX}AGENT_REDIS_URL"] = self._url
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(sys.executable, [sys.executable, "-m", "dsf.agent"])  # noqa: S606 (nothing of it is anybody's text)
