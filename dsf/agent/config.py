"""This cluster's scorers, as delivered by OCM: the trusted channel, and the only one with endpoints.

In a file, or in an object of the cluster (`dsf.agent.kube`).
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

import dsf.log
from dsf.api import kubeyaml
from dsf.api.summary import ScorerSummary, parse_summaries
from dsf.api.types import CONFIGMAP_NAME, SUMMARIES_KEY
from dsf.errors import ManifestError

log = dsf.log.get(__name__)

Summaries = Mapping[str, ScorerSummary]
#: No scorers.
NONE: Final[Summaries] = MappingProxyType({})


def read_limited(path: Path, max_bytes: int) -> bytes:
    """Return the content of a file. Raises OSError if it is not readable, ValueError if it is too large."""
    with path.open("rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ValueError(f"{path} has more than {max_bytes} bytes")
    return data


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
        """Return the scorer's summary as of now, or None if it is not to run on this cluster."""
        return self.summaries().get(scorer)

    @abstractmethod
    def summaries(self) -> Summaries:
        """Return all summaries as of now, by the scorer's name."""

    def namespaces(self) -> dict[str, str]:
        """Return the namespace of each scorer as of now, empty for the hub's own."""
        return {name: summary.namespace or "" for name, summary in self.summaries().items()}

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
        self._path = path
        self._reading = threading.Lock()
        #: Inode, size and mtime of the newest content: Kubernetes replaces mounted files, editors rewrite them.
        self._stamp: tuple[int, int, int] | None = None
        #: The content of the file, or why it cannot be used.
        self._newest: Summaries | ManifestError = NONE

    def summaries(self) -> Summaries:
        """As of now: one stat() each time, as a tick right after a change must see the change."""
        try:
            summaries = self._read()
        except FileNotFoundError:
            summaries = NONE
        except (ManifestError, OSError, ValueError) as error:
            self._refuse(str(error))
            return self._current
        if summaries is not self._current or self._problem:
            self._accept(summaries)
        return summaries

    def _read(self) -> Summaries:
        """Return the content of the file. Raises OSError, ValueError if it is too large, and ManifestError until it
        changes."""
        with self._reading:
            before, self._stamp = self._stamp, None
            status = self._path.stat()
            stamp = status.st_ino, status.st_size, status.st_mtime_ns
            if stamp != before:
                # A ConfigMap has at most 1 MiB.
                data = read_limited(self._path, 4 * 1024 * 1024)
                try:
                    self._newest = _parse(data)
                except ManifestError as error:
                    self._newest = error
            # The stamp from before reading, so that the next pass detects a change in between.
            self._stamp = stamp
            if isinstance(self._newest, ManifestError):
                # The traceback would grow with each raise.
                raise self._newest.with_traceback(None)
            return self._newest

    def start(self) -> None:
        """Look: each tick and each second of the worker do so later."""
        self.summaries()

    def stop(self) -> None:
        """Do nothing: no thread runs."""


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
    """Return the summaries of a ConfigMap. Raises ManifestError."""
    data = manifest.get("data") if isinstance(manifest, dict) else None
    text = data.get(SUMMARIES_KEY) if isinstance(data, dict) else None
    if not isinstance(text, str):
        raise ManifestError(
            f"neither a JSON array of summaries nor a ConfigMap {CONFIGMAP_NAME} with a text in data.{SUMMARIES_KEY}"
        )
    return _by_name(text)


def _by_name(text: str) -> Summaries:
    return MappingProxyType({summary.name: summary for summary in parse_summaries(text)})
