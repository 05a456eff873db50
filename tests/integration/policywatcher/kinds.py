"""The kinds that the watcher reads and writes, and how to make an API server know them."""

from __future__ import annotations

import yaml

from dsf.errors import ObjectNotFoundError
from dsf.kube.resources import POLICIES, Resource
from dsf.kube.session import ApiServerError, Session
from tests.support.controlplane import find
from tests.support.controlplane_crds import create_crds
from tests.support.policycrds import install_policy_crds
from tests.support.wait import wait_for

CLAIMS = Resource("cluster.open-cluster-management.io", "v1alpha1", "clusterclaims", "ClusterClaim", namespaced=False)


def install(session: Session) -> None:
    """Make both kinds known, where they are not known yet, and wait until they are served."""
    if not _is_served(session, CLAIMS):
        (file,) = (find("crds") / "cluster" / "v1alpha1").glob("*_clusterclaims.crd.yaml")
        create_crds(session, [yaml.load(file.read_text(), Loader=yaml.CSafeLoader)])
    install_policy_crds(session)
    for resource in (CLAIMS, POLICIES):
        wait_for(lambda resource=resource: _is_served(session, resource), 30, f"{resource} is served")


def _is_served(session: Session, resource: Resource) -> bool:
    try:
        session.get(resource.path())
    except (ObjectNotFoundError, ApiServerError):
        # A new kind answers 404, then for a moment 429.
        return False
    return True
