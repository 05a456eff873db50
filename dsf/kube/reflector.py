"""A local copy of one kind, kept up to date by a list and a watch.

The rules are those of every Kubernetes client: never watch without the list's resourceVersion; list in pages; take
bookmarks; on 410 list again and report what vanished meanwhile as deleted; treat silence as a broken connection, since
a bookmark comes about once a minute; back off with jitter on everything else. Handlers only enqueue a key.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import dsf.log
from dsf.errors import BackendError
from dsf.kube.resources import Resource
from dsf.kube.session import ExpiredError, ForbiddenError, Session

log = dsf.log.get(__name__)

Key = tuple[str, str]
#: (key, what was there before or None, what is there now or None)
Handler = Callable[[Key, dict[str, Any] | None, dict[str, Any] | None], None]

_PAGE = 500
#: Seconds after which the server ends a watch; spread, so that not all watches of a hub reconnect together.
_WATCH_SECONDS = (240, 480)
#: Longest silence: the server sends a bookmark about once a minute.
_SILENCE = 75.0
_BACKOFF = (0.8, 30.0)


class Reflector:
    """Keeps `objects` of one kind. Start it once; `synced` is set after the first complete list."""

    def __init__(
        self,
        session: Session,
        resource: Resource,
        handler: Handler,
        *,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
        silence: float = _SILENCE,
    ) -> None:
        self.resource = resource
        self.synced = threading.Event()
        #: Why the copy is not up to date; None while it is.
        self.error: str | None = None
        self._session = session
        self._handler = handler
        self._path = resource.path(namespace)
        self._query = {
            name: value
            for name, value in (("labelSelector", label_selector), ("fieldSelector", field_selector))
            if value
        }
        self._silence = silence
        self._objects: dict[Key, dict[str, Any]] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"reflector-{resource}", daemon=True)

    def start(self) -> None:
        """Begin to list and watch, in a thread of its own."""
        self._thread.start()

    def stop(self) -> None:
        """Do not begin anything new; a watch that is being read ends when its session is closed."""
        self._stop.set()

    def get(self, namespace: str, name: str) -> dict[str, Any] | None:
        """One object of the copy. Not to be changed by the caller."""
        with self._lock:
            return self._objects.get((namespace, name))

    def list(self) -> list[dict[str, Any]]:
        """All objects of the copy. Not to be changed by the caller."""
        with self._lock:
            return list(self._objects.values())

    def observe(self, obj: dict[str, Any]) -> None:
        """Take in the answer to a write of our own at once, so that the next reconcile does not act on the older copy.

        Ignored when the copy is already newer or the object was deleted meanwhile: the watch decides then.
        """
        key = _key(obj)
        with self._lock:
            held = self._objects.get(key)
            if held is not None and held["metadata"].get("uid") == obj["metadata"].get("uid"):
                self._objects[key] = obj

    def _run(self) -> None:
        delay = _BACKOFF[0]
        while not self._stop.is_set():
            try:
                version = self._list()
                delay = _BACKOFF[0]
                self._watch(version)
            except ExpiredError:
                # Wait a little: a server that answers 410 to a fresh list would otherwise be asked without a pause.
                self._stop.wait(random.uniform(0.05, 0.5))  # noqa: S311
                continue
            except BackendError as error:
                self._note(error)
                self._stop.wait(delay * random.uniform(0.5, 1.5))  # noqa: S311
                delay = min(delay * 2, _BACKOFF[1])

    def _note(self, error: BackendError) -> None:
        if self._stop.is_set():
            return
        text = str(error)
        if text != self.error:
            hint = "grant this rule to the ServiceAccount" if isinstance(error, ForbiddenError) else "trying again"
            log.warning("cannot watch", resource=str(self.resource), error=text, hint=hint)
        self.error = text

    def _list(self) -> str:
        found: dict[Key, dict[str, Any]] = {}
        query = dict(self._query, limit=str(_PAGE))
        while True:
            page = self._session.request("GET", self._path, query=query)
            for item in page["items"]:
                # Items of a list come without these two.
                item.setdefault("apiVersion", self.resource.api_version)
                item.setdefault("kind", self.resource.kind)
                found[_key(item)] = item
            token = page["metadata"].get("continue")
            if not token:
                break
            query["continue"] = token
        with self._lock:
            before, self._objects = self._objects, found
        for key, obj in found.items():
            old = before.get(key)
            if old is None or old["metadata"].get("resourceVersion") != obj["metadata"].get("resourceVersion"):
                self._handler(key, old, obj)
        for key in before.keys() - found.keys():
            self._handler(key, before[key], None)
        self.synced.set()
        if self.error is not None:
            log.info("watching again", resource=str(self.resource))
            self.error = None
        return str(page["metadata"]["resourceVersion"])

    def _watch(self, version: str) -> None:
        """Watch from `version` on, reconnecting at the newest version seen, until an error says otherwise."""
        failures = 0
        while not self._stop.is_set():
            seen = version
            try:
                for newest in self._events(version):
                    version, failures = newest, 0
            except (ExpiredError, ForbiddenError):
                raise
            except BackendError as error:
                # A broken connection loses nothing as long as the version is still known to the server.
                failures += 1
                if failures > 1 and version == seen:
                    self._note(error)
                wait = 0.0 if failures == 1 else min(_BACKOFF[0] * 2 ** (failures - 2), _BACKOFF[1])
                self._stop.wait(wait * random.uniform(0.5, 1.5))  # noqa: S311
            else:
                if self.error is not None:
                    self.error = None

    def _events(self, version: str) -> Iterator[str]:
        query = dict(
            self._query,
            watch="1",
            allowWatchBookmarks="true",
            resourceVersion=version,
            timeoutSeconds=str(random.randint(*_WATCH_SECONDS)),  # noqa: S311
        )
        for event in self._session.stream(self._path, query, read_timeout=self._silence):
            kind, obj = event["type"], event["object"]
            if kind == "ERROR":
                message = f"watch of {self.resource}: {obj.get('message', obj)}"
                if obj.get("code") == 410:
                    raise ExpiredError(message, 410)
                raise BackendError(message)
            if kind in ("ADDED", "MODIFIED"):
                self._put(obj)
            elif kind == "DELETED":
                self._remove(obj)
            yield str(obj["metadata"]["resourceVersion"])

    def _put(self, obj: dict[str, Any]) -> None:
        key = _key(obj)
        with self._lock:
            old = self._objects.get(key)
            self._objects[key] = obj
        self._handler(key, old, obj)

    def _remove(self, obj: dict[str, Any]) -> None:
        key = _key(obj)
        with self._lock:
            old = self._objects.pop(key, None)
        self._handler(key, old or obj, None)


def _key(obj: dict[str, Any]) -> Key:
    metadata = obj["metadata"]
    return metadata.get("namespace", ""), metadata["name"]
