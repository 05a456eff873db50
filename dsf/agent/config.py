"""This cluster's scorers, as delivered by OCM: the trusted channel, and the only one with endpoints."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, Protocol

import dsf.log
from dsf.agent.files import WatchedFile
from dsf.api import kubeyaml
from dsf.api.summary import ScorerSummary, parse_summaries
from dsf.api.types import CONFIGMAP_NAME, SUMMARIES_KEY
from dsf.errors import ManifestError
from dsf.process.threads import SupervisedThread

log = dsf.log.get(__name__)

Summaries = Mapping[str, ScorerSummary]


#: No scorers.
NONE: Final[Summaries] = MappingProxyType({})


class ConfigSource(Protocol):
    """Source of summaries. Implementations are thread-safe."""

    def get(self, scorer: str) -> ScorerSummary | None:
        """The scorer's summary as of now, or None if it is not to run on this cluster."""

    def summaries(self) -> Summaries:
        """All summaries as of now, by the scorer's name."""

    @property
    def problem(self) -> str:
        """Why the newest delivery is unusable; empty if it is usable."""

    @property
    def loaded_at(self) -> float:
        """Unix time at which the summaries in force were read; 0 before the first."""


class Watching(ConfigSource, Protocol):
    """A source of summaries with a background watch."""

    def on_change(self, listener: Callable[[Summaries], None]) -> None:
        """Call this with the summaries at each change, in the watching thread."""

    def start(self) -> None:
        """Start the watch."""

    def stop(self) -> None:
        """Stop the watch."""


class InForce:
    """The newest usable delivery. An unusable one leaves it in force and is reported once."""

    def __init__(self, **place: str) -> None:
        """`place` names the deliveries' source in logs."""
        self._place = place
        self._lock = threading.Lock()
        self.current = NONE
        self.problem = ""
        self.loaded_at = 0.0
        self.listeners: list[Callable[[Summaries], None]] = []

    def accept(self, summaries: Summaries) -> None:
        """Put this delivery into force; notify listeners if it differs from the one before."""
        with self._lock:
            before, self.current = self.current, summaries
            self.problem = ""
            self.loaded_at = time.time()
        if before != summaries:
            log.info("configuration loaded", scorers=sorted(summaries), **self._place)
            for listener in self.listeners:
                listener(summaries)

    def refuse(self, problem: str) -> None:
        """The newest delivery is unusable."""
        with self._lock:
            is_new = problem != self.problem
            self.problem = problem
        if is_new:
            log.error("configuration cannot be used, the last good one stays", problem=problem, **self._place)


class FileConfig:
    """Summaries in a file: the ConfigMap as a manifest, or the bare JSON of its key `summaries`.

    No file means no scorers.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        # A ConfigMap has at most 1 MiB.
        self._file = WatchedFile(path, _parse, max_bytes=4 * 1024 * 1024)
        self._in_force = InForce(file=str(path))
        self._stop = threading.Event()
        self._thread = SupervisedThread(self._watch, "dsf-config")

    @property
    def problem(self) -> str:
        return self._in_force.problem

    @property
    def loaded_at(self) -> float:
        return self._in_force.loaded_at

    def get(self, scorer: str) -> ScorerSummary | None:
        return self.summaries().get(scorer)

    def summaries(self) -> Summaries:
        # One stat() per check: a tick right after a change must see the change.
        try:
            summaries = self._file.read()
        except FileNotFoundError:
            summaries = NONE
        except (ManifestError, OSError, ValueError) as error:
            self._in_force.refuse(str(error))
            return self._in_force.current
        if summaries is not self._in_force.current or self.problem:
            self._in_force.accept(summaries)
        return summaries

    def on_change(self, listener: Callable[[Summaries], None]) -> None:
        self._in_force.listeners.append(listener)

    def start(self) -> None:
        """Watch the file, so that changes and errors are reported at once."""
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
