"""Kubernetes events without repetition: a repeated one becomes a series of the first."""

from __future__ import annotations

import datetime
import threading
import time
import uuid
from dataclasses import dataclass, field
from typing import Final, TypeVar

import dsf.log
from dsf.backends.protocol import EventType
from dsf.errors import BackendError, ObjectNotFoundError
from dsf.kube.resources import EVENTS
from dsf.kube.session import Session

log = dsf.log.get(__name__)

_Value = TypeVar("_Value")

_CONTROLLER: Final = "open-cluster-management.io/dynamic-scoring-hub"
#: Seconds within which the same event is the same series, and the least time between two writes of one series.
_SERIES_WINDOW: Final = 3600.0
_SERIES_PAUSE: Final = 60.0
#: Series that are remembered; the oldest is forgotten first and then begins anew.
_SERIES_MAX: Final = 10_000
#: Different events about one object: so many at once, then one in so many seconds. A message that differs each time
#: must not fill the API server.
_BURST: Final = 25
_REFILL: Final = 300.0
#: The API server refuses longer ones. Bytes.
_NOTE_LIMIT: Final = 1024
_INSTANCE_LIMIT: Final = 128
#: Characters of an object's name that the name of its event begins with; 253 are allowed in all.
_PREFIX_LIMIT: Final = 200


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
        self.tokens = min(float(_BURST), self.tokens + (now - self.filled) / _REFILL)
        self.filled = now
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True


class EventRecorder:
    """Writes events.k8s.io events. Never raises: an event that cannot be written is logged and dropped."""

    def __init__(self, session: Session, instance: str) -> None:
        self._session = session
        self._instance = instance[:_INSTANCE_LIMIT]
        self._series: dict[tuple[str, ...], _Series] = {}
        self._buckets: dict[tuple[str, ...], _Bucket] = {}
        self._lock = threading.Lock()

    def record(self, regarding: dict[str, str], type_: EventType, reason: str, message: str) -> None:
        """Tell what happened to the object that `regarding` refers to (an ObjectReference)."""
        about = (regarding["kind"], regarding.get("namespace", ""), regarding["name"], regarding.get("uid", ""))
        key = (*about, type_, reason, message)
        try:
            series = self._repeated(key)
            if series is None:
                self._begin(key, about, regarding)
            elif not self._extend(series):
                # The API server forgets events after an hour.
                self._forget(key)
                self._begin(key, about, regarding)
        except BackendError as error:
            self._forget(key)
            log.warning("event not written", reason=reason, about=regarding["name"], error=str(error))

    def _repeated(self, key: tuple[str, ...]) -> _Series | None:
        """The series that this event belongs to, with the event counted; None when it begins one."""
        with self._lock:
            series = self._series.get(key)
            if series is None or time.monotonic() - series.began >= _SERIES_WINDOW:
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
            prefix = regarding["name"][:_PREFIX_LIMIT].rstrip(".-")
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
        self._session.create(EVENTS.path(series.namespace), body)

    def _extend(self, series: _Series) -> bool:
        """Write the count unless that was done a moment ago; False when the event is not there any more."""
        with self._lock:
            if time.monotonic() - series.written < _SERIES_PAUSE:
                return True
            series.written = time.monotonic()
        body = {"series": {"count": series.count, "lastObservedTime": _now()}}
        try:
            self._session.merge(EVENTS.path(series.namespace, series.name), body)
        except ObjectNotFoundError:
            return False
        return True


def _limited(table: dict[tuple[str, ...], _Value], key: tuple[str, ...], new: _Value) -> _Value:
    """The value of the key, `new` if there was none; the oldest are forgotten."""
    value = table.setdefault(key, new)
    while len(table) > _SERIES_MAX:
        del table[next(iter(table))]
    return value


def _cut(message: str) -> str:
    data = message.encode("utf-8", "replace")
    if len(data) <= _NOTE_LIMIT:
        return data.decode()
    return data[: _NOTE_LIMIT - 3].decode("utf-8", "ignore") + "..."


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
