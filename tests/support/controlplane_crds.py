"""The CRDs of a hub: OCM's from its API module, and ours from the models."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import yaml

from dsf.api.crd import make_crds
from dsf.errors import ObjectConflictError, ObjectNotFoundError
from dsf.kube.resources import Resource
from dsf.kube.session import ApiServerError, Session
from tests.support.wait import wait_for

#: Folders of OCM's API module with the CRDs of a hub.
_HUB_CRDS = ("cluster/v1", "cluster/v1alpha1", "cluster/v1beta1", "cluster/v1beta2", "work/v1", "addon/v1alpha1")
#: Kinds of a managed cluster in the same folders.
_SPOKE_CRDS = ("clusterclaims", "appliedmanifestworks")
CRDS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", False)


def install_crds(session: Session, ocm: Path) -> None:
    """Create all CRDs and wait until they are served; `ocm` is the folder of OCM's API module."""
    create_crds(session, [*make_crds(), *read_ocm_crds(ocm)])


def give_crds_to_helm(session: Session, release: str, namespace: str) -> None:
    """Assign our CRDs to a release, as `helm upgrade --take-ownership` does. Helm refuses objects that it does not
    own.
    """
    metadata = {
        "labels": {"app.kubernetes.io/managed-by": "Helm"},
        "annotations": {"meta.helm.sh/release-name": release, "meta.helm.sh/release-namespace": namespace},
    }
    for crd in make_crds():
        session.merge(CRDS.path(name=crd["metadata"]["name"]), {"metadata": metadata})


def read_ocm_crds(ocm: Path) -> list[dict[str, Any]]:
    """Return OCM's CRDs of a hub; `ocm` is the folder of its API module."""
    files = [file for folder in _HUB_CRDS for file in sorted((ocm / folder).glob("*.crd.yaml"))]
    return [
        yaml.load(file.read_text(), Loader=yaml.CSafeLoader)
        for file in files
        if not any(name in file.name for name in _SPOKE_CRDS)
    ]


def open_crd(group: str, version: str, plural: str, kind: str) -> dict[str, Any]:
    """Return a CRD of a namespaced kind of another project. Its objects may have any fields and a status."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    only = {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"kind": kind, "plural": plural, "singular": kind.lower()}
    versions = [only | {"subresources": {"status": {}}}]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": versions},
    }


def create_crds(session: Session, manifests: list[dict[str, Any]]) -> None:
    """Create the missing CRDs, and wait until all are served."""
    for manifest in manifests:
        # Tests of several folders share an API server.
        with contextlib.suppress(ObjectConflictError):
            session.create(CRDS.path(), manifest)
    for manifest in manifests:
        wait_for(lambda name=manifest["metadata"]["name"]: _is_established(session, name), 30)
        spec = manifest["spec"]
        version = next(version["name"] for version in spec["versions"] if version["storage"])
        resource = Resource(spec["group"], version, spec["names"]["plural"], spec["names"]["kind"])
        wait_for(lambda resource=resource: _is_served(session, resource), 30)


def _is_established(session: Session, name: str) -> bool:
    # The conditions of a new CRD are null.
    conditions = session.get(CRDS.path(name=name)).get("status", {}).get("conditions") or []
    return any(condition["type"] == "Established" and condition["status"] == "True" for condition in conditions)


def _is_served(session: Session, resource: Resource) -> bool:
    """True if the resource is served. A CRD is Established slightly before its paths exist, which first return 429."""
    try:
        session.request("GET", resource.path(), query={"limit": "1"})
    except ObjectNotFoundError:
        return False
    except ApiServerError as error:
        if not error.is_busy:
            raise
        return False
    return True
