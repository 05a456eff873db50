"""Applies a plan atomically in place of the previous one.

The API server first checks every write in a dry run, which finds forbidden and invalid writes. Then objects are created
and changed, and finally obsolete objects are deleted. If a write fails, the completed writes are rolled back in reverse
order.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, Literal

import dsf.log
from dsf.errors import BackendError
from dsf.kube.resources import Resource
from dsf.optimizer.backend import FIELD_MANAGER, Manifest, ManifestClient
from dsf.optimizer.errors import ApplyError
from dsf.optimizer.manifests import GENERATED, GENERATED_LABEL, KINDS, find_resource
from dsf.optimizer.views import ChangeView

log = dsf.log.get(__name__)

Key = tuple[str, str]

#: Seconds before each retry of a failed rollback.
_UNDO_WAITS: Final = (0.2, 0.5, 1.0, 2.0)
#: Fields that an API server adds to an object.
_SERVER_FIELDS: Final = ("resourceVersion", "uid", "generation", "creationTimestamp", "managedFields", "selfLink")


@dataclass(frozen=True)
class ObjectChange:
    """A change of one object."""

    resource: Resource
    #: The current object; None if it does not exist.
    before: Manifest | None
    #: The desired object; None if it is deleted.
    after: Manifest | None
    change: Literal["created", "updated", "unchanged", "deleted"]

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name of the object."""
        metadata = ((self.after or self.before) or {})["metadata"]
        return str(metadata["namespace"]), str(metadata["name"])

    def make_view(self) -> ChangeView:
        """Return the change as in a response."""
        namespace, name = self.key
        return ChangeView(kind=self.resource.kind, namespace=namespace, name=name, change=self.change)

    def __str__(self) -> str:
        return f"{self.resource.kind} {'/'.join(self.key)}"


class PlanWriter:
    """Reads and writes the objects of plans. Callers must write one plan at a time."""

    def __init__(self, backend: ManifestClient) -> None:
        self._backend = backend

    def list_existing(self, namespace: str = "", labels: str = GENERATED) -> list[Manifest]:
        """Return the objects of the plans in a namespace, or of all. Raises BackendError."""
        return [
            manifest
            for resource in KINDS
            for manifest in self._backend.list_objects(resource, namespace, labels=labels)
        ]

    def list_changes(self, desired_manifests: Sequence[Manifest], existing: Iterable[Manifest]) -> list[ObjectChange]:
        """Return the changes from the existing to the desired objects, in the order in which to write them."""
        unmatched = {_get_key(manifest): manifest for manifest in existing}
        changes = []
        for desired_manifest in desired_manifests:
            existing_manifest = unmatched.pop(_get_key(desired_manifest), None)
            change: Literal["created", "updated", "unchanged"] = "created"
            if existing_manifest is not None:
                change = (
                    "unchanged"
                    if select_owned_fields(existing_manifest) == _select_content(desired_manifest)
                    else "updated"
                )
            changes.append(ObjectChange(find_resource(desired_manifest), existing_manifest, desired_manifest, change))
        # Delete bindings before the Placements that they refer to.
        for resource in reversed(KINDS):
            for (kind, _), existing_manifest in sorted(unmatched.items(), key=lambda item: item[0]):
                if kind == resource.kind:
                    changes.append(ObjectChange(resource, existing_manifest, None, "deleted"))
        return changes

    def list_obstacles(self, changes: Iterable[ObjectChange]) -> list[str]:
        """Return a problem for each object to create whose name another object has. Raises BackendError."""
        creations = [change for change in changes if change.change == "created"]
        other_objects = self.list_existing(creations[0].key[0], f"{GENERATED_LABEL}!=true") if creations else []
        occupied_keys = {_get_key(manifest) for manifest in other_objects}
        return [
            f"{change} exists and was not created by a plan; delete it, or hand it over with: kubectl label -n "
            f"{change.key[0]} {change.resource.plural} {change.key[1]} {GENERATED_LABEL}=true"
            for change in creations
            if (change.resource.kind, change.key[1]) in occupied_keys
        ]

    def write(self, changes: Sequence[ObjectChange]) -> None:
        """Apply all changes or none. Raises ApplyError."""
        pending_changes = [change for change in changes if change.change != "unchanged"]
        self._dry_run(pending_changes)
        applied_changes: list[ObjectChange] = []
        try:
            for change in pending_changes:
                # Record the change before the write, because a write without a response may have succeeded.
                applied_changes.append(change)
                self._write(change)
                log.info("object of a plan written", object=str(change), change=change.change)
        except BackendError as error:
            remaining_changes = self._undo(applied_changes)
            if remaining_changes:
                raise ApplyError(
                    f"the plan was not applied: {change}: {error}. The rollback is incomplete: "
                    f"{'; '.join(remaining_changes)}. "
                    "Apply a plan again, or reset the namespace",
                    tuple(remaining_changes),
                ) from error
            raise ApplyError(f"the plan was not applied, everything is as it was before: {change}: {error}") from error
        except BaseException:
            # Ctrl-C interrupted the write.
            self._undo(applied_changes)
            raise

    def _dry_run(self, pending_changes: Sequence[ObjectChange]) -> None:
        """Try all writes as a dry run. Raises ApplyError for the first write that the API server would refuse."""

        def find_refusal(change: ObjectChange) -> BackendError | None:
            try:
                self._write(change, dry_run=True)
            except BackendError as error:
                return error
            return None

        # Dry runs are independent, so they run concurrently.
        with ThreadPoolExecutor(8) as threads:
            for change, error in zip(pending_changes, threads.map(find_refusal, pending_changes), strict=True):
                if error is not None:
                    raise ApplyError(f"the plan is not applied, nothing was changed: {change}: {error}") from error

    def _write(self, change: ObjectChange, *, dry_run: bool = False) -> None:
        if change.after is not None:
            desired_manifest, existing_manifest = change.after, change.before
            if existing_manifest is not None:
                # Send the uid, so that an object that another program has created in place of this one stays unchanged.
                desired_manifest = {
                    **desired_manifest,
                    "metadata": {**desired_manifest["metadata"], "uid": existing_manifest["metadata"]["uid"]},
                }
            self._backend.apply(change.resource, desired_manifest, force=existing_manifest is not None, dry_run=dry_run)
        elif change.before is not None:
            uid = change.before["metadata"].get("uid")
            self._backend.delete(change.resource, *change.key, uid=uid, dry_run=dry_run)

    def _undo(self, applied_changes: Sequence[ObjectChange]) -> list[str]:
        """Roll back in reverse order. Returns the failures with their reasons."""
        remaining_changes = [
            f"{change}: {error}"
            for change in reversed(applied_changes)
            if (error := self._undo_change(change)) is not None
        ]
        log.warning("plan undone", objects=len(applied_changes), left=len(remaining_changes))
        return remaining_changes

    def _undo_change(self, change: ObjectChange) -> BackendError | None:
        """Roll back one change, with retries. Return the last error, or None after a success."""
        for wait_seconds in (*_UNDO_WAITS, None):
            try:
                if change.before is None:
                    self._delete_created(change)
                elif change.after is None:
                    # Restore fields of other owners, too.
                    self._backend.apply(change.resource, _drop_server_fields(change.before), force=False)
                else:
                    self._backend.apply(change.resource, _make_restored(change.before, change.after))
            except BackendError as error:
                if wait_seconds is None:
                    return error
                time.sleep(wait_seconds)
            else:
                return None
        return None

    def _delete_created(self, change: ObjectChange) -> None:
        """Delete the object that `change` has created; its write may have had no response."""
        namespace, name = change.key
        for manifest in self._backend.list_objects(change.resource, namespace, name=name):
            if select_owned_fields(manifest):
                self._backend.delete(change.resource, namespace, name, uid=manifest["metadata"]["uid"])


def select_owned_fields(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an object that the optimiser still owns, without its identity."""
    fields: dict[str, Any] = {}
    for entry in manifest["metadata"].get("managedFields") or ():
        if entry.get("manager") == FIELD_MANAGER and entry.get("operation") == "Apply":
            fields = _select_owned(entry.get("fieldsV1") or {}, manifest)
    return fields


def _select_owned(fields: Mapping[str, Any], value: Any) -> Any:
    if not isinstance(value, Mapping) or not any(key.startswith("f:") for key in fields):
        # Lists of these kinds are owned as a whole.
        return value
    names = {key[2:]: nested_fields for key, nested_fields in fields.items() if key.startswith("f:")}
    return {name: _select_owned(nested_fields, value[name]) for name, nested_fields in names.items() if name in value}


def _select_content(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that the optimiser writes, in the form of `select_owned_fields`."""
    metadata = {key: manifest["metadata"][key] for key in ("annotations", "labels")}
    content = {key: value for key, value in manifest.items() if key not in ("apiVersion", "kind", "metadata")}
    return {"metadata": metadata, **content}


def _make_restored(manifest_before: Mapping[str, Any], manifest_after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the manifest that restores an object's previous content after `manifest_after` was applied.

    The result has the optimiser's fields, and the fields of other owners that `manifest_after` has overwritten. Other
    fields are left out, because applying them would make the optimiser their owner, and the next plan would remove
    them.
    """
    content: dict[str, Any] = _join_fields(
        _select_fields(manifest_before, _select_content(manifest_after)), select_owned_fields(manifest_before)
    )
    identity = _get_identity(manifest_before)
    return content | identity | {"metadata": content.get("metadata", {}) | identity["metadata"]}


def _select_fields(manifest_part: Any, fields: Any) -> Any:
    """Return the values that `manifest_part` has for `fields`."""
    if not isinstance(manifest_part, Mapping) or not isinstance(fields, Mapping):
        return manifest_part
    return {
        name: _select_fields(manifest_part[name], nested_fields)
        for name, nested_fields in fields.items()
        if name in manifest_part
    }


def _join_fields(first: Any, second: Any) -> Any:
    """Return the fields of both, which are parts of the same object."""
    if not isinstance(first, Mapping) or not isinstance(second, Mapping):
        return first
    joined_fields = {name: _join_fields(first[name], second[name]) for name in first.keys() & second.keys()}
    return {**first, **second, **joined_fields}


def _get_identity(manifest: Mapping[str, Any]) -> dict[str, Any]:
    metadata = {key: manifest["metadata"][key] for key in ("name", "namespace")}
    return {"apiVersion": manifest["apiVersion"], "kind": manifest["kind"], "metadata": metadata}


def _drop_server_fields(manifest: Mapping[str, Any]) -> dict[str, Any]:
    metadata = {key: value for key, value in manifest["metadata"].items() if key not in _SERVER_FIELDS}
    return {key: value for key, value in manifest.items() if key != "status"} | {"metadata": metadata}


def _get_key(manifest: Mapping[str, Any]) -> Key:
    return str(manifest["kind"]), str(manifest["metadata"]["name"])
