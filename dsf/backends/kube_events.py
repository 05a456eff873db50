"""Kubernetes Events, written in a thread of their own: a slow API server must not block other work."""

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
#: Most bytes of a message: the API server refuses longer ones.
_NOTE_LIMIT: Final = 1024
#: Most events that wait to be written; more are dropped.
_QUEUE: Final = 2000
#: Timeouts of a request in seconds: connect, read.
_TIMEOUT: Final = (2.0, 3.0)
#: Seconds for which `close` waits for pending events.
_FLUSH: Final = 2.0


class EventRecorder:
    """Writes events.k8s.io Events. Never raises or blocks: an event that cannot be written is logged and dropped."""

    def __init__(self, session: Session, instance: str) -> None:
        self._session = session
        self._instance = instance[:128]
        self._limit = EventLimit()
        self._waiting: Queue[dict[str, Any] | None] = Queue(_QUEUE)
        self._is_closed = False
        self._thread = SupervisedThread(self._work, "events")
        self._thread.start()

    def record(self, regarding: dict[str, str], type_: EventType, reason: str, message: str) -> None:
        """Queue an event about the object of `regarding` (an ObjectReference)."""
        about = "/".join(regarding.get(name, "") for name in ("kind", "namespace", "name", "uid"))
        if self._is_closed or not self._limit.allows(about, type_, reason, message):
            return
        event = {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {
                # The event's name may have 253 characters.
                "name": f"{regarding['name'][:200].rstrip('.-')}.{uuid.uuid4().hex[:16]}",
                # Events of objects without a namespace live in `default`.
                "namespace": regarding.get("namespace") or "default",
            },
            "eventTime": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "reportingController": _CONTROLLER,
            "reportingInstance": self._instance,
            "action": "Reconcile",
            "type": type_,
            "reason": reason,
            "note": _cut(message),
            "regarding": regarding,
        }
        try:
            self._waiting.put_nowait(event)
        except Full:
            log.warning("an event is dropped, too many wait", about=about, reason=reason, message=message)

    def flush(self, seconds: float) -> bool:
        """Wait until all recorded events are written or dropped; returns whether they are."""
        with self._waiting.all_tasks_done:
            return self._waiting.all_tasks_done.wait_for(lambda: not self._waiting.unfinished_tasks, seconds)

    def close(self) -> None:
        """Write pending events for some seconds and none afterwards, as another hub may lead then."""
        if not self._is_closed and not self.flush(_FLUSH):
            log.warning("events not written before the end", events=self._waiting.unfinished_tasks)
        self._is_closed = True
        # Ends the thread. In a full queue it finds an event, and that it is to end.
        with contextlib.suppress(Full):
            self._waiting.put_nowait(None)

    def _work(self) -> None:
        while (event := self._waiting.get()) is not None and not self._is_closed:
            about, reason = event["regarding"]["name"], event["reason"]
            try:
                self._session.create(EVENTS.path(event["metadata"]["namespace"]), event, timeout=_TIMEOUT)
            except BackendError as error:
                log.warning("event not written", reason=reason, about=about, error=str(error))
            except Exception:
                # An exception must not end the thread: the other events would never be written.
                log.exception("event not written", reason=reason, about=about)
            self._waiting.task_done()


def _cut(message: str) -> str:
    data = message.encode("utf-8", "replace")
    if len(data) <= _NOTE_LIMIT:
        return data.decode()
    return data[: _NOTE_LIMIT - 3].decode("utf-8", "ignore") + "..."
