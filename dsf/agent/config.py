"""The scorers of this cluster, as OCM delivered them: the trusted channel, and the only one that holds endpoints."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

import dsf.log
from dsf.agent.files import WatchedFile
from dsf.api import kubeyaml
from dsf.api.summary import ScorerSummary, parse_summaries
from dsf.api.types import CONFIGMAP_NAME, REDIS_URL_KEY, SUMMARIES_KEY
from dsf.errors import ManifestError

log = dsf.log.get(__name__)

Summaries = Mapping[str, ScorerSummary]


class Delivery(NamedTuple):
    """What a ConfigMap says."""

    summaries: Summaries
    #: Where this cluster's Redis is; empty where the hub does not say, None where there is no word of the hub.
    redis_url: str | None = None


#: No scorers.
NONE: Final = Delivery(MappingProxyType({}))
#: A ConfigMap has at most 1 MiB.
_MAX_BYTES = 4 * 1024 * 1024
#: Seconds between two looks at the file.
_LOOK_EVERY = 1.0


class ConfigSource(Protocol):
    """Where summaries come from. Implementations are thread-safe."""

    def get(self, scorer: str) -> ScorerSummary | None:
        """The scorer's summary as of now, or None when it is not to run on this cluster."""

    def summaries(self) -> Summaries:
        """All summaries as of now, by the scorer's name."""

    @property
    def problem(self) -> str:
        """Why the newest delivery cannot be used; empty while it can."""

    @property
    def loaded_at(self) -> float:
        """Unix time at which the summaries in force were read; 0 before the first."""


class Watching(ConfigSource, Protocol):
    """A source of summaries that watches in the background."""

    def on_change(self, listener: Callable[[Summaries], None]) -> None:
        """Call this with the summaries each time they change, by the thread that sees it."""

    def on_redis(self, listener: Callable[[str], None]) -> None:
        """Call this with the URL of this cluster's Redis with the first delivery and each time it changes; it is empty
        where the hub does not say."""

    def start(self) -> None:
        """Begin to watch."""

    def stop(self) -> None:
        """End the watch."""


class InForce:
    """The newest delivery that can be used. One that cannot be used leaves it in force, and is reported once."""

    def __init__(self, **place: str) -> None:
        """`place` says in logs where deliveries come from."""
        self._place = place
        self._lock = threading.Lock()
        self.current = NONE.summaries
        self.problem = ""
        self.loaded_at = 0.0
        self.listeners: list[Callable[[Summaries], None]] = []
        self.redis_listeners: list[Callable[[str], None]] = []
        self._redis_url: str | None = None

    def accept(self, delivery: Delivery) -> None:
        """This delivery is in force from now on; listeners hear of it if it differs from the one before."""
        found = delivery.summaries
        with self._lock:
            before, self.current = self.current, found
            self.problem = ""
            self.loaded_at = time.time()
            url, known = delivery.redis_url, self._redis_url
            self._redis_url = known if url is None else url
        if before != found:
            log.info("configuration loaded", scorers=sorted(found), **self._place)
            for listener in self.listeners:
                listener(found)
        if url is not None and url != known:
            for redis_listener in self.redis_listeners:
                redis_listener(url)

    def refuse(self, problem: str) -> None:
        """The newest delivery cannot be used."""
        with self._lock:
            news = problem != self.problem
            self.problem = problem
        if news:
            log.error("configuration cannot be used, the last good one stays", problem=problem, **self._place)


class FileConfig:
    """Summaries in a file: the ConfigMap as a manifest, or the bare JSON of its key `summaries`.

    No file means no scorers.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = WatchedFile(path, _parse, max_bytes=_MAX_BYTES)
        self._in_force = InForce(file=str(path))
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def problem(self) -> str:
        return self._in_force.problem

    @property
    def loaded_at(self) -> float:
        return self._in_force.loaded_at

    def get(self, scorer: str) -> ScorerSummary | None:
        return self.summaries().get(scorer)

    def summaries(self) -> Summaries:
        # One stat() per look: a tick that comes right after a change must see the change.
        try:
            found = self._file.read()
        except FileNotFoundError:
            found = NONE
        except (ManifestError, OSError, ValueError) as error:
            self._in_force.refuse(str(error))
            return self._in_force.current
        if found.summaries is not self._in_force.current or self.problem:
            self._in_force.accept(found)
        return found.summaries

    def on_change(self, listener: Callable[[Summaries], None]) -> None:
        self._in_force.listeners.append(listener)

    def on_redis(self, listener: Callable[[str], None]) -> None:
        self._in_force.redis_listeners.append(listener)

    def start(self) -> None:
        """Watch the file, so that changes and mistakes are reported when they happen."""
        self._thread = threading.Thread(target=self._watch, name="dsf-config", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the watch."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(5)

    def _watch(self) -> None:
        # A look is one stat(), and each tick has a look of its own: this one is for what nobody asks about meanwhile.
        # To be told by the kernel takes a library that looks forty times a second.
        while not self._stop.is_set():
            self.summaries()
            self._stop.wait(_LOOK_EVERY)


def _parse(data: bytes) -> Delivery:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise ManifestError("not UTF-8 text") from None
    if not text.lstrip().startswith("["):
        try:
            return from_configmap(kubeyaml.load(text))
        except kubeyaml.YamlError as error:
            raise ManifestError(f"{error}") from None
    return Delivery(_by_name(text))


def from_configmap(manifest: object) -> Delivery:
    """What a ConfigMap says. Raises ManifestError."""
    data = manifest.get("data") if isinstance(manifest, dict) else None
    text = data.get(SUMMARIES_KEY) if isinstance(data, dict) else None
    if not isinstance(text, str):
        raise ManifestError(
            f"neither a JSON array of summaries nor a ConfigMap {CONFIGMAP_NAME} with a text in data.{SUMMARIES_KEY}"
        )
    return Delivery(_by_name(text), str(data.get(REDIS_URL_KEY) or "") if isinstance(data, dict) else "")


def _by_name(text: str) -> Summaries:
    return MappingProxyType({summary.name: summary for summary in parse_summaries(text)})
