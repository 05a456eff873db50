"""AddOnPlacementScores on an API server.

An object belongs to the framework if it has the framework's label. Each write checks the label by a `test` of the JSON
patch or by a precondition. Therefore the hub neither changes nor deletes an object that another program has created
with the same name, or has taken over.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final

import dsf.log
from dsf.api.types import CLUSTER_KIND, MANAGED_BY, MANAGED_BY_LABEL
from dsf.backends.kube_kinds import FIELD_MANAGER, reduce_score
from dsf.backends.protocol import Manifest
from dsf.backends.scorestate import (
    ScoreState,
    explain_foreign_object,
    is_ours,
    make_adopted_status,
    may_be_from_upstream_agent,
    parse_kube_time,
)
from dsf.errors import BackendError, ForeignObjectError, ObjectConflictError, ObjectNotFoundError
from dsf.kube.lists import iterate_objects
from dsf.kube.resources import ADDON_PLACEMENT_SCORES, Resource
from dsf.kube.session import ApiServerError, Session
from dsf.kube.store import Key, Object, get_version

log = dsf.log.get(__name__)

#: JSON pointer to the framework's label.
_LABEL_POINTER: Final = f"/metadata/labels/{MANAGED_BY_LABEL.replace('~', '~0').replace('/', '~1')}"
#: Maximum seconds for which reads return a created object that the watch has not reported.
_UNREPORTED_SECONDS: Final = 60.0


class KubeScores:
    """Implementation of `dsf.backends.protocol.ScoreBackend` on Kubernetes. Thread-safe.

    An update of a score takes one request; a new score takes two.
    """

    def __init__(
        self, session: Session, find_cached: Callable[[Key], Object | None], observe: Callable[[Object], None]
    ):
        """Connect the scores with their reflector.

        `find_cached` returns the reflector's copy of an object, and `observe` passes the response to a write to the
        reflector.
        """
        self._session = session
        self._find_cached = find_cached
        self._observe = observe
        self._lock = threading.Lock()
        # Created objects that the watch has not reported yet, and the monotonic time at which they expire here.
        self._created_objects: dict[Key, tuple[Object, float]] = {}

    def find_score(self, namespace: str, name: str) -> ScoreState | None:
        """See `ScoreBackend.find_score`."""
        cached_object = self._find_newest((namespace, name))
        state: ScoreState | None = cached_object["state"] if cached_object is not None else None
        return state

    def process_report(self, key: Key, obj: Object | None) -> None:
        """Process the watch's report of an object, or of its deletion if `obj` is None."""
        with self._lock:
            created_object = self._created_objects.get(key)
            if created_object is not None and (obj is None or not _is_older(obj, created_object[0])):
                del self._created_objects[key]

    def apply_score(self, manifest: Manifest, status: Manifest) -> ScoreState:
        """See `ScoreBackend.apply_score`."""
        metadata = manifest["metadata"]
        key = metadata["namespace"], metadata["name"]
        cached_object = self._find_newest(key)
        uid = (
            cached_object["metadata"]["uid"]
            if cached_object is not None
            else self._create(key, manifest)["metadata"]["uid"]
        )
        path = ADDON_PLACEMENT_SCORES.path(*key)
        try:
            response = self._write_status(path, status, uid)
        except ObjectNotFoundError:
            # The watch has not reported yet that the object was deleted.
            response = self._write_status(path, status, self._create(key, manifest)["metadata"]["uid"])
        except ApiServerError as error:
            if error.status != 422:
                raise
            # 422: the object has lost the label or has another uid, or the API server rejects the status.
            stored_object = self._session.get(path)
            if is_ours(stored_object) and stored_object["metadata"]["uid"] == uid:
                raise
            response = self._write_status(path, status, _require_ours(stored_object)["metadata"]["uid"])
        if not _has_labels_and_owner(response["metadata"], metadata):
            # The ManagedCluster was created again with another uid, or a user changed the scorer's label.
            response = self._set_ownership(key, manifest, response)
        self._record_response(key, response)
        if difference := _find_difference(response.get("status"), status):
            raise BackendError(
                f"the API server stored another status of AddOnPlacementScore {key[1]} in namespace {key[0]} than was "
                f"written, with other {difference}: a mutating webhook or an older CRD changes it; check "
                "`kubectl get mutatingwebhookconfigurations` and the CRD addonplacementscores"
            )
        state: ScoreState = reduce_score(response)["state"]
        return state

    def adopt_scores(self, plan_adoption: Callable[[str, str, float], tuple[Manifest, datetime] | None]) -> int:
        """See `ScoreBackend.adopt_scores`. Lists the scores without the label; sends two requests per adopted score."""
        adopted_count = 0
        for stored_object in iterate_objects(
            self._session, ADDON_PLACEMENT_SCORES, labels=f"{MANAGED_BY_LABEL}!={MANAGED_BY}"
        ):
            metadata = stored_object["metadata"]
            key = metadata["namespace"], metadata["name"]
            if metadata.get("deletionTimestamp") or not may_be_from_upstream_agent(stored_object):
                continue
            adoption = plan_adoption(*key, parse_kube_time(metadata["creationTimestamp"]))
            if adoption is None:
                continue
            manifest, valid_until = adoption
            try:
                response = self._set_ownership(key, manifest, stored_object)
                status = make_adopted_status(stored_object, valid_until)
                path = ADDON_PLACEMENT_SCORES.path(*key)
                self._record_response(key, self._write_status(path, status, response["metadata"]["uid"]))
            except BackendError as error:
                # The object has changed in the meantime, or the API server rejected the write; the next call retries.
                log.warning("upstream's score not taken over", cluster=key[0], score=key[1], error=str(error))
                continue
            adopted_count += 1
        return adopted_count

    def delete_score(self, namespace: str, name: str) -> None:
        """See `ScoreBackend.delete_score`."""
        key = namespace, name
        cached_object = self._find_newest(key)
        if cached_object is None:
            return
        path = ADDON_PLACEMENT_SCORES.path(*key)
        metadata = cached_object["metadata"]
        try:
            try:
                self._session.delete(path, uid=metadata["uid"], version=metadata["resourceVersion"])
            except ObjectConflictError:
                stored_object = self._session.get(path)
                if not is_ours(stored_object):
                    log.info("score kept, it belongs to somebody else now", namespace=namespace, name=name)
                    return
                metadata = stored_object["metadata"]
                self._session.delete(path, uid=metadata["uid"], version=metadata["resourceVersion"])
        except ObjectNotFoundError:
            log.debug("score already gone", namespace=namespace, name=name)
        self.process_report(key, None)

    def _find_newest(self, key: Key) -> Object | None:
        """Return the newer one of the reflector's copy and the created object; None if neither exists."""
        cached_object = self._find_cached(key)
        with self._lock:
            created_object, expires_at = self._created_objects.get(key, (None, 0.0))
            if created_object is None or time.monotonic() > expires_at:
                self._created_objects.pop(key, None)
                return cached_object
        return created_object if cached_object is None or _is_older(cached_object, created_object) else cached_object

    def _record_response(self, key: Key, response: Object) -> None:
        """Store the response to a write, so that the next read returns it before the watch reports it."""
        self._observe(response)
        if self._find_cached(key) is None:
            with self._lock:
                self._created_objects[key] = reduce_score(response), time.monotonic() + _UNREPORTED_SECONDS

    def _create(self, key: Key, manifest: Manifest) -> Object:
        """Create the object without its status, or return the framework's object of that name if there is one.

        Raises ForeignObjectError if another program's object has the name.
        """
        path = ADDON_PLACEMENT_SCORES.path(key[0])
        try:
            return self._session.create(path, manifest, field_manager=FIELD_MANAGER)
        except ObjectConflictError:
            return _require_ours(self._session.get(ADDON_PLACEMENT_SCORES.path(*key)))

    def _write_status(self, path: str, status: Manifest, uid: str) -> Object:
        """Replace the status. Raises ApiServerError (422) if the object lost the label or has another uid."""
        tests = {_LABEL_POINTER: MANAGED_BY, "/metadata/uid": uid}
        return self._session.replace_field(
            f"{path}/status", "/status", status, field_manager=FIELD_MANAGER, tests=tests
        )

    def _set_ownership(self, key: Key, manifest: Manifest, stored_object: Object) -> Object:
        """Set the labels and the owner of `manifest`, if the object still has the version of `stored_object`."""
        desired_metadata, metadata = manifest["metadata"], stored_object["metadata"]
        owners = [
            owner
            for owner in metadata.get("ownerReferences") or ()
            if (owner.get("kind"), owner.get("name")) != (CLUSTER_KIND, key[0])
        ]
        values: dict[str, object] = {
            "/metadata/labels": {**(metadata.get("labels") or {}), **desired_metadata["labels"]}
        }
        if owners or desired_metadata.get("ownerReferences"):
            values["/metadata/ownerReferences"] = [*owners, *desired_metadata.get("ownerReferences", ())]
        tests = {"/metadata/uid": metadata["uid"], "/metadata/resourceVersion": metadata["resourceVersion"]}
        path = ADDON_PLACEMENT_SCORES.path(*key)
        return self._session.patch(path, values, field_manager=FIELD_MANAGER, tests=tests)


def _require_ours(stored_object: Object) -> Object:
    """Return `stored_object` if it has the framework's label. Raises ForeignObjectError if it does not."""
    if is_ours(stored_object):
        return stored_object
    raise ForeignObjectError(
        explain_foreign_object(stored_object["metadata"]["namespace"], stored_object["metadata"]["name"])
    )


def _find_difference(stored_status: object, written_status: Manifest) -> str:
    """Return the first field in which a stored status differs from the written one; empty if there is none.

    Compares values and validity, and skips item names, in which the API server replaces invalid Unicode.
    """
    status = stored_status if isinstance(stored_status, Mapping) else {}
    values = [item.get("value") for item in status.get("scores") or ()]
    if values != [item["value"] for item in written_status["scores"]]:
        return "scores"
    return (
        ""
        if parse_kube_time(status.get("validUntil")) == parse_kube_time(written_status["validUntil"])
        else "validUntil"
    )


def _is_older(obj: Object, other_object: Object) -> bool:
    """True if `obj` is an earlier state of the same object, or an earlier object."""
    version, other_version = get_version(obj), get_version(other_object)
    return version.isdecimal() and other_version.isdecimal() and int(version) < int(other_version)


def write_status(session: Session, resource: Resource, namespace: str, name: str, status: Manifest) -> Manifest:
    """Replace the whole status, and return the object. The API server skips the write if the status is equal."""
    path = resource.path(namespace, name, "status")
    return session.replace_field(path, "/status", status, field_manager=FIELD_MANAGER)


def _has_labels_and_owner(actual_metadata: Manifest, desired_metadata: Manifest) -> bool:
    """True if the actual metadata has the desired labels and owners."""
    labels = actual_metadata.get("labels") or {}
    owner_uids = {owner.get("uid") for owner in actual_metadata.get("ownerReferences") or ()}
    return all(labels.get(name) == value for name, value in desired_metadata.get("labels", {}).items()) and all(
        owner.get("uid") in owner_uids for owner in desired_metadata.get("ownerReferences", ())
    )
