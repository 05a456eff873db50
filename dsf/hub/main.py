"""`dsf hub`: run the hub controller until it is told to end."""

from __future__ import annotations

import signal
import threading

import dsf.log
from dsf.errors import DsfError, SettingsError
from dsf.hub.backends import make_backend
from dsf.hub.hub import Hub
from dsf.settings import Settings

log = dsf.log.get(__name__)

#: Exit codes: ended as asked, could not start, wrong settings.
OK, FAILED, USAGE = 0, 1, 2


def run(settings: Settings) -> int:
    """Run until SIGTERM or SIGINT; returns the exit code. To be called in the main thread."""
    dsf.log.setup(settings)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    try:
        hub = Hub(settings, make_backend(settings))
    except SettingsError as error:
        log.error("wrong settings", error=str(error))
        return USAGE
    try:
        hub.start()
        ended.wait()
    except SettingsError as error:
        log.error("wrong settings", error=str(error))
        return USAGE
    except DsfError as error:
        log.error("the hub controller cannot start", error=str(error))
        return FAILED
    finally:
        hub.stop()
    return OK
