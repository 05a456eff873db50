"""The summaries of this cluster's scorers, as delivered by OCM. This trusted channel is the only one with endpoints.

The summaries are in a file or in a ConfigMap of the cluster (`dsf.agent.kube`).
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
#: Maximum bytes of the file. A ConfigMap has at most 1 MiB.
_MAX_FILE_BYTES: Final = 4 * 1024 * 1024
#: Summaries of a cluster without scorers.
NO_SUMMARIES: Final[Summaries] = MappingProxyType({})


def read_limited(path: Path, max_bytes: int) -> bytes:
    """Return the content of a file. Raises OSError if it is not readable, ValueError if it is too large."""
    with path.open("rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ValueError(f"{path} has more than {max_bytes} bytes")
    return data


class AgentConfig(ABC):
    """Provides the newest usable delivery. An unusable delivery is logged once and does not replace it. Thread-safe."""

    def __init__(self, **log_fields: str) -> None:
        """`log_fields` name the source of the deliveries in logs."""
        self._log_fields = log_fields
        self._lock = threading.Lock()
        self._current = NO_SUMMARIES
        self._problem = ""
        self._loaded_at = 0.0
        self._listeners: list[Callable[[Summaries], None]] = []

    @property
    def problem(self) -> str:
        """Return why the newest delivery is unusable. The text is empty if it is usable."""
        return self._problem

    @property
    def loaded_at(self) -> float:
        """Return the unix time at which the summaries in force were read, or 0 before the first ones."""
        return self._loaded_at

    def get(self, scorer: str) -> ScorerSummary | None:
        """Return the scorer's summary, or None if the scorer does not run on this cluster."""
        return self.get_summaries().get(scorer)

    @abstractmethod
    def get_summaries(self) -> Summaries:
        """Return the newest usable summaries by the scorer's name."""

    def get_namespaces(self) -> dict[str, str]:
        """Return the namespace of each scorer, which is empty for the hub's own."""
        return {name: summary.namespace or "" for name, summary in self.get_summaries().items()}

    def on_change(self, listener: Callable[[Summaries], None]) -> None:
        """Register a listener, which is called with the summaries at each change in the watching thread."""
        self._listeners.append(listener)

    @abstractmethod
    def start(self) -> None:
        """Start to watch, so that changes and errors are reported at once."""

    @abstractmethod
    def stop(self) -> None:
        """Stop watching the ConfigMap or file."""

    def _accept(self, summaries: Summaries) -> None:
        """Put this delivery into force, and notify listeners if it differs from the previous one."""
        with self._lock:
            previous_summaries, self._current = self._current, summaries
            self._problem = ""
            self._loaded_at = time.time()
        if previous_summaries != summaries:
            log.info("configuration loaded", scorers=sorted(summaries), **self._log_fields)
            for listener in self._listeners:
                listener(summaries)

    def _record_problem(self, problem: str) -> None:
        """Record why the newest delivery is unusable, and log it once."""
        with self._lock:
            is_new = problem != self._problem
            self._problem = problem
        if is_new:
            log.error("configuration cannot be used, the last good one stays", problem=problem, **self._log_fields)


class FileConfig(AgentConfig):
    """Reads the summaries from a file with the manifest of the ConfigMap, or with the JSON of its key `summaries`.

    The agent has no scorers if the file does not exist.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(file=str(path))
        self._path = path
        self._read_lock = threading.Lock()
        #: Inode, size and mtime of the newest content. Kubernetes replaces mounted files, and editors rewrite them.
        self._stamp: tuple[int, int, int] | None = None
        #: Content of the file, or the error if it cannot be used.
        self._newest: Summaries | ManifestError = NO_SUMMARIES

    def get_summaries(self) -> Summaries:
        """Return the summaries in the file, or the last usable ones.

        Each call checks the file with one stat(), because a tick right after a change must see the change.
        """
        try:
            summaries = self._read()
        except FileNotFoundError:
            summaries = NO_SUMMARIES
        except (ManifestError, OSError, ValueError) as error:
            self._record_problem(str(error))
            return self._current
        if summaries is not self._current or self._problem:
            self._accept(summaries)
        return summaries

    def _read(self) -> Summaries:
        """Return the content of the file.

        Raises OSError if it is not readable, ValueError if it is too large, and ManifestError if it is not valid.
        """
        with self._read_lock:
            last_stamp, self._stamp = self._stamp, None
            status = self._path.stat()
            stamp = status.st_ino, status.st_size, status.st_mtime_ns
            if stamp != last_stamp:
                data = read_limited(self._path, _MAX_FILE_BYTES)
                try:
                    self._newest = _parse(data)
                except ManifestError as error:
                    self._newest = error
            # The stamp is older than the content, so that the next call detects a change during the read.
            self._stamp = stamp
            if isinstance(self._newest, ManifestError):
                # The traceback is removed because it would grow with each raise.
                raise self._newest.with_traceback(None)
            return self._newest

    def start(self) -> None:
        """Read the file. Later each tick and a timer of the worker read it."""
        self.get_summaries()

    def stop(self) -> None:
        """Do nothing, because no thread watches the file."""


def _parse(data: bytes) -> Summaries:
    """Return the summaries in a file's content. Raises ManifestError if it is not valid."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise ManifestError("not UTF-8 text") from None
    if not text.lstrip().startswith("["):
        try:
            return from_configmap(kubeyaml.load(text))
        except kubeyaml.YamlError as error:
            raise ManifestError(f"{error}") from None
    return _parse_summaries(text)


def from_configmap(manifest: object) -> Summaries:
    """Return the summaries of a ConfigMap. Raises ManifestError if it is not valid."""
    data = manifest.get("data") if isinstance(manifest, dict) else None
    text = data.get(SUMMARIES_KEY) if isinstance(data, dict) else None
    if not isinstance(text, str):
        raise ManifestError(
            f"neither a JSON array of summaries nor a ConfigMap {CONFIGMAP_NAME} with a text in data.{SUMMARIES_KEY}"
        )
    return _parse_summaries(text)


def _parse_summaries(text: str) -> Summaries:
    """Return the summaries in a JSON array by the scorer's name. Raises ManifestError if it is not valid."""
    return MappingProxyType({summary.name: summary for summary in parse_summaries(text)})
