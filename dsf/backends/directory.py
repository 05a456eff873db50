"""The `dir` backend: reads a folder of manifests and writes the objects with their status.

The backend takes the place of the API server, which sets uid, generation and creation time, and of OCM's work agent,
which delivers the ConfigMap of a ManifestWork to the managed cluster. It is for laptops and tests with up to 200
clusters: all objects are in memory, and each object has a file in the output folder, from which a restarted hub
restores its state.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Sequence, Set
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TextIO

import dsf.log
from dsf.api import kubeyaml
from dsf.api.manifest import ManifestProblem
from dsf.api.meta import format_rfc3339
from dsf.api.types import CREDENTIALS_KEY, FILE_ANNOTATION, REDIS_PASSWORD_KEY, SENTINEL_PASSWORD_KEY
from dsf.backends.eventlimit import EventLimit
from dsf.backends.manifestfolder import MISSING_FILE_SECONDS, DeclaredObject, ManifestFolder
from dsf.backends.outfolder import (
    INPUT_KINDS,
    PRIVATE,
    DirectoryScores,
    OutFolder,
    make_identity,
    read_text,
    read_yaml,
    write_text,
)
from dsf.backends.protocol import Credentials, EventType, Kind, Manifest, ObjectKey, OnChange
from dsf.errors import BackendError, ObjectNotFoundError, SettingsError
from dsf.keys import is_name
from dsf.process.threads import SupervisedThread
from dsf.redisacl.keyids import KeyIds
from dsf.settings import Settings

log = dsf.log.get(__name__)

#: Minimum seconds between two polls of the folder. Expensive polls are less frequent, so that polling takes at most 2 %
#: of a core.
POLL_SECONDS: Final = 0.03
#: Minimum seconds between two checks of the output folder for changes by users.
REPAIR_SECONDS: Final = 5.0
#: Maximum number of events in `events.yaml`, newest last.
MAX_EVENTS: Final = 200
#: File with the valid key ids in the folder of an agent's credentials.
_KEY_IDS: Final = "key-ids.json"


class DirectoryBackend(DirectoryScores):
    """Implementation of `dsf.backends.protocol.Backend` on a folder of manifests."""

    def __init__(self, settings: Settings) -> None:
        """Prepare the backend for the folders in the settings. Raises SettingsError if a folder cannot be used."""
        if settings.addon_mode:
            raise SettingsError("DSF_ADDON_MODE: goes with DSF_BACKEND=kube; a folder of manifests has no addons")
        super().__init__(OutFolder.from_settings(settings))
        if settings.manifests is None or not settings.manifests.is_dir():
            raise SettingsError(f"DSF_MANIFESTS: {settings.manifests} is not a folder; create it or name another one")
        root = settings.manifests.resolve()
        self._folder = ManifestFolder(root, self._out.root, settings.namespace, grace=settings.departure_grace)
        # Guards the following attributes and their files. Held during writes, so that files and attributes agree.
        self._lock = threading.RLock()
        self._objects: dict[ObjectKey, Manifest] = {}
        self._problems: Sequence[ManifestProblem] | None = None
        self._events: list[dict[str, Any]] = []
        # The list in `events.yaml`; another list than `_events` after a new event.
        self._written_events = self._events
        self._event_limit = EventLimit()
        self._stop = threading.Event()
        self._thread = SupervisedThread(self._poll, "manifests")
        self._lock_file: TextIO | None = None
        self._on_change: OnChange = lambda _: None

    def start(self, on_change: OnChange) -> None:
        """See `Backend.start`. Raises BackendError if another hub uses the output folder."""
        self._lock_file = self._out.lock()
        self._restore()
        self.refresh_scores()
        keys_before = {*self._objects}
        self._scan(grace=0.0)
        self._on_change = on_change
        for key in keys_before | self._objects.keys():
            on_change(key)
        self._thread.start()

    def interrupt(self) -> None:
        """See `Backend.interrupt`. Does nothing, because `start` does not wait."""

    def stop(self) -> None:
        """See `Backend.stop`."""
        self._stop.set()
        self._thread.join()
        self._write_events()
        if self._lock_file is not None:
            self._lock_file.close()

    def list(self, kind: Kind) -> list[Manifest]:
        """See `Backend.list`."""
        with self._lock:
            return [manifest for key, manifest in self._objects.items() if key.kind is kind]

    def list_keys(self, kind: Kind) -> Sequence[ObjectKey]:
        """See `ScoreBackend.list_keys`."""
        if kind is Kind.SCORE:
            return [key for key in self._out.list_score_keys() if self.find_score(key.namespace, key.name) is not None]
        return [ObjectKey.from_manifest(manifest) for manifest in self.list(kind)]

    def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        """See `Backend.get`."""
        key = ObjectKey(kind, namespace, name)
        if kind is Kind.SCORE:
            return self._out.read(key)
        # Do not wait for the lock, which is held while large objects are written.
        return self._objects.get(key)

    def apply(self, manifest: Manifest) -> None:
        """See `Backend.apply`. Accepts only ManifestWorks, because users write the objects of other kinds."""
        key = ObjectKey.from_manifest(manifest)
        if key.kind is not Kind.WORK:
            raise BackendError(f"{key.kind} objects are written by people, not by the hub")
        with self._lock:
            stored_work = self._objects.get(key, {})
            new_work = {name: value for name, value in manifest.items() if name != "status"}
            new_work["metadata"] = {**new_work["metadata"], **_carry_identity(stored_work, new_work)}
            # Deliver the objects before the status reports their delivery.
            for delivered_object in new_work["spec"]["workload"]["manifests"]:
                # Skip Roles and RoleBindings: an agent that reads a folder needs no rights.
                if not delivered_object["apiVersion"].startswith("rbac."):
                    self._deliver(key.namespace, delivered_object)
            generation = new_work["metadata"]["generation"]
            is_new = "status" not in stored_work or stored_work["metadata"].get("generation") != generation
            new_work["status"] = (
                {"conditions": [_make_applied_condition(generation)]} if is_new else stored_work["status"]
            )
            self._store(key, new_work)

    def update_status(self, kind: Kind, namespace: str, name: str, status: Manifest) -> None:
        """See `Backend.update_status`."""
        key = ObjectKey(kind, namespace, name)
        with self._lock:
            stored_object = self._objects.get(key)
            if stored_object is None:
                raise ObjectNotFoundError(f"{kind} {name!r} is not there (any more)")
            if stored_object.get("status") != status:
                self._store(key, {**stored_object, "status": status})

    def delete(self, kind: Kind, namespace: str, name: str) -> None:
        """See `Backend.delete`. The objects that the ManifestWork delivered are deleted, too."""
        if kind is not Kind.WORK:
            raise BackendError(f"{kind} objects are removed by people, not by the hub")
        with self._lock:
            for path in sorted(self._out.get_cluster_folder(namespace).glob("*.yaml")):
                self._out.remove(path)
            self._objects.pop(ObjectKey(kind, namespace, name), None)

    def remove_finalizers(self, kind: Kind, namespace: str, name: str, finalizers: Set[str]) -> None:
        """See `Backend.remove_finalizers`. Does nothing: objects are deleted with their files."""

    def record_event(self, key: ObjectKey, type_: EventType, reason: str, message: str) -> None:
        """See `Backend.record_event`."""
        self._append_event(key.kind.value, key.namespace, key.name, type_, reason, message)

    def read_name_claims(self, namespace: str) -> str:
        """See `Backend.read_name_claims`."""
        return read_text(self._get_private_path(f"names.{namespace}.json")) or ""

    def keep_name_claims(self, namespace: str, text: str) -> None:
        """See `Backend.keep_name_claims`. The lock excludes other processes, so no conflict occurs."""
        write_text(self._get_private_path(f"names.{namespace}.json"), text)

    def describe_missing_fields(self) -> str:
        """See `Backend.describe_missing_fields`. A folder keeps all fields; unknown ones are errors in a manifest."""
        return ""

    def get_master_secret(self) -> str:
        """See `Backend.get_master_secret`. The secret is in a file that only its owner can read."""
        path = self._get_private_path("signing-secret")
        with self._lock:
            secret = read_text(path)
            if secret is None:
                secret = secrets.token_hex(32)
                write_text(path, f"{secret}\n", mode=0o600)
            return secret.strip()

    def deliver_credentials(self, cluster: str, credentials: Credentials) -> None:
        """See `Backend.deliver_credentials`. Files that only their owner can read contain the credentials."""
        # Write the key ids first, because an agent must not have credentials that a restarted hub does not know.
        files = {
            _KEY_IDS: credentials.key_ids.dump(),
            REDIS_PASSWORD_KEY: credentials.redis_password,
            SENTINEL_PASSWORD_KEY: credentials.sentinel_password,
            CREDENTIALS_KEY: credentials.signing_key,
        }
        for name, text in files.items():
            if text:
                self._out.put(self._get_credential_path(cluster, name), f"{text}\n", mode=0o600)
            else:
                # The file may exist from an earlier configuration.
                self._out.remove(self._get_credential_path(cluster, name))

    def get_delivered_key_ids(self, cluster: str) -> KeyIds | None:
        """See `Backend.get_delivered_key_ids`."""
        text = read_text(self._get_credential_path(cluster, _KEY_IDS))
        return None if text is None else KeyIds.parse(text)

    def remove_credentials(self, cluster: str) -> None:
        """See `Backend.remove_credentials`."""
        for name in (CREDENTIALS_KEY, REDIS_PASSWORD_KEY, SENTINEL_PASSWORD_KEY, _KEY_IDS):
            self._out.remove(self._get_credential_path(cluster, name))

    def _get_private_path(self, name: str) -> Path:
        return self._out.root / PRIVATE / name

    def _get_credential_path(self, cluster: str, name: str) -> Path:
        return self._out.get_cluster_folder(cluster) / "agent-credentials" / name

    def _deliver(self, cluster: str, manifest: Manifest) -> None:
        """Write an object of a ManifestWork to the cluster's folder. Raises BackendError."""
        name = manifest["metadata"]["name"]
        if not is_name(name):
            raise BackendError(f"{name!r} cannot be the name of an object")
        self._out.put(self._out.get_cluster_folder(cluster) / f"{name}.yaml", kubeyaml.dump(manifest))

    def _restore(self) -> None:
        """Restore the state of an earlier hub: identities, statuses, the file of each object, and events."""
        declared_objects: dict[ObjectKey, DeclaredObject] = {}
        for manifest in (manifest for kind in INPUT_KINDS for manifest in self._out.iter_objects(kind)):
            key = ObjectKey.from_manifest(manifest)
            self._store(key, manifest)
            annotations = manifest["metadata"].get("annotations")
            file = annotations.get(FILE_ANNOTATION) if isinstance(annotations, dict) else None
            if isinstance(file, str):
                declared_objects[key] = DeclaredObject(_make_source_manifest(manifest), file, 0)
        self._folder.restore(declared_objects)
        for work in self._out.iter_objects(Kind.WORK):
            key = ObjectKey.from_manifest(work)
            self._objects[key] = work
            try:
                self.apply(work)
            except (BackendError, LookupError, TypeError, AttributeError) as error:
                log.warning("an edited ManifestWork is made anew", cluster=key.namespace, error=repr(error))
                del self._objects[key]
        events = read_yaml(self._out.root / "events.yaml")
        self._events = self._written_events = events if isinstance(events, list) else []

    def _poll(self) -> None:
        """Poll the folder until the backend is stopped."""
        repair_at = time.monotonic() + REPAIR_SECONDS
        pause_seconds = POLL_SECONDS
        while not self._stop.wait(pause_seconds):
            started_at, cpu_start = time.monotonic(), time.thread_time()
            try:
                is_changed = self._scan()
                # Poll soon after a change, because more changes may follow. Otherwise poll for 2 % of the time.
                poll_cpu_seconds = time.thread_time() - cpu_start
                pause_seconds = POLL_SECONDS if is_changed else max(POLL_SECONDS, 50 * poll_cpu_seconds)
                self._write_events()
                if started_at >= repair_at:
                    # Advance the time first, so that a failing repair is not retried at each poll.
                    repair_at = started_at + REPAIR_SECONDS
                    cpu_start = time.thread_time()
                    self._out.repair()
                    for key in self.refresh_scores():
                        self._on_change(key)
                    # A repair reads each file, which takes a second for 10,000 scores: repair for 0.5 % of the time.
                    repair_at = started_at + max(REPAIR_SECONDS, 200 * (time.thread_time() - cpu_start))
            except BackendError as error:
                log.error("files cannot be written, will be tried again", error=str(error))
            except Exception:
                # Continue after any exception, because without this thread the folder is not read any more.
                log.exception("the folder of manifests cannot be read")

    def _scan(self, *, grace: float = MISSING_FILE_SECONDS) -> bool:
        """Read the folder, update the objects and report changes. Return True if an object has changed.

        `grace` is the number of seconds for which the objects of a missing file stay.
        """
        changed_keys = self._folder.refresh(grace=grace)
        if self._folder.problems != self._problems:
            self._report_problems(self._folder.problems)
        # Keep the lock until all objects are updated, so that readers see the changes of a poll together.
        with self._lock:
            for key in changed_keys:
                try:
                    self._apply_declared(key, self._folder.objects.get(key))
                except BackendError as error:
                    # The object in memory is updated. The next `repair` writes its file.
                    log.error("an object cannot be stored, will be tried again", object=key.name, error=str(error))
        for key in changed_keys:
            self._on_change(key)
        return bool(changed_keys)

    def _apply_declared(self, key: ObjectKey, declared_object: DeclaredObject | None) -> None:
        """Update an object from the users' folder; delete it if `declared_object` is None. Raises BackendError."""
        if declared_object is None:
            self._objects.pop(key, None)
            self._out.remove(self._out.get_path(key))
            return
        stored_object, new_object = self._objects.get(key, {}), dict(declared_object.manifest)
        annotations = {**new_object["metadata"].get("annotations", {}), FILE_ANNOTATION: declared_object.file}
        new_object["metadata"] = {
            **new_object["metadata"],
            "annotations": annotations,
            **_carry_identity(stored_object, new_object),
        }
        if "status" in stored_object:
            new_object["status"] = stored_object["status"]
        self._store(key, new_object)

    def _store(self, key: ObjectKey, manifest: Manifest) -> None:
        """Store an object in memory and in its file in the output folder. Raises BackendError if writing fails."""
        self._objects[key] = manifest
        self._out.put(self._out.get_path(key), kubeyaml.dump(manifest))

    def _report_problems(self, problems: Sequence[ManifestProblem]) -> None:
        """Write the current problems to `problems.yaml`; report new problems in the log and as events."""
        previous_problems, self._problems = self._problems or (), problems
        problem_records = [
            {name: getattr(problem, name) for name in ("line", "field", "message", "severity")}
            | {"file": problem.source}
            for problem in problems
        ]
        self._write_user_file("problems.yaml", problem_records)
        reported_problems = frozenset(previous_problems)
        for problem in problems:
            if problem in reported_problems:
                continue
            # Omit line 0, which stands for the whole folder or file.
            text = str(problem) if problem.line else f"{problem.source}: {problem.message}"
            is_error = problem.severity == "error"
            (log.warning if is_error else log.info)("manifest problem", problem=text)
            type_: EventType = "Warning" if is_error else "Normal"
            self._append_event("File", "", problem.source, type_, "ManifestProblem", text)

    def _append_event(self, kind: str, namespace: str, name: str, type_: EventType, reason: str, message: str) -> None:
        if not self._event_limit.try_acquire(f"{kind}/{namespace}/{name}", type_, reason, message):
            return
        event = {
            "time": format_rfc3339(datetime.now(UTC)),
            "type": type_,
            "reason": reason,
            "regarding": {"kind": kind, "namespace": namespace, "name": name},
            "message": message,
        }
        with self._lock:
            self._events = [*self._events, event][-MAX_EVENTS:]

    def _write_events(self) -> None:
        events = self._events
        if events is not self._written_events:
            self._written_events = events
            self._write_user_file("events.yaml", events)

    def _write_user_file(self, name: str, records: Sequence[Manifest]) -> None:
        """Write a file for users. If writing fails, log the error; the next `repair` retries."""
        try:
            self._out.put(self._out.root / name, kubeyaml.dump([*records]))
        except BackendError as error:
            log.warning("a file for users cannot be written, will be tried again", error=str(error))


def _carry_identity(stored_object: Manifest, new_object: Manifest) -> Manifest:
    """Return the metadata that the API server would set; `stored_object` is empty for a new object."""
    metadata = stored_object.get("metadata", {})
    identity_fields = {name: metadata[name] for name in ("uid", "creationTimestamp") if metadata.get(name)}
    # The generation is missing if a user edited the file.
    generation = metadata["generation"] if isinstance(metadata.get("generation"), int) else 0
    return (
        make_identity()
        | identity_fields
        | {"generation": generation + (stored_object.get("spec") != new_object.get("spec"))}
    )


def _make_applied_condition(generation: int) -> Manifest:
    return {
        "type": "Applied",
        "status": "True",
        "reason": "AppliedManifestWorkComplete",
        "message": "Apply manifest work complete",
        "lastTransitionTime": format_rfc3339(datetime.now(UTC)),
        "observedGeneration": generation,
    }


def _make_source_manifest(manifest: Manifest) -> Manifest:
    """Return an object as in its source file, without status and without the metadata that this backend adds."""
    metadata = {name: value for name, value in manifest["metadata"].items() if name in ("name", "namespace", "labels")}
    annotations = {
        name: value
        for name, value in (manifest["metadata"].get("annotations") or {}).items()
        if name != FILE_ANNOTATION
    }
    if annotations:
        metadata["annotations"] = annotations
    return {**{name: value for name, value in manifest.items() if name != "status"}, "metadata": metadata}
