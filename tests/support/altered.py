"""Runs a module as `python -m` does, in a process that is different in one point.

    python altered.py [--clock SECONDS] [--run-slack SECONDS] [--calls FILE] MODULE [ARGUMENT ...]

`--clock` puts the wall clock forward (or back) by so much, for everything in Python that asks for the time of day.
`--run-slack` is how long after its expiry a run without a result stays open, in place of `dsf.store.ticks.RUN_SLACK`.
`--calls` writes several times a second how often each function of dsf (`module:name`) was called, as JSON.
"""

from __future__ import annotations

import argparse
import datetime as datetime_module
import json
import os
import runpy
import sys
import threading
import time
from types import FrameType
from typing import Any

_Real = datetime_module.datetime


def shift_clock(seconds: float) -> None:
    """Shift the clock. Call this before any other import: names that were imported from these modules do not change."""
    real_time, real_time_ns = time.time, time.time_ns

    class _Meta(type):
        # Instances that the module's C functions return belong to the real class.
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, _Real)

    class _Shifted(_Real, metaclass=_Meta):
        @classmethod
        def now(cls, tz: datetime_module.tzinfo | None = None) -> Any:
            return _Real.fromtimestamp(real_time() + seconds, tz)

        @classmethod
        def utcnow(cls) -> Any:
            return _Real.fromtimestamp(real_time() + seconds, datetime_module.UTC).replace(tzinfo=None)

    time.time = lambda: real_time() + seconds
    time.time_ns = lambda: real_time_ns() + int(seconds * 1e9)
    datetime_module.datetime = _Shifted  # type: ignore[misc]


def count_calls(file: str) -> None:
    """Count the calls of all threads from now on, and write the counts to a file."""
    calls: dict[str, int] = {}

    def profile(frame: FrameType, event: str, _: object) -> None:
        # Most calls are of other modules, and each call has a return event as well.
        if event == "call" and (name := str(frame.f_globals.get("__name__", ""))).startswith("dsf."):
            function = f"{name}:{frame.f_code.co_qualname}"
            calls[function] = calls.get(function, 0) + 1

    def write() -> None:
        while True:
            time.sleep(0.2)
            with open(f"{file}.new", "w") as draft:
                json.dump(calls.copy(), draft)
            os.replace(f"{file}.new", file)

    threading.Thread(target=write, daemon=True).start()
    threading.setprofile(profile)
    sys.setprofile(profile)


def main() -> None:
    """Read the arguments and run the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--clock", type=float, default=0.0)
    parser.add_argument("--run-slack", type=float)
    parser.add_argument("--calls")
    parser.add_argument("module")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    if arguments.clock:
        shift_clock(arguments.clock)
    if arguments.run_slack is not None:
        from dsf.store import ticks

        ticks.RUN_SLACK = arguments.run_slack
    if arguments.calls is not None:
        count_calls(arguments.calls)
    sys.argv = [arguments.module, *arguments.arguments]
    runpy.run_module(arguments.module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
