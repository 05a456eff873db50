"""What the tasks, the writer and the sweeper of one results worker tell each other. One set per process."""

from __future__ import annotations

import threading

#: Set when the worker was told to stop.
stopping = threading.Event()
#: Set when a pair has to be looked at now, so that the writer need not wait for its next look.
wake = threading.Event()
#: Lists in which the channels of this process keep a message between the queue and its being noted as unfinished.
takers: set[str] = set()
