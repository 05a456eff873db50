"""The `dir` backend: reads a folder of manifests and writes the objects with their status.

It replaces the API server (uid, generation, creation time) and OCM's work agent, which delivers the ConfigMap of a
ManifestWork to the managed cluster. Its state is in the out folder.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Sequence
from copy import deepcopy
from typing import Final

import dsf.log
from dsf.api import kubeyaml
from dsf.api.manifest import ManifestProblem
from dsf.api.types import MANIFESTWORK_NAME
from dsf.backends.deliveries import CredentialFiles, WorkAgent
from dsf.backends.eventlog import EventLog, ProblemReport
from dsf.backends.files import read_text, write_text
from dsf.backends.manifestfolder import GRACE, Declared, ManifestFolder
from dsf.backends.outfolder import (
    FILE_ANNOTATION,
    INPUT_KINDS,
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

#: Seconds between two looks at the folder; more if they take long, so that they take a fiftieth of the time at most.
LOOK: Final = 0.1
#: Seconds between two looks at what was delivered into clusters' folders.
LOOK_AT_DELIVERED: Final = 5.0


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
        root = settings.manifests.resolve()
        self._folder = ManifestFolder(root, self._out.root, settings.namespace, grace=settings.departure_grace)
        self._events = EventLog(self._out.root / "events.yaml")
        self._objects: dict[ObjectKey, Manifest] = {}
        self._claims = self._out.root / PRIVATE / "names.json"
        self._report = ProblemReport(self._out.root / "problems.yaml", self._events)
        # Guards _objects and the files made from them. Held while writing, so that file and memory agree.
        self._lock = threading.RLock()
        # Guards ManifestWorks and what they deliver.
        self._delivering = threading.Lock()
        self._version = 0
        # Whether an object could not be stored at the last look.
        self._is_behind = False
        self._stop = threading.Event()
        self._thread = SupervisedThread(self._watch, "manifests")
        self._folder_lock: FolderLock | None = None
        self._on_change: OnChange = lambda _: None

    def start(self, on_change: OnChange) -> None:
        """See the protocol. Raises BackendError when another hub uses the out folder."""
        self._folder_lock = FolderLock(self._out.root)
        self._events.load()
        self._restore()
        self._on_change = on_change
        self._refresh(everything=True)
        self._thread.start()

    def interrupt(self) -> None:
        """Nothing to interrupt: reading a folder does not wait."""

    def stop(self) -> None:
        """See the protocol."""
        self._stop.set()
        self._thread.join()
        self._events.write()
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
        """See the protocol. Only for ManifestWorks, the one kind that the hub creates here."""
        key = key_of(manifest)
        if key.kind is not Kind.WORK:
            raise BackendError(f"{key.kind} objects are written by people, not by the hub")
        with self._delivering:
            before = self._out.read(key)
            body = {name: value for name, value in manifest.items() if name != "status"}
            after = merged(before or {}, body)
            metadata = after["metadata"]
            if before is None:
                metadata |= {"uid": str(uuid.uuid4()), "creationTimestamp": now(), "generation": 0}
            if before is None or before.get("spec") != after.get("spec"):
                metadata["generation"] = generation(metadata) + 1
            after["status"] = self._work_agent.deliver(after)
            self._out.deliver(self._out.path(key), kubeyaml.dump(after))

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
        if kind is not Kind.WORK:
            raise BackendError(f"{kind} objects are removed by people, not by the hub")
        with self._delivering:
            self._work_agent.withdraw(namespace)
            self._out.delete(ObjectKey(kind, namespace, name))

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
        """Look at the folder until the backend is stopped."""
        delivered_at = time.monotonic()
        pause = LOOK
        while not self._stop.wait(pause):
            began = time.monotonic()
            try:
                self._refresh()
                if began - delivered_at >= LOOK_AT_DELIVERED:
                    delivered_at = began
                    self._look_at_delivered()
            except Exception:
                # It must not end the thread: the folder would never be read again.
                log.exception("the folder of manifests cannot be read")
            pause = max(LOOK, 50 * (time.monotonic() - began))

    def _look_at_delivered(self) -> None:
        """Repair delivered objects, as the work agent on a cluster does; the hub repairs ManifestWorks and
        credentials."""
        for cluster in sorted(self._out.edited_clusters()):
            key = ObjectKey(Kind.WORK, cluster, MANIFESTWORK_NAME)
            try:
                with self._delivering:
                    if (work := self._out.read(key)) is not None:
                        self._work_agent.deliver(work)
            except (BackendError, LookupError, TypeError) as error:
                log.warning("a ManifestWork cannot be delivered", cluster=cluster, error=str(error))
            self._on_change(key)

    def _refresh(self, *, everything: bool = False) -> None:
        """Read the folder and update the objects; reports `everything` or only differences."""
        differs = self._folder.refresh(grace=0.0 if everything else GRACE)
        self._report.update(self._folder.problems)
        if differs or everything or self._is_behind:
            self._update(self._folder.objects, everything=everything)
        self._events.write()

    def _update(self, wanted: dict[ObjectKey, Declared], *, everything: bool) -> None:
        self._is_behind = False
        touched: list[ObjectKey] = []
        # One lock for all: objects that changed together become visible together.
        with self._lock:
            for key in {**self._objects, **wanted}:
                try:
                    if self._take(key, wanted.get(key)) or everything:
                        touched.append(key)
                except BackendError as error:
                    # The others go on.
                    log.error("an object cannot be stored, will be tried again", object=key.name, error=str(error))
                    self._is_behind = True
        for key in touched:
            self._on_change(key)

    def _take(self, key: ObjectKey, declared: Declared | None) -> bool:
        """Update one object from its file; returns whether it changed. The lock is held."""
        before = self._objects.get(key)
        if declared is None:
            self._out.delete(key)
            del self._objects[key]
            return True
        if before is not None and origin(before) == declared.file and as_written(before) == declared.manifest:
            return False
        self._keep(key, _updated(declared, before))
        return True

    def _keep(self, key: ObjectKey, manifest: Manifest) -> None:
        """Store one object. The lock is held."""
        shown = {**manifest, "metadata": {**manifest["metadata"]}}
        shown["metadata"].pop("resourceVersion", None)
        self._out.write(key, shown)
        self._objects[key] = self._numbered(shown)

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
