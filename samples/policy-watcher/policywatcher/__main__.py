"""`python -m policywatcher`: runs until it is told to stop. Exit code 2 for a wrong setting."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
from threading import Event
from types import FrameType

from policywatcher.cluster import Cluster, ClusterError
from policywatcher.options import OptionError, Options
from policywatcher.watcher import Watcher, log

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class _EndedError(BaseException):
    """A signal came. It goes through whatever is waited for, an API server that hangs included."""


def _end(number: int, frame: FrameType | None) -> None:
    for one in _SIGNALS:
        # Once is enough, and connections are being closed.
        signal.signal(one, signal.SIG_IGN)
    raise _EndedError


def main() -> int:
    """The program."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO, stream=sys.stderr)
    # It says for every refused request what is in our own message already.
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    # As the first process of a container it would otherwise not hear SIGTERM at all.
    for number in _SIGNALS:
        signal.signal(number, _end)
    try:
        return _watch()
    except _EndedError:
        log.info("ended")
        return 0


def _watch() -> int:
    """Until a signal ends it, or at once with the exit code for a wrong setting."""
    try:
        options = Options.read(os.environ)
        cluster = Cluster.connect(options.namespace, options.claim)
    except (OptionError, ClusterError) as error:
        log.error("%s", error)
        return 2
    log.info(
        "watching policies namespace=%s claim=%s interval=%gs stable=%gs",
        options.namespace,
        options.claim,
        options.poll_interval,
        options.stable_duration,
    )
    with contextlib.closing(cluster):
        Watcher(cluster, options.stable_duration).run(options.poll_interval, Event())
    return 0


sys.exit(main())
