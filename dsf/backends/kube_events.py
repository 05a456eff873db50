"""Writes Kubernetes Events in a separate thread, so that a slow API server does not block other work."""

from __future__ import annotations

import contextlib
import datetime
import uuid
from queue import Full, Queue
from typing import Any, Final

import dsf.log
from dsf.backends.eventlimit import EventLimit
from dsf.backends.protocol import EventType
from dsf.errors import BackendError
from dsf.kube.resources import EVENTS
from dsf.kube.session import Session
from dsf.process.threads import SupervisedThread

log = dsf.log.get(__name__)

_CONTROLLER: Final = "open-cluster-management.io/dynamic-scoring-hub"
#: Maximum size of a message in bytes: the API server rejects longer messages.
_MAX_NOTE_BYTES: Final = 1024
#: Maximum number of queued events; further events are dropped.
_MAX_QUEUED_EVENTS: Final = 2000
#: Connect and read timeouts of a request in seconds.
_TIMEOUT: Final = (2.0, 3.0)
#: Seconds for which `close` waits for queued events.
_FLUSH_SECONDS: Final = 2.0


class EventRecorder:
    """Writes events.k8s.io Events. Never raises or blocks: logs and drops an event that cannot be written."""

    def __init__(self, session: Session, instance: str) -> None:
        """Start the writing thread. `instance` identifies this process in the events."""
        self._session = session
        self._instance = instance[:128]
        self._limit = EventLimit()
        self._queue: Queue[dict[str, Any] | None] = Queue(_MAX_QUEUED_EVENTS)
        self._is_closed = False
        self._thread = SupervisedThread(self._write_events, "events")
        self._thread.start()

    def record(self, regarding: dict[str, str], type_: EventType, reason: str, message: str) -> None:
        """Queue an event about the object of `regarding` (an ObjectReference)."""
        subject = "/".join(regarding.get(name, "") for name in ("kind", "namespace", "name", "uid"))
        if self._is_closed or not self._limit.try_acquire(subject, type_, reason, message):
            return
        event = {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {
                # Truncate the name, because the name of an Event has at most 253 characters.
                "name": f"{regarding['name'][:200].rstrip('.-')}.{uuid.uuid4().hex[:16]}",
                # Events about cluster-scoped objects belong to the namespace `default`.
                "namespace": regarding.get("namespace") or "default",
            },
            "eventTime": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "reportingController": _CONTROLLER,
            "reportingInstance": self._instance,
            "action": "Reconcile",
            "type": type_,
            "reason": reason,
            "note": _truncate(message),
            "regarding": regarding,
        }
        try:
            self._queue.put_nowait(event)
        except Full:
            log.warning("event dropped, the queue is full", about=subject, reason=reason, message=message)

    def flush(self, seconds: float) -> bool:
        """Wait until all queued events are written or dropped; return False after `seconds`."""
        with self._queue.all_tasks_done:
            return self._queue.all_tasks_done.wait_for(lambda: not self._queue.unfinished_tasks, seconds)

    def close(self) -> None:
        """Write queued events for at most two seconds, then drop the others, because another hub may lead by then."""
        if not self._is_closed and not self.flush(_FLUSH_SECONDS):
            log.warning("events dropped at the end of the process", events=self._queue.unfinished_tasks)
        self._is_closed = True
        # Wake up the thread. If the queue is full, the thread does not wait, and checks `_is_closed` after an event.
        with contextlib.suppress(Full):
            self._queue.put_nowait(None)

    def _write_events(self) -> None:
        while (event := self._queue.get()) is not None and not self._is_closed:
            subject, reason = event["regarding"]["name"], event["reason"]
            try:
                self._session.create(EVENTS.path(event["metadata"]["namespace"]), event, timeout=_TIMEOUT)
            except BackendError as error:
                log.warning("event not written", reason=reason, about=subject, error=str(error))
            except Exception:
                # Continue after any exception, because without this thread no event is written.
                log.exception("event not written", reason=reason, about=subject)
            self._queue.task_done()


def _truncate(message: str) -> str:
    """Return the message with at most `_MAX_NOTE_BYTES` bytes of UTF-8."""
    data = message.encode("utf-8", "replace")
    if len(data) <= _MAX_NOTE_BYTES:
        return data.decode()
    return data[: _MAX_NOTE_BYTES - 3].decode("utf-8", "ignore") + "..."
