"""Kubernetes Events without repetition: a repeated one becomes a series of the first.

A separate thread writes them: a slow API server must not block other work.
"""

from __future__ import annotations

import datetime
import threading
import time
import uuid
from collections import deque
from dataclasses import dataclass, field
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
        self._series: dict[tuple[str, ...], _Series] = {}
        self._buckets: dict[tuple[str, ...], _Bucket] = {}
        self._lock = threading.Lock()
        # The first one is being written. Guarded by `_changed`, like all below.
        self._waiting: deque[_PendingEvent] = deque()
        self._changed = threading.Condition()
        self._thread: SupervisedThread | None = None
        self._dropped = 0
        self._is_closed = False

    def record(self, regarding: dict[str, str], type_: EventType, reason: str, message: str) -> None:
        """Queue an event about the object of `regarding` (an ObjectReference)."""
        with self._changed:
            if self._is_closed:
                return
            if len(self._waiting) >= _QUEUE:
                if not self._dropped:
                    log.warning("events wait to be written, more are dropped", waiting=len(self._waiting))
                self._dropped += 1
                return
            self._waiting.append(_PendingEvent(regarding, type_, reason, message))
            if self._thread is None:
                self._thread = SupervisedThread(self._work, "events")
                self._thread.start()
            self._changed.notify_all()

    def flush(self, seconds: float) -> bool:
        """Wait until all recorded events are written or dropped; returns whether they are."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting, seconds)

    def close(self) -> None:
        """Write pending events for some seconds and none afterwards, as another hub may lead then."""
        is_done = self.flush(_FLUSH)
        with self._changed:
            self._is_closed = True
            if not is_done:
                log.warning("events not written before the end", events=len(self._waiting))
            self._waiting.clear()
            self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                if self._is_closed:
                    return
                event = self._waiting[0]
            try:
                self._write(*event)
            except Exception:
                # It must not end the thread: the other events would never be written.
                log.exception("event not written", reason=event.reason, about=event.regarding["name"])
            with self._changed:
                if self._waiting:
                    self._waiting.popleft()
                if self._dropped and not self._waiting:
                    log.warning("events were dropped", events=self._dropped)
                    self._dropped = 0
                self._changed.notify_all()

    def _write(self, regarding: dict[str, str], type_: EventType, reason: str, message: str) -> None:
        about = (regarding["kind"], regarding.get("namespace", ""), regarding["name"], regarding.get("uid", ""))
        key = (*about, type_, reason, message)
        try:
            series = self._repeated(key)
            if series is None:
                self._begin(key, about, regarding)
            elif not self._extend(series):
                # The API server deletes events after an hour.
                self._forget(key)
                self._begin(key, about, regarding)
        except BackendError as error:
            self._forget(key)
            log.warning("event not written", reason=reason, about=regarding["name"], error=str(error))

    def _repeated(self, key: tuple[str, ...]) -> _Series | None:
        """The series of this event, with the event counted; None if it starts one."""
        with self._lock:
            series = self._series.get(key)
            # Equal events of an hour form one series.
            if series is None or time.monotonic() - series.began >= 3600.0:
                return None
            series.count += 1
            return series

    def _forget(self, key: tuple[str, ...]) -> None:
        with self._lock:
            self._series.pop(key, None)

    def _begin(self, key: tuple[str, ...], about: tuple[str, ...], regarding: dict[str, str]) -> None:
        type_, reason, message = key[-3:]
        with self._lock:
            if not _limited(self._buckets, about, _Bucket()).take():
                log.debug("too many different events", about=regarding["name"], reason=reason, message=message)
                return
            # Events of objects without a namespace live in `default`.
            # Of 253 characters of the event's name.
            prefix = regarding["name"][:200].rstrip(".-")
            series = _Series(f"{prefix}.{uuid.uuid4().hex[:16]}", regarding.get("namespace") or "default")
            self._series.pop(key, None)
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
        """Write the count unless it was written recently; False if the event does not exist any more."""
        with self._lock:
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
