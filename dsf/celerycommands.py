"""Flower's command line, each flag with its reason."""

from __future__ import annotations

import sys

from dsf.listening import EVERYWHERE

_CELERY = (sys.executable, "-m", "celery", "-A", "dsf.celery")

#: Tasks that Flower keeps. Its default of 100,000 takes hundreds of MB.
_FLOWER_TASKS = 10_000
#: Seconds after which a worker that is gone leaves Flower's list.
_FLOWER_PURGE = 600


def flower(address: str, port: int, *, read_only: bool = True) -> list[str]:
    """Flower, to look at tasks; to start some as well unless it is read-only."""
    return [
        *_CELERY,
        "flower",
        # Tornado takes `::` for IPv6 alone, and nothing for everything.
        f"--address={'' if address == EVERYWHERE else address}",
        f"--port={port}",
        # Otherwise every user who opens the page may start tasks.
        *(["--read_only"] if read_only else []),
        # Workers send events anyway; the default asks every worker of the fleet for them every 5 s.
        "--enable_events=False",
        f"--max_tasks={_FLOWER_TASKS}",
        f"--purge_offline_workers={_FLOWER_PURGE}",
        # The arguments are scorer and run id: what a person looks for.
        "--tasks_columns=name,args,state,received,started,runtime,worker,uuid",
    ]
