"""This cluster's scorers, as delivered by OCM: the trusted channel, and the only one with endpoints.

In files, or in objects of the cluster (`dsf.agent.kube`). A `WatchedFile` is reread when it changed.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, Generic, TypeVar, cast

import dsf.log
from dsf.api import kubeyaml
from dsf.api.summary import ScorerSummary, parse_summaries
from dsf.api.types import CONFIGMAP_NAME, SUMMARIES_KEY
from dsf.errors import DsfError, ManifestError
from dsf.process.threads import SupervisedThread

log = dsf.log.get(__name__)

Summaries = Mapping[str, ScorerSummary]
#: No scorers.
NONE: Final[Summaries] = MappingProxyType({})

_Value = TypeVar("_Value")

#: Inode, size and mtime: Kubernetes replaces mounted files, editors rewrite them.
_Stamp = tuple[int, int, int]


class WatchedFile(Generic[_Value]):
    """The parsed content of a file, cached until the file changes. Thread-safe.

    `parse` gets the bytes; a ValueError or DsfError that it raises is raised by each `read` until the file changes.
    """

    def __init__(self, path: Path, parse: Callable[[bytes], _Value], *, max_bytes: int) -> None:
        self._path = path
        self._parse = parse
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._stamp: _Stamp | None = None
        self._value: _Value | None = None
        self._error: Exception | None = None

    def read(self) -> _Value:
        """The content as of now. Raises OSError if it is not readable, ValueError if it is too large."""
        stamp = self.stamp()
        with self._lock:
            if self._stamp != stamp:
                data = self._load()
                self._value, self._error = None, None
                try:
                    self._value = self._parse(data)
                except (ValueError, DsfError) as error:
                    self._error = error
                # The stamp from before reading: a change in between is seen at the next read.
                self._stamp = stamp
            if self._error is not None:
                # The traceback would grow with each raise.
                raise self._error.with_traceback(None)
            return cast("_Value", self._value)

    def _load(self) -> bytes:
        with self._path.open("rb") as file:
            data = file.read(self._max_bytes + 1)
        if len(data) > self._max_bytes:
            raise ValueError(f"{self._path} has more than {self._max_bytes} bytes")
        return data

    def stamp(self) -> _Stamp:
        """A value that changes with the file. Raises OSError if it is missing."""
        status = self._path.stat()
        return status.st_ino, status.st_size, status.st_mtime_ns


class AgentConfig(ABC):
    """The newest usable delivery. An unusable one leaves it in force and is reported once. Thread-safe."""

    def __init__(self, **place: str) -> None:
        """`place` names the deliveries' source in logs."""
        self._place = place
        self._lock = threading.Lock()
        self._current = NONE
        self._problem = ""
        self._loaded_at = 0.0
        self._listeners: list[Callable[[Summaries], None]] = []

    @property
    def problem(self) -> str:
        """Why the newest delivery is unusable; empty if it is usable."""
        return self._problem

    @property
    def loaded_at(self) -> float:
        """Unix time at which the summaries in force were read; 0 before the first."""
        return self._loaded_at

    def get(self, scorer: str) -> ScorerSummary | None:
        """The scorer's summary as of now, or None if it is not to run on this cluster."""
        return self.summaries().get(scorer)

    @abstractmethod
    def summaries(self) -> Summaries:
        """All summaries as of now, by the scorer's name."""

    def on_change(self, listener: Callable[[Summaries], None]) -> None:
        """Call this with the summaries at each change, in the watching thread."""
        self._listeners.append(listener)

    @abstractmethod
    def start(self) -> None:
        """Start to watch, so that changes and errors are reported at once."""

    @abstractmethod
    def stop(self) -> None:
        """Stop the watch."""

    def _accept(self, summaries: Summaries) -> None:
        """Put this delivery into force; notify listeners if it differs from the one before."""
        with self._lock:
            before, self._current = self._current, summaries
            self._problem = ""
            self._loaded_at = time.time()
        if before != summaries:
            log.info("configuration loaded", scorers=sorted(summaries), **self._place)
            for listener in self._listeners:
                listener(summaries)

    def _refuse(self, problem: str) -> None:
        """The newest delivery is unusable."""
        with self._lock:
            is_new = problem != self._problem
            self._problem = problem
        if is_new:
            log.error("configuration cannot be used, the last good one stays", problem=problem, **self._place)


class FileConfig(AgentConfig):
    """Summaries in a file: the ConfigMap as a manifest, or the bare JSON of its key `summaries`.

    No file means no scorers.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(file=str(path))
        # A ConfigMap has at most 1 MiB.
        self._file = WatchedFile(path, _parse, max_bytes=4 * 1024 * 1024)
        self._stop = threading.Event()
        self._thread = SupervisedThread(self._watch, "dsf-config")

    def summaries(self) -> Summaries:
        """As of now: one stat() each time, as a tick right after a change must see the change."""
        try:
            summaries = self._file.read()
        except FileNotFoundError:
            summaries = NONE
        except (ManifestError, OSError, ValueError) as error:
            self._refuse(str(error))
            return self._current
        if summaries is not self._current or self._problem:
            self._accept(summaries)
        return summaries

    def start(self) -> None:
        """Start the watch."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the watch."""
        self._stop.set()
        self._thread.join(5)

    def _watch(self) -> None:
        # A check is one stat(), and each tick makes its own: this one finds changes between ticks. Kernel notifications
        # would need a library that polls forty times a second.
        while not self._stop.is_set():
            self.summaries()
            self._stop.wait(1.0)


def _parse(data: bytes) -> Summaries:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise ManifestError("not UTF-8 text") from None
    if not text.lstrip().startswith("["):
        try:
            return from_configmap(kubeyaml.load(text))
        except kubeyaml.YamlError as error:
            raise ManifestError(f"{error}") from None
    return _by_name(text)


def from_configmap(manifest: object) -> Summaries:
    """The summaries of a ConfigMap. Raises ManifestError."""
    data = manifest.get("data") if isinstance(manifest, dict) else None
    text = data.get(SUMMARIES_KEY) if isinstance(data, dict) else None
    if not isinstance(text, str):
        raise ManifestError(
            f"neither a JSON array of summaries nor a ConfigMap {CONFIGMAP_NAME} with a text in data.{SUMMARIES_KEY}"
        )
    return _by_name(text)


def _by_name(text: str) -> Summaries:
    return MappingProxyType({summary.name: summary for summary in parse_summaries(text)})
