"""AddOnPlacementScores on a real API server, with OCM's own CRD."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dsf.api.score import make_score_body, make_score_status
from dsf.api.types import SCORER_NAME_LABEL
from dsf.backends.kube_scores import KubeScores
from dsf.errors import ForeignObjectError, ObjectNotFoundError
from dsf.kube.resources import ADDON_PLACEMENT_SCORES, MANAGED_CLUSTERS
from dsf.kube.session import ApiServerError, Session
from tests.integration.kube.recorder import record_page_sizes
from tests.support.controlplane import ControlPlane

NOW = datetime(2026, 11, 21, 9, 0, tzinfo=UTC)


class Cluster:
    """A cluster with a score named `sample`."""

    def __init__(self, plane: ControlPlane, session: Session) -> None:
        self.name = plane.cluster()
        self.uid = session.get(MANAGED_CLUSTERS.path(name=self.name))["metadata"]["uid"]
        self.path = ADDON_PLACEMENT_SCORES.path(self.name, "sample")

    def create_as_upstream(self, session: Session, **status: Any) -> None:
        """Create the object as the agent of the original project does."""
        self.create_without_label(session, "dynamic-scoring-addon", **status)

    def create_without_label(self, session: Session, manager: str, **status: Any) -> None:
        """Create the object as another program does."""
        metadata = {"name": "sample", "namespace": self.name}
        body = {**self.manifest(), "metadata": metadata}
        session.create(ADDON_PLACEMENT_SCORES.path(self.name), body, field_manager=manager)
        foreign_status = {"scores": [{"name": "a", "value": 1}, {"name": "old", "value": 2}], **status}
        session.merge(self.path + "/status", {"status": foreign_status}, field_manager=manager)

    def manifest(self) -> dict[str, Any]:
        return make_score_body(self.name, "sample-scorer", "sample", owner_uid=self.uid)


@pytest.fixture
def cluster(control_plane: ControlPlane, session: Session) -> Cluster:
    return Cluster(control_plane, session)


@pytest.fixture
def backend(session: Session) -> KubeScores:
    # As if the watch had not reported anything yet.
    return KubeScores(session, lambda key: None, lambda obj: None)


@pytest.fixture
def requests(session: Session, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The requests of the session, as `METHOD path`."""
    requests_sent: list[str] = []
    request: Callable[..., Any] = session.request

    def counting(method: str, path: str, **options: Any) -> Any:
        requests_sent.append(f"{method} {path}")
        return request(method, path, **options)

    monkeypatch.setattr(session, "request", counting)
    return requests_sent


def _status(*items: tuple[str, int], minutes: int = 5) -> dict[str, Any]:
    return make_score_status(items, valid_until=NOW + timedelta(minutes=minutes), now=NOW)


def test_new_score_has_its_status(backend: KubeScores, session: Session, cluster: Cluster, requests: list[str]) -> None:
    backend.apply_score(cluster.manifest(), _status(("a", 10), ("b", -20)))
    assert len(requests) == 2
    score_object = session.get(cluster.path)
    assert score_object["status"] == _status(("a", 10), ("b", -20))
    metadata = score_object["metadata"]
    assert metadata["ownerReferences"] == cluster.manifest()["metadata"]["ownerReferences"]
    assert metadata["labels"]["dynamic-scoring.open-cluster-management.io/scorer-name"] == "sample-scorer"


def test_changed_score_is_one_request_and_an_equal_score_changes_nothing(
    backend: KubeScores, session: Session, cluster: Cluster, requests: list[str]
) -> None:
    backend.apply_score(cluster.manifest(), _status(("a", 1), ("b", 2)))
    requests.clear()
    backend.apply_score(cluster.manifest(), _status(("b", 3), ("c", 4), minutes=6))
    assert requests == [f"PATCH {cluster.path}/status"]
    score_object = session.get(cluster.path)
    assert score_object["status"] == _status(("b", 3), ("c", 4), minutes=6), "an item that is not there any more goes"
    backend.apply_score(cluster.manifest(), _status(("b", 3), ("c", 4), minutes=6))
    assert session.get(cluster.path)["metadata"]["resourceVersion"] == score_object["metadata"]["resourceVersion"]
    backend.apply_score(cluster.manifest(), _status())
    assert session.get(cluster.path)["status"].get("scores", []) == []


def test_manual_edits_are_overwritten(
    backend: KubeScores, session: Session, control_plane: ControlPlane, cluster: Cluster, requests: list[str]
) -> None:
    status = _status(("a", 1), ("b", 2))
    backend.apply_score(cluster.manifest(), status)
    edited = (
        '{"status":{"scores":[{"name":"a","value":99},{"name":"b","value":2},{"name":"mine","value":100}],'
        '"validUntil":null}}'
    )
    for _ in range(2):
        control_plane.kubectl(
            *("patch", "addonplacementscores", "sample", "-n", cluster.name),
            *("--subresource=status", "--type=merge", "-p", edited),
        )
        requests.clear()
        backend.apply_score(cluster.manifest(), status)
        assert len(requests) == 1
        assert session.get(cluster.path)["status"] == status
    requests.clear()
    later = _status(("b", 3), minutes=9)
    backend.apply_score(cluster.manifest(), later)
    assert len(requests) == 1, "nobody else owns anything any more"
    assert session.get(cluster.path)["status"] == later
    managers = {entry["manager"] for entry in session.get(cluster.path)["metadata"]["managedFields"]}
    assert managers == {"dynamic-scoring-hub"}


def test_owner_and_labels_are_repaired(backend: KubeScores, session: Session, cluster: Cluster) -> None:
    backend.apply_score(cluster.manifest(), _status(("a", 1)))
    # The ManagedCluster was deleted and created again; OCM keeps its namespace and the objects in it.
    session.delete(MANAGED_CLUSTERS.path(name=cluster.name))
    body = {"apiVersion": MANAGED_CLUSTERS.api_version, "kind": "ManagedCluster", "metadata": {"name": cluster.name}}
    cluster.uid = session.create(MANAGED_CLUSTERS.path(), body)["metadata"]["uid"]
    session.merge(cluster.path, {"metadata": {"labels": {SCORER_NAME_LABEL: "another", "mine": "stays"}}})
    backend.apply_score(cluster.manifest(), _status(("a", 2)))
    metadata = session.get(cluster.path)["metadata"]
    assert [owner["uid"] for owner in metadata["ownerReferences"]] == [cluster.uid]
    assert metadata["labels"] == {**cluster.manifest()["metadata"]["labels"], "mine": "stays"}


def test_score_value_refused_by_ocm_is_reported(backend: KubeScores, session: Session, cluster: Cluster) -> None:
    backend.apply_score(cluster.manifest(), _status(("a", 1)))
    with pytest.raises(ApiServerError, match=r"status\.scores.*should be less than or equal to 100") as caught:
        backend.apply_score(cluster.manifest(), _status(("a", 101)))
    assert caught.value.status == 422
    assert session.get(cluster.path)["status"] == _status(("a", 1))


def test_missing_cluster_namespace_is_reported(backend: KubeScores) -> None:
    manifest = make_score_body("nowhere", "sample-scorer", "sample")
    with pytest.raises(ObjectNotFoundError, match='namespaces "nowhere" not found'):
        backend.apply_score(manifest, _status(("a", 1)))


def test_terminating_namespace_counts_as_missing(
    backend: KubeScores, control_plane: ControlPlane, cluster: Cluster
) -> None:
    control_plane.kubectl("delete", "namespace", cluster.name, "--wait=false")
    with pytest.raises(ObjectNotFoundError, match="being terminated"):
        backend.apply_score(cluster.manifest(), _status(("a", 1)))


def test_score_deletion_is_idempotent(backend: KubeScores, session: Session, cluster: Cluster) -> None:
    backend.apply_score(cluster.manifest(), _status(("a", 1)))
    for _ in range(2):
        backend.delete_score(cluster.name, "sample")
    with pytest.raises(ObjectNotFoundError):
        session.get(cluster.path)


@pytest.mark.parametrize(
    ("manager", "status"),
    [
        ("resource-usage-collect-addon", {}),
        ("kubectl-create", {}),
        # Written by the original project's agent, and by somebody who gave it an end.
        ("dynamic-scoring-addon", {"validUntil": "2030-01-01T00:00:00Z"}),
    ],
)
def test_foreign_score_is_neither_written_nor_deleted(
    backend: KubeScores, session: Session, cluster: Cluster, manager: str, status: dict[str, Any]
) -> None:
    cluster.create_without_label(session, manager, **status)
    foreign_score = session.get(cluster.path)
    for _ in range(2):
        with pytest.raises(ForeignObjectError, match=rf"sample in namespace {cluster.name} belongs to somebody else"):
            backend.apply_score(cluster.manifest(), _status(("a", 99)))
        backend.delete_score(cluster.name, "sample")
    assert session.get(cluster.path) == foreign_score


def test_score_without_the_label_is_abandoned(backend: KubeScores, session: Session, cluster: Cluster) -> None:
    """Its uid is that of the written object."""
    backend.apply_score(cluster.manifest(), _status(("a", 1)))
    session.merge(cluster.path, {"metadata": {"labels": {"app.kubernetes.io/managed-by": None}}})
    with pytest.raises(ForeignObjectError):
        backend.apply_score(cluster.manifest(), _status(("a", 2)))
    backend.delete_score(cluster.name, "sample")
    assert session.get(cluster.path)["status"] == _status(("a", 1))


def test_foreign_score_in_place_of_a_deleted_one_is_not_deleted(
    backend: KubeScores, session: Session, cluster: Cluster
) -> None:
    """Before the watch has reported the deletion."""
    backend.apply_score(cluster.manifest(), _status(("a", 1)))
    session.delete(cluster.path)
    cluster.create_without_label(session, "another-controller")
    backend.delete_score(cluster.name, "sample")
    with pytest.raises(ForeignObjectError):
        backend.apply_score(cluster.manifest(), _status(("a", 2)))
    assert [score["name"] for score in session.get(cluster.path)["status"]["scores"]] == ["a", "old"]


def test_score_that_was_recreated_with_the_label_is_ours(
    backend: KubeScores, session: Session, cluster: Cluster
) -> None:
    """As a backup restores it."""
    backend.apply_score(cluster.manifest(), _status(("a", 1)))
    session.delete(cluster.path)
    session.create(ADDON_PLACEMENT_SCORES.path(cluster.name), cluster.manifest())
    backend.apply_score(cluster.manifest(), _status(("a", 2)))
    assert session.get(cluster.path)["status"] == _status(("a", 2))
    backend.delete_score(cluster.name, "sample")
    with pytest.raises(ObjectNotFoundError):
        session.get(cluster.path)


def test_upstreams_score_is_taken_over_with_an_end(backend: KubeScores, session: Session, cluster: Cluster) -> None:
    cluster.create_as_upstream(session)
    valid_until = NOW + timedelta(minutes=5)
    assert backend.adopt_scores(lambda *_: None) == 0

    def claim(namespace: str, name: str, created: float) -> tuple[dict[str, Any], datetime] | None:
        if (namespace, name) != (cluster.name, "sample"):
            return None
        created_at = session.get(cluster.path)["metadata"]["creationTimestamp"]
        assert created == datetime.fromisoformat(created_at).timestamp()
        return cluster.manifest(), valid_until

    assert backend.adopt_scores(claim) == 1
    score_object = session.get(cluster.path)
    assert score_object["status"]["validUntil"] == "2026-11-21T09:05:00Z"
    assert score_object["status"]["scores"] == [{"name": "a", "value": 1}, {"name": "old", "value": 2}]
    assert score_object["status"]["conditions"][0]["reason"] == "WrittenByUpstream"
    assert score_object["metadata"]["labels"] == cluster.manifest()["metadata"]["labels"]
    assert backend.adopt_scores(claim) == 0
    # Items that both programs wrote are replaced too.
    for item in (("a", 1), ("b", 1)):
        backend.apply_score(cluster.manifest(), _status(item))
        assert session.get(cluster.path)["status"] == _status(item)


def test_large_scores_of_others_are_read_in_small_pages(control_plane: ControlPlane, session: Session) -> None:
    cluster = Cluster(control_plane, session)
    owners = [{"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": str(number)} for number in range(9000)]
    path = ADDON_PLACEMENT_SCORES.path(cluster.name)
    # Half a megabyte each.
    names = [f"large{number}" for number in range(18)]
    for name in names:
        metadata = {"name": name, "namespace": cluster.name, "ownerReferences": owners}
        session.create(path, {**cluster.manifest(), "metadata": metadata})
    with contextlib.closing(control_plane.session()) as reader:
        page_bytes = record_page_sizes(reader)
        assert KubeScores(reader, lambda _: None, lambda _: None).adopt_scores(lambda *_: None) == 0
    assert sum(page_bytes) > 8 * 1024 * 1024
    assert max(page_bytes) <= 8 * 1024 * 1024
    for name in names:
        session.delete(ADDON_PLACEMENT_SCORES.path(cluster.name, name))


def test_score_with_an_end_is_not_taken_over(backend: KubeScores, session: Session, cluster: Cluster) -> None:
    cluster.create_without_label(session, "resource-usage-collect-addon")
    session.merge(cluster.path + "/status", {"status": {"validUntil": "2030-01-01T00:00:00Z"}}, field_manager="other")
    namespaces: list[str] = []
    assert backend.adopt_scores(lambda namespace, name, created: namespaces.append(namespace)) == 0
    assert cluster.name not in namespaces
