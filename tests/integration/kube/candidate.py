"""A process that campaigns for a lease and writes down what happens, with the time (CLOCK_MONOTONIC, seconds).

usage: candidate.py KUBECONFIG NAMESPACE IDENTITY CLOCK_OFFSET_SECONDS
"""

from __future__ import annotations

import contextlib
import datetime
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import dsf.kube.leader
from dsf.kube.leader import LeaderElector
from dsf.kube.session import Session


def say(state: str) -> None:
    print(state, time.monotonic(), flush=True)


def main(kubeconfig: str, namespace: str, identity: str, offset: str) -> None:
    shift = datetime.timedelta(seconds=float(offset))
    dsf.kube.leader._format_now = lambda: (datetime.datetime.now(datetime.UTC) + shift).strftime(
        "%Y-%m-%dT%H:%M:%S.%fZ"
    )
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())

    def lost() -> None:
        say("lost")
        stop.set()

    with contextlib.closing(Session.load(Path(kubeconfig))) as session:
        elector = LeaderElector(
            session, namespace, on_started=lambda: say("leading"), on_lease_lost=lost, identity=identity
        )
        request = session.request

        def telling(method: str, path: str, **options: Any) -> Any:
            if ((options.get("body") or {}).get("spec") or {}).get("holderIdentity") == "":
                say("still-leading" if elector.is_leading else "handing")
            return request(method, path, **options)

        session.request = telling  # type: ignore[method-assign]
        elector.start()
        say("campaigning")
        stop.wait()
        elector.release()
        say("ended")


if __name__ == "__main__":
    main(*sys.argv[1:])
