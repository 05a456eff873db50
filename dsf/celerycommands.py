"""Flower's command line, with a reason for each flag."""

from __future__ import annotations

import sys

from dsf.listening import EVERYWHERE

_CELERY = (sys.executable, "-m", "celery", "-A", "dsf.celery")

#: Tasks that Flower keeps. Its default of 100,000 takes hundreds of MB.
_FLOWER_TASKS = 10_000
#: Seconds after which Flower removes a stopped worker from its list.
_FLOWER_PURGE = 600


def flower(address: str, port: int, *, read_only: bool = True) -> list[str]:
    """Flower's command line; unless read-only, users may also start tasks."""
    return [
        *_CELERY,
        "flower",
        # Tornado takes `::` as IPv6 only, and an empty address as all addresses.
        f"--address={'' if address == EVERYWHERE else address}",
        f"--port={port}",
        # Otherwise every user of the page may start tasks.
        *(["--read_only"] if read_only else []),
        # Workers always send events; the default requests them from every worker of the fleet every 5 s.
        "--enable_events=False",
        f"--max_tasks={_FLOWER_TASKS}",
        f"--purge_offline_workers={_FLOWER_PURGE}",
        # The arguments are scorer and run id, which users search for.
        "--tasks_columns=name,args,state,received,started,runtime,worker,uuid",
    ]
