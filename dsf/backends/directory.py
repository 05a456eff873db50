"""The `dir` backend: reads a folder of manifests and writes the objects with their status.

It replaces the API server (uid, generation, creation time) and OCM's work agent, which delivers the ConfigMap of a
ManifestWork to the managed cluster. Its state is in the out folder.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import uuid
from collections.abc import Collection, Iterator, Sequence
from copy import deepcopy
from typing import Final

import watchfiles

import dsf.log
from dsf.api.manifest import ManifestProblem
from dsf.api.types import MANIFESTWORK_NAME
from dsf.backends.deliveries import CredentialFiles, WorkAgent
from dsf.backends.eventlog import EventLog, ProblemReport
from dsf.backends.files import read_text, write_text
from dsf.backends.manifestfolder import GRACE, INPUT_KINDS, Declared, ManifestFolder
from dsf.backends.outfolder import (
    FILE_ANNOTATION,
    PRIVATE,
    FolderLock,
    OutFolder,
    as_written,
    generation,
    key_of,
    merged,
    now,
    origin,
)
from dsf.backends.protocol import EventType, Kind, Manifest, ObjectKey, OnChange
from dsf.backends.scores import DirectoryScores
from dsf.errors import BackendError, ObjectNotFoundError, SettingsError
from dsf.process.threads import SupervisedThread
from dsf.settings import Settings

log = dsf.log.get(__name__)

#: Milliseconds for which changes are collected; several files are often written together.
#: Milliseconds between two checks of the clock without changes.
#: Seconds between two full scans of the folder, for file systems without change notifications.
RESCAN: Final = 5.0


class DirectoryBackend(DirectoryScores, CredentialFiles):
    """See `dsf.backends.protocol.Backend`."""

    def __init__(self, settings: Settings) -> None:
        """Raises SettingsError when the folders cannot be used."""
        if settings.addon_mode:
            raise SettingsError("DSF_ADDON_MODE: goes with DSF_BACKEND=kube; a folder of manifests has no addons")
        self._out = OutFolder.of(settings)
        DirectoryScores.__init__(self, self._out)
        CredentialFiles.__init__(self, self._out)
        self._work_agent = WorkAgent(self._out)
        if settings.manifests is None or not settings.manifests.is_dir():
            raise SettingsError(f"DSF_MANIFESTS: {settings.manifests} is not a folder; create it or name another one")
        self._root = settings.manifests.resolve()
        self._folder = ManifestFolder(self._root, self._out.root, settings.namespace, grace=settings.departure_grace)
        self._events = EventLog(self._out.root / "events.yaml")
        self._objects: dict[ObjectKey, Manifest] = {}
        self._claims = self._out.root / PRIVATE / "names.json"
        self._report = ProblemReport(self._out.root / "problems.yaml", self._events)
        # Guards _objects and the files made from them. Held while writing, so that file and memory agree.
        self._lock = threading.RLock()
        # Guard the delivered files of a cluster; several, so that writing for one does not block others.
        self._delivering = tuple(threading.Lock() for _ in range(16))
        self._version = 0
        # Whether an object could not be stored at the last scan.
        self._is_behind = False
        self._stop = threading.Event()
        self._thread = SupervisedThread(self._watch, "manifests")
        self._folder_lock: FolderLock | None = None
        self._on_change: OnChange = _untold

    def start(self, on_change: OnChange) -> None:
        """See the protocol. Raises BackendError when another hub uses the out folder."""
        self._folder_lock = FolderLock(self._out.root)
        self._events.load()
        self._restore()
        self._on_change = on_change
        self._refresh((), everything=True)
        self._thread.start()

    def interrupt(self) -> None:
        """Nothing to interrupt: reading a folder does not wait."""

    def stop(self) -> None:
        """See the protocol."""
        self._stop.set()
        self._thread.join()
        if self._folder_lock is not None:
            self._folder_lock.release()
            self._folder_lock = None

    def list(self, kind: Kind) -> list[Manifest]:
        """See the protocol. Objects written by the hub are read from their files, so that edits are noticed."""
        if kind in INPUT_KINDS:
            with self._lock:
                return [manifest for key, manifest in self._objects.items() if key.kind is kind]
        manifests = (self.get(*key) for key in self.keys(kind))
        return [manifest for manifest in manifests if manifest is not None]

    def keys(self, kind: Kind) -> Sequence[ObjectKey]:
        """See the protocol."""
        if kind not in INPUT_KINDS:
            return [*self._out.keys(kind)] if kind in (Kind.WORK, Kind.SCORE) else []
        with self._lock:
            return [key for key in self._objects if key.kind is kind]

    def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        """See the protocol."""
        key = ObjectKey(kind, namespace, name)
        if kind not in INPUT_KINDS:
            return self._out.read(key)
        with self._lock:
            return self._objects.get(key)

    def apply(self, manifest: Manifest) -> None:
        """See the protocol. Only for kinds that the hub creates; users own the others."""
        key = key_of(manifest)
        if key.kind in INPUT_KINDS:
            raise BackendError(f"{key.kind} objects are written by people, not by the hub")
        with self._at_work(key.namespace):
            before = self._out.read(key)
            body = {name: value for name, value in manifest.items() if name != "status"}
            after = merged(before or {}, body)
            metadata = after["metadata"]
            if before is None:
                metadata |= {"uid": str(uuid.uuid4()), "creationTimestamp": now(), "generation": 0}
            if before is None or before.get("spec") != after.get("spec"):
                metadata["generation"] = generation(metadata) + 1
            if key.kind is Kind.WORK:
                # Deliver even an unchanged work: the delivered files may have been edited or removed.
                after["status"] = self._work_agent.deliver(after)
            if after != before:
                self._out.write(key, after)

    def update_status(self, kind: Kind, namespace: str, name: str, status: Manifest) -> None:
        """See the protocol."""
        key = ObjectKey(kind, namespace, name)
        with self._lock:
            before = self.get(kind, namespace, name)
            if before is None:
                raise ObjectNotFoundError(f"{kind} {name!r} is not there (any more)")
            if before.get("status") != status:
                self._keep(key, {**before, "status": deepcopy(status)})

    def delete(self, kind: Kind, namespace: str, name: str) -> None:
        """See the protocol."""
        if kind in INPUT_KINDS:
            raise BackendError(f"{kind} objects are removed by people, not by the hub")
        key = ObjectKey(kind, namespace, name)
        with self._at_work(namespace):
            if kind is Kind.WORK:
                self._work_agent.withdraw(namespace)
            self._out.delete(key)

    def add_finalizer(self, kind: Kind, namespace: str, name: str, finalizer: str) -> None:
        """No effect: a deleted file cannot be kept."""

    def remove_finalizer(self, kind: Kind, namespace: str, name: str, finalizer: str) -> None:
        """See `add_finalizer`."""

    def event(self, about: ObjectKey, type_: EventType, reason: str, message: str) -> None:
        """See the protocol."""
        self._events.add(about, type_, reason, message)

    def name_claims(self) -> str:
        """See the protocol."""
        return read_text(self._claims) or ""

    def keep_name_claims(self, text: str) -> None:
        """See the protocol. No other process has this folder."""
        write_text(self._claims, text)

    def problems(self) -> Sequence[ManifestProblem]:
        """See the protocol."""
        return self._report.problems

    def _at_work(self, cluster: str) -> threading.Lock:
        return self._delivering[hash(cluster) % len(self._delivering)]

    def _restore(self) -> None:
        """Restore the state of an earlier hub: identities, statuses, and the file of each object."""
        held: dict[ObjectKey, Declared] = {}
        for kind in INPUT_KINDS:
            for manifest in self._out.all(kind):
                key = key_of(manifest)
                self._objects[key] = self._numbered(manifest)
                if (file := origin(manifest)) is not None:
                    held[key] = Declared(as_written(manifest), file, 0)
        self._folder.restore(held)

    def _watch(self) -> None:
        """Watch the folder until the backend is stopped."""
        while not self._stop.is_set():
            try:
                if self._folder.is_readable:
                    self._follow()
            except Exception:
                # Poll until the folder can be watched again.
                log.exception("the folder of manifests cannot be watched", folder=str(self._root))
            if not self._stop.wait(RESCAN if self._folder.is_readable else 0.5):
                try:
                    self._refresh(())
                except Exception:
                    # It must not end the thread: the folder would never be read again.
                    log.exception("the folder of manifests cannot be read", folder=str(self._root))

    def _follow(self) -> None:
        """Watch the folder while it exists."""
        last = 0.0
        for changes in watchfiles.watch(
            self._root,
            watch_filter=lambda _, path: self._folder.concerns(path),
            # Milliseconds; several files are often written together.
            debounce=50,
            step=20,
            stop_event=self._stop,
            rust_timeout=200,
            yield_on_timeout=True,
            raise_interrupt=False,
            ignore_permission_denied=True,
        ):
            # Scan immediately: the folder may have changed before the watch began.
            is_time = time.monotonic() - last >= RESCAN
            if changes or is_time or self._folder.is_settling:
                self._refresh({path for _, path in changes})
            if not self._folder.is_readable:
                # A recreated folder needs a new watch.
                return
            if is_time:
                last = time.monotonic()
                self._look_at_delivered()

    def _look_at_delivered(self) -> None:
        """Repair delivered objects, as the work agent on a cluster does; the hub repairs ManifestWorks and
        credentials."""
        changed = self._out.delivered.changed()
        for cluster in sorted({path.relative_to(self._out.root).parts[1] for path in changed}):
            key = ObjectKey(Kind.WORK, cluster, MANIFESTWORK_NAME)
            try:
                with self._at_work(cluster):
                    if (work := self._out.read(key)) is not None:
                        self._work_agent.deliver(work)
            except (BackendError, LookupError, TypeError) as error:
                log.warning("a ManifestWork cannot be delivered", cluster=cluster, error=str(error))
            self._on_change(key)

    def _refresh(self, changed: Collection[str], *, everything: bool = False) -> None:
        """Read the folder and update the objects; reports `everything` or only differences."""
        if everything:
            differs = self._folder.refresh(changed, grace=0.0, most_new=sys.maxsize)
        else:
            differs = self._folder.refresh(changed, grace=GRACE)
        if not (differs or everything or self._is_behind or not self._report.is_written):
            return
        self._is_behind = False
        self._report.update(self._folder.problems)
        wanted = self._folder.objects
        new: dict[ObjectKey, Manifest] = {}
        touched: list[ObjectKey] = []
        # One lock for all: objects that changed together become visible together.
        with self._lock:
            for key in [*self._objects]:
                with self._reported(key):
                    if self._take(key, wanted.get(key)) or (everything and key in wanted):
                        touched.append(key)
        for key in touched:
            self._on_change(key)
        # After the edits, which would wait for a thousand files, and without the lock: nobody knows these objects yet.
        for key in [key for key in wanted if key not in self._objects]:
            with self._reported(key):
                new[key] = self._write(key, _updated(wanted[key], None))
        with self._lock:
            for key, manifest in new.items():
                self._objects[key] = self._numbered(manifest)
        for key in new:
            self._on_change(key)

    @contextlib.contextmanager
    def _reported(self, key: ObjectKey) -> Iterator[None]:
        """Log that this object cannot be stored; the others go on."""
        try:
            yield
        except BackendError as error:
            log.error("an object cannot be stored, will be tried again", object=key.name, error=str(error))
            self._is_behind = True

    def _take(self, key: ObjectKey, declared: Declared | None) -> bool:
        """Update one known object from its file; returns whether it changed. The lock is declared."""
        before = self._objects[key]
        if declared is None:
            self._out.delete(key)
            del self._objects[key]
            return True
        if origin(before) == declared.file and as_written(before) == declared.manifest:
            return False
        self._keep(key, _updated(declared, before))
        return True

    def _keep(self, key: ObjectKey, manifest: Manifest) -> None:
        """Store one object. The lock is held."""
        self._objects[key] = self._numbered(self._write(key, manifest))

    def _write(self, key: ObjectKey, manifest: Manifest) -> Manifest:
        """Write the object's file; returns the object as it is there. Raises BackendError."""
        shown = {**manifest, "metadata": {**manifest["metadata"]}}
        shown["metadata"].pop("resourceVersion", None)
        self._out.write(key, shown)
        return shown

    def _numbered(self, manifest: Manifest) -> Manifest:
        """The object with a new resourceVersion, which is not stored: it is a counter of this process."""
        self._version += 1
        return {**manifest, "metadata": {**manifest["metadata"], "resourceVersion": str(self._version)}}


def _updated(declared: Declared, before: Manifest | None) -> Manifest:
    """The object after its file was read; `before` is what it was, if it existed."""
    metadata = dict(declared.manifest["metadata"])
    metadata["annotations"] = {**metadata.get("annotations", {}), FILE_ANNOTATION: declared.file}
    if before is None:
        metadata |= {"uid": str(uuid.uuid4()), "creationTimestamp": now(), "generation": 1}
        return {**declared.manifest, "metadata": metadata}
    old = before["metadata"]
    metadata["uid"] = old.get("uid") or str(uuid.uuid4())
    metadata["creationTimestamp"] = old.get("creationTimestamp") or now()
    metadata["generation"] = generation(old) + (before.get("spec") != declared.manifest.get("spec"))
    status = {"status": before["status"]} if "status" in before else {}
    return {**declared.manifest, "metadata": metadata, **status}


def _untold(_: ObjectKey) -> None:
    """Callback for changes before `start`."""
