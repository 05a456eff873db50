"""A local copy of one kind, kept up to date by a list and a watch.

The rules are those of every Kubernetes client: never watch without the list's resourceVersion; list in pages; take
bookmarks; on 410 list again and report missing objects as deleted; treat silence as a broken connection, which
costs one request a minute where nothing ever happens; back off with jitter on everything else. Handlers only enqueue
a key.
"""

from __future__ import annotations

import contextlib
import math
import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

import dsf.log
from dsf.errors import BackendError, ObjectNotFoundError
from dsf.kube.resources import Resource
from dsf.kube.session import ApiServerError, ExpiredError, ForbiddenError, Session, UnreachableError, Watch
from dsf.kube.store import Key, Object, Store, key_of, version_of
from dsf.process.threads import SupervisedThread

log = dsf.log.get(__name__)

#: (key, old object or None, new object or None). Called by the reflector's thread. Exceptions are logged.
Handler = Callable[[Key, Object | None, Object | None], None]

#: Seconds after which the server ends a watch; spread, so that not all watches of a hub reconnect together.
_WATCH_SECONDS: Final = (240, 480)


def without_managed_fields(obj: Object) -> Object:
    """The object without `managedFields`, which may be larger than the rest and are not used."""
    obj["metadata"].pop("managedFields", None)
    return obj


class Reflector:
    """Keeps `store` equal to the server. Start it once; `synced` is set after the first complete list.

    `selectors` are those of the API server, `labelSelector` and `fieldSelector`. `transform` may make an object smaller
    before it is kept; it must leave name, namespace, uid and resourceVersion.
    """

    def __init__(
        self,
        session: Session,
        resource: Resource,
        handler: Handler,
        *,
        namespace: str = "",
        selectors: Mapping[str, str] | None = None,
        page: int = 500,
        silence: float = 75.0,
        transform: Callable[[Object], Object] = without_managed_fields,
    ) -> None:
        self.resource = resource
        self.store = Store()
        self.synced = threading.Event()
        #: Why the copy is out of date, for display; else None.
        self.error: str | None = None
        self._session = session
        self._handler = handler
        self._path = resource.path(namespace)
        self._query = dict(selectors or {})
        self._page = page
        # Longest silence of a watch in seconds. The server sends a bookmark about once a minute, except for a kind that
        # has not changed since it started; such a watch is reopened again and again, at the same version. Only a server
        # that does not accept the next one either is away.
        self._silence = silence
        self._transform = transform
        #: The newest resourceVersion seen; None: list before the next watch.
        self._version: str | None = None
        #: The same as a number, never reset to None: an older list comes from a restored backup.
        self._highest = 0
        #: Failed attempts in a row, and whether the last one got no answer.
        self._failures = 0
        self._is_away = False
        #: When (monotonic) the server accepted the watch, and whether it delivered anything.
        self._accepted, self._delivered = math.inf, False
        self._watch: Watch | None = None
        # Guards _watch.
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = SupervisedThread(self._run, f"reflector-{resource}")

    def start(self) -> None:
        """Start to list and watch in a separate thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the watch. The handler is not called after this returns, unless the server stalls a list."""
        self._stop.set()
        with self._lock:
            watch = self._watch
        if watch is not None:
            watch.close()
        # The thread may be in a request that the server does not answer.
        self._thread.join(5.0)

    def observe(self, obj: Object) -> None:
        """Store the answer to an own write at once, so that the next reconcile acts on it."""
        self.store.observe(self._transform(obj))

    def _run(self) -> None:
        while not self._stop.is_set():
            self._accepted, self._delivered = math.inf, False
            try:
                if self._version is None:
                    self._version = self._list()
                self._watch_from(self._version)
            except ExpiredError as error:
                log.info("listing again", resource=str(self.resource), why=str(error))
                self._version = None
                pause = self._pause()
            except BackendError as error:
                if not isinstance(error, UnreachableError) and getattr(error, "status", 0) != 429:
                    # The server's error may mean that this version is invalid; a broken connection does not.
                    self._version = None
                pause = self._pause_after(error)
                self._note(error)
            except Exception:
                # An unexpected object must not end the reflector.
                log.exception("cannot read objects", resource=str(self.resource))
                self.error = "an object cannot be read, see the log"
                self._version = None
                pause = self._pause()
            else:
                # The server ended the watch. A watch that always ends at once must not be reopened in a tight loop.
                pause = 0.0 if self._is_settled() else self._pause()
            self._stop.wait(pause)

    def _is_settled(self) -> bool:
        """True if the watch that just ended was successful; this resets the failure count."""
        # A watch that lasted so long, or delivered anything, was a success.
        if self._delivered or time.monotonic() - self._accepted >= 5.0:
            self._failures = 0
            return True
        return False

    def _pause_after(self, error: BackendError) -> float:
        """Seconds to wait after an error. The first answer after an outage, even an error, resets the backoff."""
        was_away, self._is_away = self._is_away, isinstance(error, UnreachableError)
        if was_away and not self._is_away:
            self._failures = min(self._failures, 1)
        pause = self._pause(getattr(error, "retry_after", None))
        # An attempt costs little, and changes go unseen for that long afterwards.
        return min(pause, 4.0 * random.uniform(0.8, 1.2)) if self._is_away else pause  # noqa: S311

    def _pause(self, retry_after: float | None = None) -> float:
        """Seconds until the next attempt, at least the server's Retry-After, up to a limit."""
        self._is_settled()
        self._failures += 1
        if self._failures == 1:
            pause = random.uniform(0, 0.2)  # noqa: S311
        else:
            pause = min(0.8 * 2 ** min(self._failures - 2, 10), 30.0)
            pause *= random.uniform(0.5, 1.5)  # noqa: S311
        # A proxy in front of the server may send hours.
        retry_after = min(retry_after or 0.0, 60.0)
        return max(pause, retry_after * random.uniform(1.0, 1.2))  # noqa: S311

    def _note(self, error: BackendError) -> None:
        if self._stop.is_set():
            return
        if self.synced.is_set() and self._failures == 1 and isinstance(error, UnreachableError):
            # A broken connection is routine; it is logged only when the next attempt fails too.
            return
        text = str(error)
        if text != self.error:
            log.warning("cannot watch", resource=str(self.resource), error=text, hint=_hint(error))
        self.error = text

    def _list(self) -> str:
        objects_by_key: dict[Key, Object] = {}
        query = dict(self._query, limit=str(self._page))
        while True:
            page = self._session.request("GET", self._path, query=query)
            for item in page["items"]:
                # Items of a list come without these two.
                item.setdefault("apiVersion", self.resource.api_version)
                item.setdefault("kind", self.resource.kind)
                objects_by_key[key_of(item)] = self._transform(item)
            version = str(page["metadata"]["resourceVersion"])
            if self._stop.is_set():
                return version
            token = page["metadata"].get("continue")
            if not token:
                break
            query["continue"] = token
        is_restored = version.isdecimal() and int(version) < self._highest
        if is_restored:
            log.warning("the API server went back in time", resource=str(self.resource), version=version)
            self._highest = 0
        before = self.store.replace(objects_by_key, is_restored=is_restored)
        self._set_version(version)
        for key in (*objects_by_key, *(before.keys() - objects_by_key.keys())):
            old, new = before.get(key), objects_by_key.get(key)
            if old is None or new is None or version_of(old) != version_of(new):
                self._notify(key, old, new)
        self.synced.set()
        return version

    def _notify(self, key: Key, old: Object | None, new: Object | None) -> None:
        try:
            self._handler(key, old, new)
        except Exception:
            # An object must not keep all others from being watched.
            log.exception("a change cannot be handled", resource=str(self.resource), object="/".join(key))

    def _set_version(self, version: str) -> None:
        """Record a version that the server sent."""
        if version.isdecimal():
            self._highest = max(self._highest, int(version))

    def _watch_from(self, version: str) -> None:
        """Watch from `version` on until the server ends the watch or an error occurs."""
        query = dict(
            self._query,
            watch="1",
            allowWatchBookmarks="true",
            resourceVersion=version,
            timeoutSeconds=str(random.randint(*_WATCH_SECONDS)),  # noqa: S311
        )
        watch = self._session.watch(self._path, query, read_timeout=self._silence)
        with self._lock:
            self._watch = watch
        if self._stop.is_set():
            watch.close()
        self._accepted = time.monotonic()
        if self.error is not None:
            log.info("watching again", resource=str(self.resource))
            self.error = None
        try:
            # Closed here, not by garbage collection: a stored error keeps its connection open.
            with contextlib.closing(iter(watch)) as events:
                for event in events:
                    self._apply_event(event["type"], event["object"])
                    self._delivered = True
                    if self._stop.is_set():
                        break
        finally:
            with self._lock:
                self._watch = None
            watch.close()

    def _apply_event(self, kind: str, obj: Object) -> None:
        if kind == "ERROR":
            message = f"watch of {self.resource}: {obj.get('message', obj)}"
            if obj.get("code") == 410:
                raise ExpiredError(message, 410)
            retry_after = (obj.get("details") or {}).get("retryAfterSeconds")
            raise ApiServerError(message, int(obj.get("code") or 500), retry_after)
        version = version_of(obj)
        self._set_version(version)
        if kind in ("ADDED", "MODIFIED"):
            obj = self._transform(obj)
            self._notify(key_of(obj), self.store.put(obj), obj)
        elif kind == "DELETED":
            key = key_of(obj)
            self._notify(key, self.store.remove(key) or obj, None)
        # Only now: an event that could not be read needs a new list.
        self._version = version


def _hint(error: BackendError) -> str:
    if isinstance(error, ForbiddenError):
        return "grant this to the account with an RBAC rule"
    if isinstance(error, ObjectNotFoundError):
        return "the API server does not know the kind: install its CRD"
    return "trying again"
