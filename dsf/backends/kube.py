"""The hub's backend on Kubernetes: reads through reflectors, writes by server-side apply."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence, Set
from datetime import datetime
from functools import partial
from typing import Final

import dsf.log
from dsf.api.crd import make_crds
from dsf.api.types import (
    CONFIG_NAME,
    CONFIGMAP_NAME,
    CREDENTIALS_WORK_NAME,
    MANAGED_BY,
    MANAGED_BY_LABEL,
    MANIFESTWORK_NAME,
)
from dsf.backends.compare import work_contains
from dsf.backends.contest import WriteContests
from dsf.backends.kube_crds import describe_missing_fields
from dsf.backends.kube_credentials import get_master_secret, make_credentials_work, read_key_ids
from dsf.backends.kube_events import EventRecorder
from dsf.backends.kube_kinds import (
    FIELD_MANAGER,
    MAX_FOREIGN_SPEC_BYTES,
    MAX_SPEC_BYTES,
    USER_KINDS,
    WATCHED,
    reduce_user_object,
)
from dsf.backends.kube_scores import KubeScores, write_status
from dsf.backends.memoryshares import MAX_BYTES, MAX_FOREIGN_BYTES, MIN_SHARE, MemoryShares
from dsf.backends.protocol import Credentials, EventType, Kind, Manifest, ObjectKey, OnChange
from dsf.backends.scorestate import ScoreState, is_ours
from dsf.errors import (
    BackendError,
    ContestedObjectError,
    ForeignObjectError,
    ObjectConflictError,
    ObjectNotFoundError,
)
from dsf.kube.lists import list_objects
from dsf.kube.reflector import Reflector
from dsf.kube.resources import CONFIG_MAPS, DYNAMIC_SCORING_CONFIGS
from dsf.kube.session import Session
from dsf.kube.store import Key, Object
from dsf.redisacl.keyids import KeyIds
from dsf.settings import Settings
from dsf.text import clean, list_names

log = dsf.log.get(__name__)

#: Maximum seconds until the first list of each kind is complete.
_MAX_SYNC_SECONDS: Final = 60.0
#: Name and key of the ConfigMap with the name claims. The ConfigMap is in the hub's namespace, where the authors of
#: scorers cannot change it.
CLAIMS_NAME: Final = "dynamic-scoring-names"
CLAIMS_KEY: Final = "claims"


class KubeBackend:
    """Implementation of `dsf.backends.protocol.Backend` on Kubernetes.

    The backend stores only the used parts of objects. For an AddOnPlacementScore, these are the identity and the state.
    """

    def __init__(self, session: Session, settings: Settings) -> None:
        self._session = session
        #: Namespace -> resourceVersion of the ConfigMap with its claims, as last read or written.
        self._claims_versions: dict[str, str] = {}
        self._agent_namespace = settings.agent_namespace
        self._events = EventRecorder(session, socket.gethostname())
        self._on_change: OnChange | None = None
        # Held while `_on_change` runs: each reflector has its own thread.
        self._notify_lock = threading.RLock()
        self._stopping = threading.Event()
        self._namespace = settings.namespace
        self._config_spec = settings.scoring_config
        self._scorer_namespaces = frozenset((settings.namespace, *settings.scorer_namespaces))
        self._memory = MemoryShares()
        self._contests = WriteContests()
        is_enabled = {Kind.ADDON: settings.addon_mode, Kind.SECRET: settings.secret_delivery}
        # Reflectors by kind and name; the name is empty unless the objects of the kind are watched by name.
        self._reflectors = {
            (kind, name): self._make_reflector(kind, name)
            for kind, watched in WATCHED.items()
            if is_enabled.get(kind, True)
            for name in watched.names or ("",)
        }
        scores = self._reflectors[Kind.SCORE, ""]
        self._scores = KubeScores(session, scores.store.get, scores.observe)

    def start(self, on_change: OnChange) -> None:
        """See `Backend.start`.

        Raises BackendError if a kind cannot be listed within a minute, if the API server rejects the
        DynamicScoringConfig of the settings, or if `stop` or `interrupt` is called.
        """
        self._on_change = on_change
        for reflector in self._reflectors.values():
            reflector.start()
        started_at = last_warning_at = time.monotonic()
        while unsynced_reflectors := [
            reflector for reflector in self._reflectors.values() if not reflector.synced.is_set()
        ]:
            now = time.monotonic()
            if now - last_warning_at > 10.0:
                last_warning_at = now
                for reflector in unsynced_reflectors:
                    log.warning("waiting for the first list", resource=str(reflector.resource), error=reflector.error)
            if now - started_at > _MAX_SYNC_SECONDS:
                causes = "; ".join(
                    f"{reflector.resource}: {reflector.error or 'no response'}" for reflector in unsynced_reflectors
                )
                raise BackendError(f"cannot read from the API server: {causes}")
            if self._stopping.wait(0.1):
                raise BackendError("stopped before everything was read")
        self._create_scoring_config()

    def _create_scoring_config(self) -> None:
        """Create the DynamicScoringConfig of the settings. Keeps an existing object, which belongs to users."""
        if not self._config_spec:
            return
        body = {
            "apiVersion": DYNAMIC_SCORING_CONFIGS.api_version,
            "kind": DYNAMIC_SCORING_CONFIGS.kind,
            "metadata": {"name": CONFIG_NAME, "namespace": self._namespace},
            "spec": self._config_spec,
        }
        with contextlib.suppress(ObjectConflictError):
            self._session.create(DYNAMIC_SCORING_CONFIGS.path(self._namespace), body)
            log.info("created the DynamicScoringConfig", namespace=self._namespace)

    def interrupt(self) -> None:
        """See `Backend.interrupt`."""
        self._stopping.set()

    def stop(self) -> None:
        """See `Backend.stop`. May be called by another thread while `start` waits."""
        self._stopping.set()
        with self._notify_lock:
            self._on_change = None
        self._events.close()
        for reflector in self._reflectors.values():
            reflector.stop()
        self._session.close()

    def list(self, kind: Kind) -> list[Manifest]:
        """See `Backend.list`."""
        return [manifest for reflector in self._iterate_reflectors(kind) for manifest in reflector.store.list()]

    def list_keys(self, kind: Kind) -> Sequence[ObjectKey]:
        """See `ScoreBackend.list_keys`."""
        return [
            ObjectKey(kind, *key) for reflector in self._iterate_reflectors(kind) for key in reflector.store.list_keys()
        ]

    def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        """See `Backend.get`."""
        reflector = self._find_reflector(kind, name)
        return reflector.store.get((namespace, name)) if reflector else None

    def apply(self, manifest: Manifest) -> None:
        """See `Backend.apply`."""
        kind = Kind(manifest["kind"])
        metadata = manifest["metadata"]
        key = ObjectKey(kind, metadata.get("namespace", ""), metadata["name"])
        self._require_uncontested(key, manifest)
        stored_object = self.get(*key)
        if stored_object is None:
            stored_object = self._fetch_adoptable(key)
        try:
            applied_object = self._apply_to(stored_object, key, manifest)
        except ObjectConflictError:
            # The watch has not reported yet that the object was deleted, or created by another program.
            applied_object = self._apply_to(self._fetch_adoptable(key), key, manifest)
        self._contests.record_write((key, ""), manifest)
        self._observe(kind, applied_object)

    def _require_uncontested(self, key: ObjectKey, content: Manifest, subresource: str = "") -> None:
        """Raise ContestedObjectError if another program keeps changing this content and the next repair is not due."""
        wait_seconds = self._contests.compute_wait((key, subresource), content)
        if not wait_seconds:
            return
        stored_objects = list_objects(self._session, WATCHED[key.kind].resource, key.namespace, name=key.name)
        entries = [entry for manifest in stored_objects for entry in manifest["metadata"].get("managedFields") or ()]
        managers = {
            clean(str(entry.get("manager")), 100): str(entry.get("time"))
            for entry in sorted(entries, key=lambda entry: str(entry.get("time")))
            if entry.get("manager") != FIELD_MANAGER and entry.get("subresource", "") == subresource
        }
        # Sort the field managers by the time of their last write, newest first.
        names = sorted(managers, key=lambda name: managers[name], reverse=True)
        raise ContestedObjectError(
            f"another program changes {key.kind.value} {key.name} in namespace {key.namespace} again and again, so it "
            f"is written again in {wait_seconds:.0f} s; field managers of others: {list_names(names, 3) or 'none'}",
            wait_seconds,
        )

    def _apply_to(self, stored_object: Manifest | None, key: ObjectKey, manifest: Manifest) -> Manifest:
        """Update `stored_object`, or create an object if it is None; return the object as the API server stored it.

        Raises ObjectConflictError if the object has another uid, or if another program has created it.
        """
        body = {name: value for name, value in manifest.items() if name != "status"}
        if stored_object is not None:
            body["metadata"] = {**body["metadata"], "uid": stored_object["metadata"]["uid"]}
        path = WATCHED[key.kind].resource.path(key.namespace, key.name)
        return self._session.apply(path, body, field_manager=FIELD_MANAGER, force=stored_object is not None)

    def _fetch_adoptable(self, key: ObjectKey) -> Manifest | None:
        """Fetch the object of this name, which the hub may take over; None if it does not exist.

        Raises ForeignObjectError if neither the framework nor upstream created the object.
        """
        # List instead of get, because the watch already requires the permission to list objects of this name.
        works = list_objects(self._session, WATCHED[key.kind].resource, key.namespace, name=key.name)
        if (work := next(iter(works), None)) is None:
            return None
        if is_ours(work) or _is_written_here(work) or was_created_by_upstream(work):
            return work
        raise ForeignObjectError(
            f"{key.kind.value} {key.name} in namespace {key.namespace} was made neither by this framework nor by "
            f"upstream's, so it is not changed; delete it, or hand it over by the label {MANAGED_BY_LABEL}={MANAGED_BY}"
        )

    def update_status(self, kind: Kind, namespace: str, name: str, status: Manifest) -> None:
        """See `Backend.update_status`."""
        key = ObjectKey(kind, namespace, name)
        self._require_uncontested(key, status, "status")
        updated_object = write_status(self._session, WATCHED[kind].resource, namespace, name, status)
        self._contests.record_write((key, "status"), status)
        self._observe(kind, updated_object)

    def delete(self, kind: Kind, namespace: str, name: str) -> None:
        """See `Backend.delete`."""
        try:
            # Also fetch the object by name: objects by upstream's manager lack the label that the watch selects.
            stored_object = self.get(kind, namespace, name) or self._fetch_adoptable(ObjectKey(kind, namespace, name))
            if stored_object is not None:
                self._session.delete(WATCHED[kind].resource.path(namespace, name), uid=stored_object["metadata"]["uid"])
        except ForeignObjectError as error:
            log.info("object kept", reason=str(error))
        except (ObjectNotFoundError, ObjectConflictError):
            # On a conflict, another object has the name by now, and must not be deleted.
            log.debug("object already gone", kind=kind.value, namespace=namespace, name=name)

    def remove_finalizers(self, kind: Kind, namespace: str, name: str, finalizers: Set[str]) -> None:
        """See `Backend.remove_finalizers`. Other managers' finalizers stay."""
        manifest = self.get(kind, namespace, name)
        if manifest is None:
            return
        metadata = manifest["metadata"]
        current_finalizers = metadata.get("finalizers") or []
        remaining_finalizers = [finalizer for finalizer in current_finalizers if finalizer not in finalizers]
        if remaining_finalizers == current_finalizers:
            return
        body = {"metadata": {"finalizers": remaining_finalizers, "resourceVersion": metadata["resourceVersion"]}}
        try:
            updated_object = self._session.merge(
                WATCHED[kind].resource.path(namespace, name), body, field_manager=FIELD_MANAGER
            )
        except ObjectNotFoundError:
            log.debug("object already gone", kind=kind.value, namespace=namespace, name=name)
            return
        if remaining_finalizers or not metadata.get("deletionTimestamp"):
            # Skip an object that this request deleted by removing its last finalizer: the watch reports the deletion.
            self._observe(kind, updated_object)

    def find_score(self, namespace: str, name: str) -> ScoreState | None:
        """See `ScoreBackend.find_score`."""
        return self._scores.find_score(namespace, name)

    def apply_score(self, manifest: Manifest, status: Manifest) -> ScoreState:
        """See `ScoreBackend.apply_score`."""
        return self._scores.apply_score(manifest, status)

    def adopt_scores(self, plan_adoption: Callable[[str, str, float], tuple[Manifest, datetime] | None]) -> int:
        """See `ScoreBackend.adopt_scores`."""
        return self._scores.adopt_scores(plan_adoption)

    def delete_score(self, namespace: str, name: str) -> None:
        """See `ScoreBackend.delete_score`."""
        self._scores.delete_score(namespace, name)

    def record_event(self, key: ObjectKey, type_: EventType, reason: str, message: str) -> None:
        """See `Backend.record_event`."""
        resource = WATCHED[key.kind].resource
        regarding = {"apiVersion": resource.api_version, "kind": resource.kind, "name": key.name}
        if key.namespace:
            regarding["namespace"] = key.namespace
        if (obj := self.get(*key)) is not None:
            # `kubectl describe` finds events by uid.
            regarding["uid"] = obj["metadata"]["uid"]
        self._events.record(regarding, type_, reason, message)

    def describe_missing_fields(self) -> str:
        """See `Backend.describe_missing_fields`."""
        return describe_missing_fields(self._session, make_crds())

    def get_master_secret(self) -> str:
        """See `Backend.get_master_secret`."""
        return get_master_secret(self._session, self._namespace)

    def read_name_claims(self, namespace: str) -> str:
        """See `Backend.read_name_claims`. Raises BackendError."""
        try:
            config_map = self._session.get(CONFIG_MAPS.path(self._namespace, self._make_claims_name(namespace)))
        except ObjectNotFoundError:
            self._claims_versions.pop(namespace, None)
            return ""
        if not is_ours(config_map):
            raise ForeignObjectError(
                f"ConfigMap {self._make_claims_name(namespace)} in namespace {self._namespace} was not made by this "
                "framework, which needs that name; rename or delete it"
            )
        self._claims_versions[namespace] = config_map["metadata"]["resourceVersion"]
        return str((config_map.get("data") or {}).get(CLAIMS_KEY, ""))

    def keep_name_claims(self, namespace: str, text: str) -> None:
        """See `Backend.keep_name_claims`."""
        name = self._make_claims_name(namespace)
        metadata = {"name": name, "namespace": self._namespace, "labels": {MANAGED_BY_LABEL: MANAGED_BY}}
        body: Manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {CLAIMS_KEY: text}}
        version = self._claims_versions.get(namespace)
        if version is None:
            config_map = self._session.create(CONFIG_MAPS.path(self._namespace), body)
        else:
            metadata["resourceVersion"] = version
            try:
                config_map = self._session.replace(CONFIG_MAPS.path(self._namespace, name), body)
            except ObjectNotFoundError as error:
                raise ObjectConflictError(str(error)) from None
        self._claims_versions[namespace] = config_map["metadata"]["resourceVersion"]

    def _make_claims_name(self, namespace: str) -> str:
        """Return the name of the ConfigMap in the hub's namespace with the claims of a namespace."""
        return CLAIMS_NAME if namespace == self._namespace else f"{CLAIMS_NAME}.{namespace}"

    def deliver_credentials(self, cluster: str, credentials: Credentials) -> None:
        """See `Backend.deliver_credentials`. A separate ManifestWork contains the agent's Secret."""
        desired_work = make_credentials_work(cluster, self._agent_namespace, credentials)
        work = self.get(Kind.WORK, cluster, CREDENTIALS_WORK_NAME)
        if work is None or not work_contains(work, desired_work):
            self.apply(desired_work)

    def get_delivered_key_ids(self, cluster: str) -> KeyIds | None:
        """See `Backend.get_delivered_key_ids`."""
        work = self.get(Kind.WORK, cluster, CREDENTIALS_WORK_NAME)
        # A ManifestWork that is being deleted no longer delivers its key ids.
        return None if work is None or work["metadata"].get("deletionTimestamp") else read_key_ids(work)

    def remove_credentials(self, cluster: str) -> None:
        """See `Backend.remove_credentials`. OCM removes the Secret with the ManifestWork."""
        # If the ManifestWork has just been created, the reflector reports it later, and the hub then removes it.
        work = self.get(Kind.WORK, cluster, CREDENTIALS_WORK_NAME)
        if work is not None and not work["metadata"].get("deletionTimestamp"):
            self.delete(Kind.WORK, cluster, CREDENTIALS_WORK_NAME)

    def _iterate_reflectors(self, kind: Kind) -> Iterator[Reflector]:
        return (reflector for (reflected_kind, _), reflector in self._reflectors.items() if reflected_kind is kind)

    def _find_reflector(self, kind: Kind, name: str) -> Reflector | None:
        return self._reflectors.get((kind, name if WATCHED[kind].names else ""))

    def _make_reflector(self, kind: Kind, name: str) -> Reflector:
        watched = WATCHED[kind]
        name_selector = {"fieldSelector": f"metadata.name={name}"} if name else {}

        def reduce(obj: Object) -> Object:
            reduced_object = watched.reduce(obj)
            if kind not in USER_KINDS:
                return reduced_object
            metadata = obj["metadata"]
            is_foreign = metadata["namespace"] not in self._scorer_namespaces
            admit = partial(self._admit, ObjectKey(kind, metadata["namespace"], metadata["name"]))
            return reduce_user_object(reduced_object, MAX_FOREIGN_SPEC_BYTES if is_foreign else MAX_SPEC_BYTES, admit)

        def handle_change(key: Key, previous_object: Object | None, current_object: Object | None) -> None:
            if kind is Kind.SCORE:
                self._scores.process_report(key, current_object)
            if current_object is None:
                self._memory.release(ObjectKey(kind, *key))
            if (
                current_object is not None
                and previous_object is not None
                and not watched.is_relevant(previous_object, current_object)
            ):
                return
            with self._notify_lock:
                if self._on_change is not None:
                    self._on_change(ObjectKey(kind, *key))

        return Reflector(
            self._session,
            watched.resource,
            handle_change,
            namespace=self._namespace if kind is Kind.SECRET else "",
            selectors={**watched.selectors, **name_selector},
            transform=reduce,
        )

    def _admit(self, key: ObjectKey, size: int) -> str:
        """Count the memory of a user's object of `size` bytes.

        Return an empty text if the memory suffices, else the reason why the object's spec is dropped.
        """
        if key.namespace == self._namespace:
            return ""
        if key.namespace not in self._scorer_namespaces:
            fits = self._memory.admit(key, "", size, MAX_FOREIGN_BYTES)
            return "" if fits else "this hub runs no scorers of this namespace, and such objects take too much memory"
        max_bytes = max(MAX_BYTES // (len(self._scorer_namespaces) - 1), MIN_SHARE)
        if self._memory.admit(key, key.namespace, size, max_bytes):
            return ""
        return (
            f"the objects of namespace {key.namespace} take more than {max_bytes} bytes of memory: delete some or make "
            "them shorter, then change this one"
        )

    def _observe(self, kind: Kind, response_object: Object) -> None:
        """Pass the API server's response to a write to the reflector, so that reads return it before the watch does."""
        if (reflector := self._find_reflector(kind, response_object["metadata"]["name"])) is not None:
            reflector.observe(response_object)


def _is_written_here(stored_object: Manifest) -> bool:
    """True if the hub has applied the object. Recognizes objects from which a user removed the label."""
    entries = stored_object["metadata"].get("managedFields") or ()
    return any(entry.get("manager") == FIELD_MANAGER and entry.get("operation") == "Apply" for entry in entries)


def was_created_by_upstream(work: Manifest) -> bool:
    """True if upstream's manager made the ManifestWork: it has no label and contains the agent's ConfigMap."""
    metadata = work["metadata"]
    if metadata["name"] != MANIFESTWORK_NAME or MANAGED_BY_LABEL in (metadata.get("labels") or {}):
        return False
    manifests = ((work.get("spec") or {}).get("workload") or {}).get("manifests") or ()
    return any(
        manifest.get("kind") == "ConfigMap" and (manifest.get("metadata") or {}).get("name") == CONFIGMAP_NAME
        for manifest in manifests
    )
