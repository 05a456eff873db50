"""Signals between tasks, writer and sweeper of one results worker. One set per process."""

from __future__ import annotations

import threading

#: Set at shutdown of the worker.
stopping = threading.Event()
#: Set when a pair must be checked now, to wake the writer early.
wake = threading.Event()
#: Lists of this process's channels for messages that left the queue and are not yet recorded as unacknowledged.
takers: set[str] = set()
