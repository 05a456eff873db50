"""CRDs of kinds that only the optimiser needs. Policy and PlacementBinding are not in OCM's API module.

The CRDs have only the fields that tests use.
"""

from __future__ import annotations

from typing import Any

import yaml

from dsf.kube.resources import Resource
from dsf.kube.session import Session
from dsf.placements.kinds import MANIFEST_WORK_REPLICA_SETS, PLACEMENT_BINDINGS, POLICIES
from tests.support.controlplane import find
from tests.support.controlplane_crds import create_crds

_ANYTHING = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_REFERENCE = {
    "type": "object",
    "required": ["apiGroup", "kind", "name"],
    "properties": {name: {"type": "string", "minLength": 1} for name in ("apiGroup", "kind", "name")},
}


def install_policy_crds(session: Session) -> None:
    """Create the missing ones of these CRDs, and ManifestWorkReplicaSet's from OCM's API module; wait until all are
    served.
    """
    folder = find("crds") / "work" / "v1alpha1"
    (file,) = folder.glob(f"*{MANIFEST_WORK_REPLICA_SETS.plural}.crd.yaml")
    binding = {"placementRef": _REFERENCE, "subjects": {"type": "array", "minItems": 1, "items": _REFERENCE}}
    policy = {
        "spec": {
            "type": "object",
            "required": ["disabled", "policy-templates"],
            "properties": {
                "disabled": {"type": "boolean"},
                "remediationAction": {"type": "string"},
                "policy-templates": {"type": "array", "items": _ANYTHING},
            },
        }
    }
    create_crds(
        session,
        [
            yaml.load(file.read_text(), Loader=yaml.CSafeLoader),
            _crd(POLICIES, policy, required=["spec"]),
            _crd(PLACEMENT_BINDINGS, binding, required=["placementRef", "subjects"]),
        ],
    )


def _crd(resource: Resource, properties: dict[str, Any], *, required: list[str]) -> dict[str, Any]:
    schema = {"type": "object", "required": required, "properties": {**properties, "status": _ANYTHING}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": str(resource)},
        "spec": {
            "group": resource.group,
            "scope": "Namespaced",
            "names": {
                "plural": resource.plural,
                "singular": resource.kind.lower(),
                "kind": resource.kind,
                "listKind": f"{resource.kind}List",
            },
            "versions": [
                {
                    "name": resource.version,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }
