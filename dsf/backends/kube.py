"""The hub's backend on Kubernetes: reads through reflectors, writes by server-side apply."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence, Set
from datetime import datetime
from typing import Final

import dsf.log
from dsf.api.types import CONFIGMAP_NAME, CREDENTIALS_WORK_NAME, MANAGED_BY, MANAGED_BY_LABEL, MANIFESTWORK_NAME
from dsf.backends.compare import carries
from dsf.backends.contest import Contests
from dsf.backends.kube_credentials import credentials_work, key_ids_of, signing_secret
from dsf.backends.kube_events import EventRecorder
from dsf.backends.kube_kinds import FIELD_MANAGER, WATCHED
from dsf.backends.kube_scores import KubeScores, write_status
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
from dsf.kube.resources import CONFIG_MAPS
from dsf.kube.session import Session
from dsf.kube.store import Key, Object
from dsf.redisacl.keyids import KeyIds
from dsf.settings import Settings
from dsf.text import cleaned, listed

log = dsf.log.get(__name__)

#: Seconds to wait for the first complete list of every kind.
_SYNC_LIMIT: Final = 60.0
#: The ConfigMap with the claims of names, and its key. The ConfigMap is in the hub's namespace, where authors of
#: scorers cannot write it.
CLAIMS_NAME: Final = "dynamic-scoring-names"
CLAIMS_KEY: Final = "claims"


class KubeBackend:
    """See `dsf.backends.protocol.Backend`. `settings.namespace` is the hub's own namespace.

    The backend keeps, lists and watches only the used parts of objects; of AddOnPlacementScores these are identity and
    state.
    """

    def __init__(self, session: Session, settings: Settings) -> None:
        self._session = session
        # resourceVersion of the ConfigMap of claims as last read or written; empty if it did not exist.
        #: Namespace -> resourceVersion of the ConfigMap with its claims.
        self._claims_versions: dict[str, str] = {}
        self._agent_namespace = settings.agent_namespace
        self._events = EventRecorder(session, socket.gethostname())
        self._on_change: OnChange | None = None
        # Held while `_on_change` runs: each reflector has its own thread.
        self._telling = threading.RLock()
        self._stopping = threading.Event()
        self._namespace = settings.namespace
        self._contests = Contests()
        unwanted = {Kind.ADDON: not settings.addon_mode, Kind.SECRET: not settings.secret_delivery}
        # By kind, and by name for kinds of which only some are watched; "" for the others.
        self._reflectors = {
            (kind, name): self._reflector(kind, name)
            for kind, watched in WATCHED.items()
            if not unwanted.get(kind)
            for name in watched.names or ("",)
        }
        scores = self._reflectors[Kind.SCORE, ""]
        self._scores = KubeScores(session, scores.store.get, scores.observe)

    def start(self, on_change: OnChange) -> None:
        """See the protocol. Raises BackendError when a kind cannot be listed within a minute, or after `stop`."""
        self._on_change = on_change
        for reflector in self._reflectors.values():
            reflector.start()
        began = warned = time.monotonic()
        while unsynced_reflectors := [
            reflector for reflector in self._reflectors.values() if not reflector.synced.is_set()
        ]:
            now = time.monotonic()
            if now - warned > 10.0:
                warned = now
                for reflector in unsynced_reflectors:
                    log.warning("waiting for the first list", resource=str(reflector.resource), error=reflector.error)
            if now - began > _SYNC_LIMIT:
                why = "; ".join(
                    f"{reflector.resource}: {reflector.error or 'no answer'}" for reflector in unsynced_reflectors
                )
                raise BackendError(f"cannot read from the API server: {why}")
            if self._stopping.wait(0.1):
                raise BackendError("stopped before everything was read")

    def interrupt(self) -> None:
        """See the protocol."""
        self._stopping.set()

    def stop(self) -> None:
        """See the protocol. May be called by another thread while `start` waits."""
        self._stopping.set()
        with self._telling:
            self._on_change = None
        self._events.close()
        for reflector in self._reflectors.values():
            reflector.stop()
        self._session.close()

    def list(self, kind: Kind) -> list[Manifest]:
        """See the protocol."""
        return [manifest for reflector in self._of(kind) for manifest in reflector.store.list()]

    def keys(self, kind: Kind) -> Sequence[ObjectKey]:
        """See the protocol."""
        return [ObjectKey(kind, *key) for reflector in self._of(kind) for key in reflector.store.names()]

    def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        """See the protocol."""
        reflector = self._reflector_of(kind, name)
        return reflector.store.get((namespace, name)) if reflector else None

    def apply(self, manifest: Manifest) -> None:
        """See the protocol."""
        kind = Kind(manifest["kind"])
        metadata = manifest["metadata"]
        key = ObjectKey(kind, metadata.get("namespace", ""), metadata["name"])
        self._require_peace(key, manifest)
        known = self.get(*key)
        stored = known if known is not None else self._own(key)
        try:
            answer = self._apply_to(stored, key, manifest)
        except ObjectConflictError:
            # Deleted, or created by somebody else, and the watch has not reported it yet.
            answer = self._apply_to(self._own(key), key, manifest)
        self._contests.note((key, ""), manifest)
        self._observe(kind, answer)

    def _require_peace(self, key: ObjectKey, content: Manifest, subresource: str = "") -> None:
        """Raise ContestedObjectError if the hub has written this content often, and somebody changes it each time."""
        wait = self._contests.wait((key, subresource), content)
        if not wait:
            return
        stored = list_objects(self._session, WATCHED[key.kind].resource, key.namespace, name=key.name)
        entries = [entry for manifest in stored for entry in manifest["metadata"].get("managedFields") or ()]
        managers = {
            cleaned(str(entry.get("manager")), 100): str(entry.get("time"))
            for entry in sorted(entries, key=lambda entry: str(entry.get("time")))
            if entry.get("manager") != FIELD_MANAGER and entry.get("subresource", "") == subresource
        }
        # The one that wrote last comes first.
        names = sorted(managers, key=lambda name: managers[name], reverse=True)
        raise ContestedObjectError(
            f"another program changes {key.kind.value} {key.name} in namespace {key.namespace} again and again, so it "
            f"is written again in {wait:.0f} s; field managers of others: {listed(names, 3) or 'none'}",
            wait,
        )

    def _apply_to(self, stored: Manifest | None, key: ObjectKey, manifest: Manifest) -> Manifest:
        """Write to this very object, or create it: then fields that others own are a conflict."""
        body = {name: value for name, value in manifest.items() if name != "status"}
        if stored is not None:
            body["metadata"] = {**body["metadata"], "uid": stored["metadata"]["uid"]}
        path = WATCHED[key.kind].resource.path(key.namespace, key.name)
        return self._session.apply(path, body, field_manager=FIELD_MANAGER, force=stored is not None)

    def _own(self, key: ObjectKey) -> Manifest | None:
        """Return the object of this name, which the framework or upstream made; None if there is none.

        Raises ForeignObjectError for one of somebody else.
        """
        # A list, as the watch of this name needs the same right.
        works = list_objects(self._session, WATCHED[key.kind].resource, key.namespace, name=key.name)
        if (stored := next(iter(works), None)) is None:
            return None
        if is_ours(stored) or _is_written_here(stored) or is_upstreams_work(stored):
            return stored
        raise ForeignObjectError(
            f"{key.kind.value} {key.name} in namespace {key.namespace} was made neither by this framework nor by "
            f"upstream's, so it is not changed; delete it, or hand it over by the label {MANAGED_BY_LABEL}={MANAGED_BY}"
        )

    def update_status(self, kind: Kind, namespace: str, name: str, status: Manifest) -> None:
        """See the protocol."""
        key = ObjectKey(kind, namespace, name)
        self._require_peace(key, status, "status")
        answer = write_status(self._session, WATCHED[kind].resource, namespace, name, status)
        self._contests.note((key, "status"), status)
        self._observe(kind, answer)

    def delete(self, kind: Kind, namespace: str, name: str) -> None:
        """See the protocol."""
        try:
            # By name: those of upstream's manager lack the label that the watch selects by.
            stored_object = self.get(kind, namespace, name) or self._own(ObjectKey(kind, namespace, name))
            if stored_object is not None:
                self._session.delete(WATCHED[kind].resource.path(namespace, name), uid=stored_object["metadata"]["uid"])
        except ForeignObjectError as error:
            log.info("object kept", reason=str(error))
        except (ObjectNotFoundError, ObjectConflictError):
            # The object of this name may be another one now, which is not the one to be deleted.
            log.debug("object already gone", kind=kind.value, namespace=namespace, name=name)

    def remove_finalizers(self, kind: Kind, namespace: str, name: str, finalizers: Set[str]) -> None:
        """See the protocol. Other managers' finalizers stay."""
        manifest = self.get(kind, namespace, name)
        if manifest is None:
            return
        metadata = manifest["metadata"]
        before = metadata.get("finalizers") or []
        remaining = [finalizer for finalizer in before if finalizer not in finalizers]
        if remaining == before:
            return
        body = {"metadata": {"finalizers": remaining, "resourceVersion": metadata["resourceVersion"]}}
        try:
            answer = self._session.merge(
                WATCHED[kind].resource.path(namespace, name), body, field_manager=FIELD_MANAGER
            )
        except ObjectNotFoundError:
            log.debug("object already gone", kind=kind.value, namespace=namespace, name=name)
            return
        if remaining or not metadata.get("deletionTimestamp"):
            # Without its last finalizer a deleted object is gone: the watch reports it.
            self._observe(kind, answer)

    def score(self, namespace: str, name: str) -> ScoreState | None:
        """See the protocol."""
        return self._scores.score(namespace, name)

    def apply_score(self, manifest: Manifest, status: Manifest) -> ScoreState:
        """See the protocol."""
        return self._scores.apply_score(manifest, status)

    def adopt_scores(self, claim: Callable[[str, str, float], tuple[Manifest, datetime] | None]) -> int:
        """See the protocol."""
        return self._scores.adopt_scores(claim)

    def delete_score(self, namespace: str, name: str) -> None:
        """See the protocol."""
        self._scores.delete_score(namespace, name)

    def event(self, about: ObjectKey, type_: EventType, reason: str, message: str) -> None:
        """See the protocol."""
        resource = WATCHED[about.kind].resource
        regarding = {"apiVersion": resource.api_version, "kind": resource.kind, "name": about.name}
        if about.namespace:
            regarding["namespace"] = about.namespace
        if (obj := self.get(*about)) is not None:
            # `kubectl describe` finds events by uid.
            regarding["uid"] = obj["metadata"]["uid"]
        self._events.record(regarding, type_, reason, message)

    def signing_secret(self) -> str:
        """See the protocol."""
        return signing_secret(self._session, self._namespace)

    def name_claims(self, namespace: str) -> str:
        """See the protocol. Raises BackendError."""
        try:
            config_map = self._session.get(CONFIG_MAPS.path(self._namespace, self._claims_name(namespace)))
        except ObjectNotFoundError:
            self._claims_versions.pop(namespace, None)
            return ""
        if not is_ours(config_map):
            raise ForeignObjectError(
                f"ConfigMap {self._claims_name(namespace)} in namespace {self._namespace} was not made by this "
                "framework, which needs that name; rename or delete it"
            )
        self._claims_versions[namespace] = config_map["metadata"]["resourceVersion"]
        return str((config_map.get("data") or {}).get(CLAIMS_KEY, ""))

    def keep_name_claims(self, namespace: str, text: str) -> None:
        """See the protocol."""
        name = self._claims_name(namespace)
        metadata = {"name": name, "namespace": self._namespace, "labels": {MANAGED_BY_LABEL: MANAGED_BY}}
        body: Manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {CLAIMS_KEY: text}}
        version = self._claims_versions.get(namespace)
        if version is None:
            answer = self._session.create(CONFIG_MAPS.path(self._namespace), body)
        else:
            metadata["resourceVersion"] = version
            try:
                answer = self._session.replace(CONFIG_MAPS.path(self._namespace, name), body)
            except ObjectNotFoundError as error:
                raise ObjectConflictError(str(error)) from None
        self._claims_versions[namespace] = answer["metadata"]["resourceVersion"]

    def _claims_name(self, namespace: str) -> str:
        """Return the name of the ConfigMap with the claims of a namespace; they are all in the hub's own one."""
        return CLAIMS_NAME if namespace == self._namespace else f"{CLAIMS_NAME}.{namespace}"

    def deliver_credentials(self, cluster: str, credentials: Credentials) -> None:
        """See the protocol. A separate ManifestWork contains the agent's Secret."""
        desired_work = credentials_work(cluster, self._agent_namespace, credentials)
        work = self.get(Kind.WORK, cluster, CREDENTIALS_WORK_NAME)
        if work is None or not carries(work, desired_work):
            self.apply(desired_work)

    def delivered_key_ids(self, cluster: str) -> KeyIds | None:
        """See the protocol."""
        work = self.get(Kind.WORK, cluster, CREDENTIALS_WORK_NAME)
        # A ManifestWork under deletion was withdrawn.
        return None if work is None or work["metadata"].get("deletionTimestamp") else key_ids_of(work)

    def remove_credentials(self, cluster: str) -> None:
        """See the protocol. OCM removes the Secret with the ManifestWork."""
        # A ManifestWork created just now is reported by the reflector later, and then removed.
        work = self.get(Kind.WORK, cluster, CREDENTIALS_WORK_NAME)
        if work is not None and not work["metadata"].get("deletionTimestamp"):
            self.delete(Kind.WORK, cluster, CREDENTIALS_WORK_NAME)

    def _of(self, kind: Kind) -> Iterator[Reflector]:
        return (reflector for (reflected_kind, _), reflector in self._reflectors.items() if reflected_kind is kind)

    def _reflector_of(self, kind: Kind, name: str) -> Reflector | None:
        return self._reflectors.get((kind, name if WATCHED[kind].names else ""))

    def _reflector(self, kind: Kind, name: str) -> Reflector:
        watched = WATCHED[kind]
        by_name = {"fieldSelector": f"metadata.name={name}"} if name else {}

        def changed(key: Key, old: Object | None, new: Object | None) -> None:
            if kind is Kind.SCORE:
                self._scores.reported(key, new)
            if new is not None and old is not None and not watched.matters(old, new):
                return
            with self._telling:
                if self._on_change is not None:
                    self._on_change(ObjectKey(kind, *key))

        return Reflector(
            self._session,
            watched.resource,
            changed,
            namespace=self._namespace if kind is Kind.SECRET else "",
            selectors={**watched.selectors, **by_name},
            transform=watched.keep,
        )

    def _observe(self, kind: Kind, answer: Object) -> None:
        if (reflector := self._reflector_of(kind, answer["metadata"]["name"])) is not None:
            reflector.observe(answer)


def _is_written_here(stored: Manifest) -> bool:
    """True if the hub applied an object that has lost its label since."""
    entries = stored["metadata"].get("managedFields") or ()
    return any(entry.get("manager") == FIELD_MANAGER and entry.get("operation") == "Apply" for entry in entries)


def is_upstreams_work(stored: Manifest) -> bool:
    """True if this is the ManifestWork of upstream's manager: its name, no labels, and the agent's ConfigMap in it."""
    metadata = stored["metadata"]
    if metadata["name"] != MANIFESTWORK_NAME or MANAGED_BY_LABEL in (metadata.get("labels") or {}):
        return False
    manifests = ((stored.get("spec") or {}).get("workload") or {}).get("manifests") or ()
    return any(
        manifest.get("kind") == "ConfigMap" and (manifest.get("metadata") or {}).get("name") == CONFIGMAP_NAME
        for manifest in manifests
    )
