"""The kinds that the watcher reads and writes, and how to make an API server know them."""

from __future__ import annotations

import contextlib

import yaml

from dsf.errors import ObjectNotFoundError
from dsf.kube.resources import Resource
from dsf.kube.session import ApiServerError, Session
from dsf.placements.kinds import MANIFEST_WORK_REPLICA_SETS, PLACEMENT_BINDINGS, POLICIES
from tests.support.controlplane import find
from tests.support.controlplane_crds import create_crds
from tests.support.policycrds import install_policy_crds
from tests.support.wait import wait_for

CLAIMS = Resource("cluster.open-cluster-management.io", "v1alpha1", "clusterclaims", "ClusterClaim", namespaced=False)

_CRDS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", False)


def install(session: Session) -> None:
    """Make both kinds known, where they are not known yet, and wait until they are served."""
    (file,) = (find("crds") / "cluster" / "v1alpha1").glob("*_clusterclaims.crd.yaml")
    create_crds(session, [yaml.load(file.read_text(), Loader=yaml.CSafeLoader)])
    install_policy_crds(session)


def uninstall(session: Session) -> None:
    """Remove both kinds, and those that belong to policies."""
    paths = [_CRDS.path(name=str(crd)) for crd in (CLAIMS, POLICIES, PLACEMENT_BINDINGS, MANIFEST_WORK_REPLICA_SETS)]
    for path in paths:
        with contextlib.suppress(ObjectNotFoundError):
            session.delete(path)
    for path in paths:
        wait_for(lambda path=path: _is_gone(session, path), 30, f"{path} is gone")
    for path in (CLAIMS.path(), POLICIES.path()):
        wait_for(lambda path=path: _is_gone(session, path), 30, f"{path} is not served")


def _is_gone(session: Session, path: str) -> bool:
    try:
        session.get(path)
    except ObjectNotFoundError:
        return True
    except ApiServerError as error:
        if not error.is_busy:
            raise
    return False
