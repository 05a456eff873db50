"""Before an uninstallation: the hub's deliveries go, and it does not make them again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from dsf.api.types import CREDENTIALS_WORK_NAME, MANAGED_BY, MANAGED_BY_LABEL, MANIFESTWORK_NAME
from dsf.errors import BackendError, ObjectConflictError, ObjectNotFoundError
from dsf.hub import uninstall
from dsf.hub.manifestwork import make_manifest_work
from dsf.kube.resources import ADDON_PLACEMENT_SCORES, DEPLOYMENTS, MANIFEST_WORKS
from dsf.kube.session import ApiServerError, ForbiddenError, Session, UnreachableError
from tests.support.controlplane import ControlPlane

CLEANUP = "cluster.open-cluster-management.io/manifest-work-cleanup"
OTHERS = "addon-dynamic-scoring-framework-deploy-0"


def _work(session: Session, cluster: str, name: str, finalizers: tuple[str, ...] = ()) -> None:
    manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "b"}}
    body = {
        "apiVersion": MANIFEST_WORKS.api_version,
        "kind": MANIFEST_WORKS.kind,
        "metadata": {
            "name": name,
            "namespace": cluster,
            "labels": {MANAGED_BY_LABEL: MANAGED_BY},
            "finalizers": list(finalizers),
        },
        "spec": {"workload": {"manifests": [manifest]}},
    }
    session.create(MANIFEST_WORKS.path(cluster), body)


def _names(session: Session, cluster: str) -> list[str]:
    return sorted(work["metadata"]["name"] for work in session.get(MANIFEST_WORKS.path(cluster))["items"])


def _score(session: Session, cluster: str, name: str, labels: dict[str, str]) -> None:
    body = {
        "apiVersion": ADDON_PLACEMENT_SCORES.api_version,
        "kind": ADDON_PLACEMENT_SCORES.kind,
        "metadata": {"name": name, "labels": labels},
    }
    session.create(ADDON_PLACEMENT_SCORES.path(cluster), body)


def _deployment(session: Session, namespace: str, name: str) -> None:
    labels = {"app": name}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "hub", "image": "hub"}]}}
    body = {
        "apiVersion": DEPLOYMENTS.api_version,
        "kind": DEPLOYMENTS.kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"replicas": 2, "selector": {"matchLabels": labels}, "template": pod},
    }
    session.create(DEPLOYMENTS.path(namespace), body)


def test_leave_deletes_deliveries_of_the_hub_only(
    session: Session, control_plane: ControlPlane, settings_factory: Callable[..., object]
) -> None:
    hub, near, away = (control_plane.namespace(name) for name in ("hub", "near", "away"))
    deployments = ("dynamic-scoring-hub", "dynamic-scoring-controller")
    for name in deployments:
        _deployment(session, hub, name)
    _score(session, near, "ours", {MANAGED_BY_LABEL: MANAGED_BY})
    _score(session, near, "theirs", {MANAGED_BY_LABEL: "another"})
    for name in (MANIFESTWORK_NAME, CREDENTIALS_WORK_NAME, OTHERS):
        _work(session, near, name)
    # Its work agent takes the finalizer off when it is back.
    _work(session, away, CREDENTIALS_WORK_NAME, (CLEANUP,))
    try:
        unfinished_clusters = uninstall.remove_hub_objects(session, hub, timeout_seconds=3)
        assert away in unfinished_clusters
        assert near not in unfinished_clusters
        assert _names(session, near) == [OTHERS]
        work = session.get(MANIFEST_WORKS.path(away, CREDENTIALS_WORK_NAME))
        assert work["metadata"]["deletionTimestamp"]
        assert [session.get(DEPLOYMENTS.path(hub, name))["spec"]["replicas"] for name in deployments] == [0, 0]
        scores = session.get(ADDON_PLACEMENT_SCORES.path(near))["items"]
        assert [score["metadata"]["name"] for score in scores] == ["theirs"]
    finally:
        session.merge(MANIFEST_WORKS.path(away, CREDENTIALS_WORK_NAME), {"metadata": {"finalizers": None}})
    assert away not in uninstall.remove_hub_objects(session, control_plane.namespace("nobody"), timeout_seconds=30)


class Server:
    """An API server with some works. Its call number `at` fails, or each when that is None."""

    def __init__(self, failure: Exception | None = None, at: int | None = None) -> None:
        self.works = [_listed(f"c{number}") for number in range(3)]
        self.failure = failure
        self.at = at
        self.calls = 0
        self.queries: list[dict[str, str]] = []

    def merge(self, path: str, body: object) -> None:
        self._fail()
        raise ObjectNotFoundError(path)

    def read(self, path: str, query: dict[str, str], **_: object) -> tuple[dict[str, Any], int]:
        self._fail()
        if "manifestworks" not in path:
            return {"items": []}, 0
        self.queries.append(dict(query))
        offset = int(query.get("continue", "0"))
        matching_works = [
            work for work in self.works if query["fieldSelector"] == f"metadata.name={work['metadata']['name']}"
        ]
        next_page = str(offset + 1) if offset + 1 < len(matching_works) else ""
        return {"items": matching_works[offset : offset + 1], "metadata": {"continue": next_page}}, 0

    def delete(self, path: str, *, uid: str) -> None:
        self._fail()
        self.works = [work for work in self.works if work["metadata"]["uid"] != uid]

    def _fail(self) -> None:
        self.calls += 1
        if self.failure is not None and self.at in (None, self.calls):
            raise self.failure


def _listed(cluster: str) -> dict[str, Any]:
    work = make_manifest_work(cluster, "agent", [])
    return {**work, "metadata": {**work["metadata"], "uid": f"uid-{cluster}"}}


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uninstall, "_POLL_SECONDS", 0.01)


@pytest.mark.usefixtures("hurried")
def test_works_are_read_in_pages_and_only_the_hubs_own() -> None:
    server = Server()
    assert uninstall.remove_hub_objects(cast("Session", server), "hub", timeout_seconds=60) == []
    assert {query.get("labelSelector") for query in server.queries} == {f"{MANAGED_BY_LABEL}={MANAGED_BY}"}
    assert all(int(query.get("limit", 0)) > 0 for query in server.queries)
    assert [query.get("continue") for query in server.queries[:3]] == [None, "1", "2"]


@pytest.mark.usefixtures("hurried")
def test_leave_returns_nothing_pending_after_the_last_round() -> None:
    assert uninstall.remove_hub_objects(cast("Session", Server()), "hub", timeout_seconds=0) == []


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("at", range(1, 6))
@pytest.mark.parametrize(
    "failure",
    [
        ApiServerError("busy", 503),
        ApiServerError("wait", 429, 0.01),
        ObjectConflictError("x"),
        UnreachableError("x"),
    ],
)
def test_leave_retries_a_failure_within_its_patience(failure: BackendError, at: int) -> None:
    server = Server(failure, at)
    assert uninstall.remove_hub_objects(cast("Session", server), "hub", timeout_seconds=60) == []
    assert server.works == []


@pytest.mark.usefixtures("hurried")
def test_leave_raises_a_failure_that_outlasts_its_patience() -> None:
    with pytest.raises(UnreachableError):
        uninstall.remove_hub_objects(cast("Session", Server(UnreachableError("x"))), "hub", timeout_seconds=0.1)


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("failure", [ApiServerError("a webhook failed", 500), ForbiddenError("a webhook refuses", 403)])
def test_leave_deletes_other_objects_if_one_deletion_fails(failure: BackendError) -> None:
    class Refusing(Server):
        def delete(self, path: str, *, uid: str) -> None:
            if uid == "uid-c0":
                raise failure
            super().delete(path, uid=uid)

    server = Refusing()
    with pytest.raises(type(failure)):
        uninstall.remove_hub_objects(cast("Session", server), "hub", timeout_seconds=0.1)
    assert [work["metadata"]["namespace"] for work in server.works] == ["c0"]


@pytest.mark.usefixtures("hurried")
def test_leave_stops_deleting_while_the_server_is_busy() -> None:
    class Busy(Server):
        deletions = 0

        def delete(self, path: str, *, uid: str) -> None:
            self.deletions += 1
            raise ApiServerError("busy", 429)

    server = Busy()
    with pytest.raises(ApiServerError):
        uninstall.remove_hub_objects(cast("Session", server), "hub", timeout_seconds=0)
    assert server.deletions == 1
