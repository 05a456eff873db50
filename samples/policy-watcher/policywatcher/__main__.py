"""`python -m policywatcher`: runs until SIGTERM or SIGINT. Exit code 2 for a wrong setting."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
from queue import SimpleQueue
from threading import Event, Thread

from policywatcher.cluster import Cluster, ClusterError
from policywatcher.options import OptionError, Options
from policywatcher.watcher import Watcher, log

#: Seconds for a running request at the end; after that, a request to a hanging API server is abandoned.
_GRACE = 2.0


def main() -> int:
    """Return the program."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO, stream=sys.stderr)
    # Suppress this logger, which repeats each refused request that the watcher already logs.
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    # The handler does not raise an exception, because Python drops exceptions while it deletes an object. It puts the
    # exit code into a SimpleQueue, because a handler interrupts its own thread anywhere, where Event.set is not safe.
    exit_codes: SimpleQueue[int] = SimpleQueue()
    # Without handlers, the first process of a container would ignore SIGTERM.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: exit_codes.put(0))
    stop = Event()

    def watch() -> None:
        code = 1
        try:
            code = _watch(stop)
        finally:
            exit_codes.put(code)

    watching = Thread(target=watch, name="watch", daemon=True)
    watching.start()
    code = exit_codes.get()
    stop.set()
    watching.join(_GRACE)
    if code == 0:
        log.info("ended")
    return code


def _watch(stop: Event) -> int:
    """Run until `stop` is set, or return the exit code for a wrong setting at once."""
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
        Watcher(cluster, options.stable_duration).run(options.poll_interval, stop)
    return 0


sys.exit(main())
