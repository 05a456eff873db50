"""Kubernetes Events without repetition: a repeated one becomes a series of the first.

A separate thread writes them: a slow API server must not block other work.
"""

from __future__ import annotations

import datetime
import threading
import time
import uuid
from dataclasses import dataclass, field
from queue import Queue
from typing import Final, NamedTuple, TypeVar

import dsf.log
from dsf.backends.protocol import EventType
from dsf.errors import BackendError, ObjectNotFoundError
from dsf.kube.resources import EVENTS
from dsf.kube.session import Session
from dsf.process.threads import SupervisedThread

log = dsf.log.get(__name__)

_Value = TypeVar("_Value")

_CONTROLLER: Final = "open-cluster-management.io/dynamic-scoring-hub"
#: Minimum seconds between two writes of a series of equal events.
_SERIES_PAUSE: Final = 60.0
#: Different events about one object at once; then one in five minutes. Ever-changing messages must not flood the API
#: server.
_BURST: Final = 25
#: Most bytes of a message: the API server refuses longer ones.
_NOTE_LIMIT: Final = 1024
#: Most events that wait to be written; more are dropped.
_QUEUE: Final = 2000
#: Timeouts of a request in seconds: connect, read.
_TIMEOUT: Final = (2.0, 3.0)
#: Seconds for which `close` waits for pending events.
_FLUSH: Final = 2.0


class _PendingEvent(NamedTuple):
    regarding: dict[str, str]
    type_: EventType
    reason: str
    message: str


@dataclass
class _Series:
    name: str
    namespace: str
    count: int = 1
    began: float = field(default_factory=time.monotonic)
    written: float = field(default_factory=time.monotonic)


@dataclass
class _Bucket:
    tokens: float = _BURST
    filled: float = field(default_factory=time.monotonic)

    def take(self) -> bool:
        now = time.monotonic()
        self.tokens = min(float(_BURST), self.tokens + (now - self.filled) / 300.0)
        self.filled = now
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True


class EventRecorder:
    """Writes events.k8s.io Events. Never raises or blocks: an event that cannot be written is logged and dropped."""

    def __init__(self, session: Session, instance: str) -> None:
        self._session = session
        self._instance = instance[:128]
        self._waiting: Queue[_PendingEvent | None] = Queue()
        # Guards the start of the thread, and its end.
        self._lock = threading.Lock()
        self._thread: SupervisedThread | None = None
        self._is_closed = self._is_full = False
        # Only used in the thread.
        self._series: dict[tuple[str, ...], _Series] = {}
        self._buckets: dict[tuple[str, ...], _Bucket] = {}

    def record(self, regarding: dict[str, str], type_: EventType, reason: str, message: str) -> None:
        """Queue an event about the object of `regarding` (an ObjectReference)."""
        with self._lock:
            was_full, self._is_full = self._is_full, self._waiting.unfinished_tasks >= _QUEUE
            if self._is_full and not was_full:
                log.warning("events wait to be written, more are dropped", waiting=_QUEUE)
            if self._is_closed or self._is_full:
                return
            self._waiting.put(_PendingEvent(regarding, type_, reason, message))
            if self._thread is None:
                self._thread = SupervisedThread(self._work, "events")
                self._thread.start()

    def flush(self, seconds: float) -> bool:
        """Wait until all recorded events are written or dropped; returns whether they are."""
        with self._waiting.all_tasks_done:
            return self._waiting.all_tasks_done.wait_for(lambda: not self._waiting.unfinished_tasks, seconds)

    def close(self) -> None:
        """Write pending events for some seconds and none afterwards, as another hub may lead then."""
        if not self.flush(_FLUSH):
            log.warning("events not written before the end", events=self._waiting.unfinished_tasks)
        with self._lock:
            self._is_closed = True
        # Ends the thread.
        self._waiting.put(None)

    def _work(self) -> None:
        while (event := self._waiting.get()) is not None and not self._is_closed:
            try:
                self._write(*event)
            except Exception:
                # It must not end the thread: the other events would never be written.
                log.exception("event not written", reason=event.reason, about=event.regarding["name"])
            self._waiting.task_done()

    def _write(self, regarding: dict[str, str], type_: EventType, reason: str, message: str) -> None:
        about = (regarding["kind"], regarding.get("namespace", ""), regarding["name"], regarding.get("uid", ""))
        key = (*about, type_, reason, message)
        series = self._series.get(key)
        try:
            # Equal events of an hour form one series; the API server deletes them then, or earlier.
            if series is None or time.monotonic() - series.began >= 3600.0 or not self._extend(series):
                self._begin(key, about, regarding)
        except BackendError as error:
            self._series.pop(key, None)
            log.warning("event not written", reason=reason, about=regarding["name"], error=str(error))

    def _begin(self, key: tuple[str, ...], about: tuple[str, ...], regarding: dict[str, str]) -> None:
        type_, reason, message = key[-3:]
        self._series.pop(key, None)
        if not _limited(self._buckets, about, _Bucket()).take():
            log.debug("too many different events", about=regarding["name"], reason=reason, message=message)
            return
        # Of 253 characters of the event's name.
        prefix = regarding["name"][:200].rstrip(".-")
        # Events of objects without a namespace live in `default`.
        series = _Series(f"{prefix}.{uuid.uuid4().hex[:16]}", regarding.get("namespace") or "default")
        _limited(self._series, key, series)
        body = {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {"name": series.name, "namespace": series.namespace},
            "eventTime": _now(),
            "reportingController": _CONTROLLER,
            "reportingInstance": self._instance,
            "action": "Reconcile",
            "type": type_,
            "reason": reason,
            "note": _cut(message),
            "regarding": regarding,
        }
        self._session.create(EVENTS.path(series.namespace), body, timeout=_TIMEOUT)

    def _extend(self, series: _Series) -> bool:
        """Count the event, and write the count unless it was written recently; False if the first event is gone."""
        series.count += 1
        if time.monotonic() - series.written < _SERIES_PAUSE:
            return True
        series.written = time.monotonic()
        body = {"series": {"count": series.count, "lastObservedTime": _now()}}
        try:
            self._session.merge(EVENTS.path(series.namespace, series.name), body, timeout=_TIMEOUT)
        except ObjectNotFoundError:
            return False
        return True


def _limited(table: dict[tuple[str, ...], _Value], key: tuple[str, ...], new: _Value) -> _Value:
    """The value of the key, `new` if missing; the oldest entries are dropped."""
    value = table.setdefault(key, new)
    while len(table) > 10_000:
        del table[next(iter(table))]
    return value


def _cut(message: str) -> str:
    data = message.encode("utf-8", "replace")
    if len(data) <= _NOTE_LIMIT:
        return data.decode()
    return data[: _NOTE_LIMIT - 3].decode("utf-8", "ignore") + "..."


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
