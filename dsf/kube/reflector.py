"""Keeps a local copy of one kind up to date by a list and a watch.

The reflector follows the usual rules of Kubernetes clients. It lists from the API server's cache, or in pages if the
list is too large for one response, then watches from the resourceVersion of the list with bookmarks. After a 410 it
lists again, and reports missing objects as deleted. It treats silence as a broken connection, which costs one request
per minute for a kind that does not change. After any other error it backs off with jitter. Handlers should only enqueue
a key.
"""

from __future__ import annotations

import contextlib
import math
import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import dsf.log
from dsf.errors import BackendError, ObjectNotFoundError
from dsf.kube.lists import MAX_PAGE_BYTES, iterate_pages, read_page
from dsf.kube.resources import Resource
from dsf.kube.session import (
    ApiServerError,
    ExpiredError,
    ForbiddenError,
    Session,
    TooLargeError,
    UnreachableError,
    Watch,
)
from dsf.kube.store import Key, Object, Store, get_key, get_version
from dsf.process.threads import SupervisedThread

log = dsf.log.get(__name__)

#: Function that the reflector's thread calls with a key, the previous object and the current object, which are None
#: for created and deleted objects. Exceptions are logged.
Handler = Callable[[Key, Object | None, Object | None], None]

#: Range from which the duration of a watch in seconds is drawn, so that the watches of a hub do not all reconnect at
#: the same time.
_WATCH_SECONDS: Final = (240, 480)


def drop_managed_fields(obj: Object) -> Object:
    """Remove `managedFields` from the object, which are not used and may be larger than the other fields."""
    obj["metadata"].pop("managedFields", None)
    return obj


class Reflector:
    """Keeps the objects of a kind in `store` up to date. Start it once.

    `synced` is set after the first complete list. `selectors` may contain `labelSelector` and `fieldSelector`.
    `transform` may reduce an object before it is stored, and must keep name, namespace, uid and resourceVersion.
    """

    def __init__(
        self,
        session: Session,
        resource: Resource,
        handler: Handler,
        *,
        namespace: str = "",
        selectors: Mapping[str, str] | None = None,
        page_size: int = 500,
        silence_seconds: float = 75.0,
        transform: Callable[[Object], Object] = drop_managed_fields,
    ) -> None:
        self.resource = resource
        self.store = Store()
        self.synced = threading.Event()
        #: Reason why the copy may be outdated, for display; None while it is up to date.
        self.error: str | None = None
        self._session = session
        self._handler = handler
        self._path = resource.path(namespace)
        self._query = dict(selectors or {})
        self._page_size = page_size
        # Maximum silence of a watch in seconds. The server sends a bookmark about once a minute, except for a kind that
        # has not changed since the server started. The watch of such a kind is reopened at the same version after each
        # silence. The server counts as unreachable only if it does not accept the next watch.
        self._silence_seconds = silence_seconds
        self._transform = transform
        #: The newest resourceVersion; None to list before the next watch.
        self._version: str | None = None
        #: The highest resourceVersion as a number. It is kept after an error, because a list with a lower version comes
        #: from a restored backup.
        self._highest_version = 0
        #: Number of consecutive failures.
        self._failures = 0
        #: True if the last attempt got no response.
        self._is_unreachable = False
        #: Monotonic time at which the server accepted the watch.
        self._accepted_at = math.inf
        #: True if the watch has delivered an event.
        self._has_delivered = False
        self._watch: Watch | None = None
        # Guards _watch.
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = SupervisedThread(self._run, f"reflector-{resource}")

    def start(self) -> None:
        """Start to list and watch in a separate thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the watch. Calls of the handler have ended afterwards, unless the server stalls a list."""
        self._stop.set()
        with self._lock:
            watch = self._watch
        if watch is not None:
            watch.close()
        # Limit the wait, because the thread may wait for a response that never arrives.
        self._thread.join(5.0)

    def observe(self, obj: Object) -> None:
        """Store the response to a write immediately, so that the next reconcile uses it."""
        # Skip unknown objects before the transformation: `Store.observe` would not add them.
        if self.store.get(get_key(obj)) is not None:
            self.store.observe(self._transform(obj))

    def _run(self) -> None:
        while not self._stop.is_set():
            self._accepted_at, self._has_delivered = math.inf, False
            try:
                if self._version is None:
                    self._version = self._list()
                self._watch_from(self._version)
            except ExpiredError as error:
                log.info("listing again", resource=str(self.resource), why=str(error))
                self._version = None
                pause_seconds = self._compute_pause()
            except BackendError as error:
                if not isinstance(error, UnreachableError) and getattr(error, "status", 0) != 429:
                    # List again after an error response, which may mean that the version is invalid.
                    self._version = None
                pause_seconds = self._compute_pause_after(error)
                self._record_error(error)
            except Exception:
                # Continue after any exception, such as for an unexpected object.
                log.exception("cannot read objects", resource=str(self.resource))
                self.error = "an object cannot be read, see the log"
                self._version = None
                pause_seconds = self._compute_pause()
            else:
                # The server has ended the watch. Pause if the watch ended immediately, to avoid a tight loop.
                pause_seconds = 0.0 if self._reset_after_success() else self._compute_pause()
            self._stop.wait(pause_seconds)

    def _reset_after_success(self) -> bool:
        """Reset the failure count and return True if the last watch delivered an event or lasted five seconds."""
        if self._has_delivered or time.monotonic() - self._accepted_at >= 5.0:
            self._failures = 0
            return True
        return False

    def _compute_pause_after(self, error: BackendError) -> float:
        """Return the seconds to wait after an error. The first response after an outage resets the backoff."""
        was_unreachable, self._is_unreachable = self._is_unreachable, isinstance(error, UnreachableError)
        if was_unreachable and not self._is_unreachable:
            self._failures = min(self._failures, 1)
        pause_seconds = self._compute_pause(getattr(error, "retry_after", None))
        if not self._is_unreachable:
            return pause_seconds
        # Retry an unreachable server often, because an attempt is cheap, and changes are unknown until it succeeds.
        return min(pause_seconds, 4.0 * random.uniform(0.8, 1.2))  # noqa: S311

    def _compute_pause(self, retry_after: float | None = None) -> float:
        """Count a failure, and return the seconds until the next attempt: the backoff, or a longer Retry-After."""
        self._reset_after_success()
        self._failures += 1
        if self._failures == 1:
            pause_seconds = random.uniform(0, 0.2)  # noqa: S311
        else:
            pause_seconds = min(0.8 * 2 ** min(self._failures - 2, 10), 30.0)
            pause_seconds *= random.uniform(0.5, 1.5)  # noqa: S311
        # Limit the Retry-After, because a proxy in front of the server may send hours.
        retry_after = min(retry_after or 0.0, 60.0)
        return max(pause_seconds, retry_after * random.uniform(1.0, 1.2))  # noqa: S311

    def _record_error(self, error: BackendError) -> None:
        """Set `error`, and log it if it is new."""
        if self._stop.is_set():
            return
        if self.synced.is_set() and self._failures == 1 and isinstance(error, UnreachableError):
            # Ignore a single broken connection, which is routine.
            return
        text = str(error)
        if text != self.error:
            log.warning("cannot watch", resource=str(self.resource), error=text, hint=_make_hint(error))
        self.error = text

    def _list(self) -> str:
        """List all objects, report their changes, and return the resourceVersion of the list. Raises BackendError."""
        objects_by_key, version = self._read_from_cache()
        # Read from etcd if this instance of the API server lags behind the instance of the last response.
        if not version or (version.isdecimal() and int(version) < self._highest_version):
            objects_by_key, version = self._read_pages()
        if self._stop.is_set():
            return version
        is_restored = version.isdecimal() and int(version) < self._highest_version
        if is_restored:
            log.warning("the API server went back in time", resource=str(self.resource), version=version)
            self._highest_version = 0
        previous_objects = self.store.replace(objects_by_key, is_restored=is_restored)
        self._set_version(version)
        for key in (*objects_by_key, *(previous_objects.keys() - objects_by_key.keys())):
            previous_object, current_object = previous_objects.get(key), objects_by_key.get(key)
            if (
                previous_object is None
                or current_object is None
                or get_version(previous_object) != get_version(current_object)
            ):
                self._notify(key, previous_object, current_object)
        self.synced.set()
        return version

    def _read_from_cache(self) -> tuple[dict[Key, Object], str]:
        """Read all objects from the API server's own cache; return them with the version of the list.

        Returns an empty version if the objects are too large for one response. Pages are slower: for them, the API
        server reads all objects of the kind in etcd, including those that the selector excludes, whose authors could
        make a list exceed the timeout.
        """
        query = {**self._query, "resourceVersion": "0"}
        try:
            return self._reduce(read_page(self._session, self._path, query, MAX_PAGE_BYTES))
        except TooLargeError:
            return {}, ""

    def _read_pages(self) -> tuple[dict[Key, Object], str]:
        """Read all objects from etcd, in pages; return them with the version of the list."""
        objects_by_key: dict[Key, Object] = {}
        version = ""

        def read(query: dict[str, str], max_bytes: int) -> dict[str, Any]:
            return read_page(self._session, self._path, query, max_bytes)

        for page in iterate_pages(read, self._query, self._page_size):
            objects, version = self._reduce(page)
            objects_by_key |= objects
            if self._stop.is_set():
                break
        return objects_by_key, version

    def _reduce(self, page: dict[str, Any]) -> tuple[dict[Key, Object], str]:
        """Return the transformed objects of a page by key, and the version of the list."""
        objects_by_key: dict[Key, Object] = {}
        for item in page["items"]:
            # Add both fields, which the API server omits in the items of a list.
            item.setdefault("apiVersion", self.resource.api_version)
            item.setdefault("kind", self.resource.kind)
            objects_by_key[get_key(item)] = self._transform(item)
        return objects_by_key, str(page["metadata"]["resourceVersion"])

    def _notify(self, key: Key, previous_object: Object | None, current_object: Object | None) -> None:
        try:
            self._handler(key, previous_object, current_object)
        except Exception:
            # Continue after an error for one object, to process the changes of all other objects.
            log.exception("a change cannot be handled", resource=str(self.resource), object="/".join(key))

    def _set_version(self, version: str) -> None:
        """Record the highest version in a response."""
        if version.isdecimal():
            self._highest_version = max(self._highest_version, int(version))

    def _watch_from(self, version: str) -> None:
        """Watch from `version` until the server ends the watch. Raises BackendError."""
        query = dict(
            self._query,
            watch="1",
            allowWatchBookmarks="true",
            resourceVersion=version,
            timeoutSeconds=str(random.randint(*_WATCH_SECONDS)),  # noqa: S311
        )
        watch = self._session.watch(self._path, query, read_timeout=self._silence_seconds)
        with self._lock:
            self._watch = watch
        if self._stop.is_set():
            watch.close()
        self._accepted_at = time.monotonic()
        if self.error is not None:
            log.info("watching again", resource=str(self.resource))
            self.error = None
        try:
            # Close the iterator explicitly: a stored exception would keep the connection from garbage collection.
            with contextlib.closing(iter(watch)) as events:
                for event in events:
                    self._apply_event(event["type"], event["object"])
                    self._has_delivered = True
                    if self._stop.is_set():
                        break
        finally:
            with self._lock:
                self._watch = None
            watch.close()

    def _apply_event(self, kind: str, obj: Object) -> None:
        """Apply an event to the store, and report the change. Raises ApiServerError for an error event."""
        if kind == "ERROR":
            message = f"watch of {self.resource}: {obj.get('message', obj)}"
            if obj.get("code") == 410:
                raise ExpiredError(message, 410)
            retry_after = (obj.get("details") or {}).get("retryAfterSeconds")
            raise ApiServerError(message, int(obj.get("code") or 500), retry_after)
        version = get_version(obj)
        self._set_version(version)
        if kind in ("ADDED", "MODIFIED"):
            obj = self._transform(obj)
            self._notify(get_key(obj), self.store.put(obj), obj)
        elif kind == "DELETED":
            key = get_key(obj)
            self._notify(key, self.store.remove(key) or obj, None)
        # Set the version last: after an event that cannot be read, the reflector must list again.
        self._version = version


def _make_hint(error: BackendError) -> str:
    if isinstance(error, ForbiddenError):
        return "grant this to the account with an RBAC rule"
    if isinstance(error, ObjectNotFoundError):
        return "the API server does not know the kind: install its CRD"
    return "trying again"
