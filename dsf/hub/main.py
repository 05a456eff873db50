"""`dsf hub`: run the hub controller until shutdown.

On Kubernetes several may run; one leads, the others wait for its lease.
"""

from __future__ import annotations

import os
import signal
import sys
from queue import SimpleQueue
from typing import Final

import dsf.log
from dsf.backends import make_backend, make_election
from dsf.errors import DsfError, SettingsError
from dsf.hub.exposition import HubExposition
from dsf.hub.hub import Hub
from dsf.process import memory
from dsf.process.launch import FAILED, USAGE
from dsf.process.threads import background
from dsf.settings import Settings

log = dsf.log.get(__name__)

#: Exit codes: regular shutdown; failed start or lost lease; wrong settings.
OK: Final = 0
#: Seconds to wait for an interrupted start; it may be in an unanswered request to the API server.
START_TIMEOUT: Final = 2.0


class _Ended:
    """Shutdown was requested."""


class _Leading:
    """This hub is the leader."""


_Happened = _Ended | _Leading | BaseException


def run(settings: Settings) -> int:
    """Run until SIGTERM or SIGINT; returns the exit code. Call it in the main thread."""
    dsf.log.setup(settings)
    memory.prepare()
    # Not an Event: only SimpleQueue.put is safe in a signal handler, which interrupts its own thread anywhere.
    happened: SimpleQueue[_Happened] = SimpleQueue()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: happened.put(_Ended()))
    try:
        election = make_election(settings, lambda: happened.put(_Leading()), _stop_writing)
        hub = Hub(settings, make_backend(settings))
        exposition = HubExposition(settings, hub, election)
    except SettingsError as error:
        log.error("wrong settings", error=str(error))
        return USAGE
    memory.settle()
    log.info("hub controller waits for its turn", backend=settings.backend)
    election.start()
    exposition.start()
    try:
        if isinstance(happened.get(), _Ended):
            return OK
        return _work(hub, happened)
    finally:
        hub.stop()
        exposition.stop()
        # Last: another hub takes over as soon as this is done.
        election.stop()


def _work(hub: Hub, happened: SimpleQueue[_Happened]) -> int:
    """Work until shutdown, also during startup; returns the exit code."""

    def start() -> None:
        try:
            hub.start()
        except BaseException as error:  # noqa: BLE001 (handed over to the main thread)
            happened.put(error)

    starting = background(start, "start")
    while isinstance(event := happened.get(), _Leading):
        log.debug("leading already")
    if isinstance(event, SettingsError):
        log.error("wrong settings", error=str(event))
        return USAGE
    if isinstance(event, DsfError):
        log.error("the hub controller cannot start", error=str(event))
        return FAILED
    if isinstance(event, BaseException):
        raise event
    if starting.is_alive():
        hub.interrupt()
        starting.join(START_TIMEOUT)
    return OK


def _stop_writing() -> None:
    """The lease is lost. Threads may be in the middle of a write; only the process's end stops them."""
    sys.stderr.flush()
    os._exit(FAILED)
