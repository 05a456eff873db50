"""Objects that the hub's backend writes to a real API server."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dsf.api.crd import make_crds
from dsf.api.types import CONFIG_NAME, CREDENTIALS_WORK_NAME, KEY_IDS_ANNOTATION, MANAGED_BY_LABEL, MANIFESTWORK_NAME
from dsf.backends.compare import covers
from dsf.backends.contest import IMMEDIATE_REPAIRS
from dsf.backends.kube import CLAIMS_NAME
from dsf.backends.kube_crds import describe_missing_fields
from dsf.backends.protocol import Credentials, Kind
from dsf.errors import (
    BackendError,
    ContestedObjectError,
    ForeignObjectError,
    ObjectConflictError,
    ObjectNotFoundError,
)
from dsf.hub.manifestwork import is_applied, make_manifest_work
from dsf.kube.resources import (
    CONFIG_MAPS,
    DYNAMIC_SCORERS,
    DYNAMIC_SCORING_CONFIGS,
    MANIFEST_WORKS,
    SECRETS,
)
from dsf.kube.session import Session
from dsf.messages import derive_key
from dsf.redisacl.keyids import KeyIds
from tests.integration.backends.hub import Hub
from tests.support import upstream
from tests.support.controlplane import ControlPlane
from tests.support.manifests import applied, scorer
from tests.support.wait import wait_for


def _work(cluster: str) -> dict[str, Any]:
    return make_manifest_work(cluster, "dynamic-scoring", [])


def test_scoring_config_is_created_at_the_start_and_never_changed(
    session: Session, start_hub: Callable[..., Hub]
) -> None:
    # A process reads the setting as text.
    hub = start_hub(scoring_config='{"masks": [{"clusterName": "c1", "scoreName": "*"}]}')
    namespace = hub.namespace
    path = DYNAMIC_SCORING_CONFIGS.path(namespace, CONFIG_NAME)
    assert session.get(path)["spec"] == {"masks": [{"clusterName": "c1", "scoreName": "*"}]}
    masks = [{"clusterName": "c2", "scoreName": "cpu"}]
    session.merge(path, {"spec": {"masks": masks}})
    start_hub(namespace=namespace, scoring_config={"masks": []})
    assert session.get(path)["spec"] == {"masks": masks}


def test_no_scoring_config_is_created_without_the_setting(session: Session, hub: Hub) -> None:
    with pytest.raises(ObjectNotFoundError):
        session.get(DYNAMIC_SCORING_CONFIGS.path(hub.namespace, CONFIG_NAME))


def test_refused_scoring_config_is_named(start_hub: Callable[..., Hub]) -> None:
    with pytest.raises(BackendError, match=r"spec\.masks\[0\]\.clusterName"):
        start_hub(scoring_config={"masks": [{"clusterName": "", "scoreName": "*"}]})


def test_fields_that_the_crds_of_the_api_server_lack_are_named(hub: Hub, session: Session) -> None:
    assert hub.backend.describe_missing_fields() == ""
    newer_crds = make_crds()
    spec = newer_crds[0]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    spec["properties"]["execution"]["properties"]["notYet"] = {"type": "string"}
    assert ": DynamicScorer spec.execution.notYet; " in describe_missing_fields(session, newer_crds)


def test_manifest_work_keeps_foreign_fields_and_is_repaired(
    control_plane: ControlPlane, session: Session, hub: Hub
) -> None:
    cluster = control_plane.cluster()
    path = MANIFEST_WORKS.path(cluster, MANIFESTWORK_NAME)
    manifest_work = _work(cluster)
    hub.backend.apply(manifest_work)
    work_finalizer = "cluster.open-cluster-management.io/manifest-work-cleanup"
    session.merge(path, {"metadata": {"labels": {"foreign": "label"}, "finalizers": [work_finalizer]}})
    condition = applied(1)
    session.merge(path + "/status", {"status": {"conditions": [condition]}}, field_manager="work-agent")
    edited = [{**manifest_work["spec"]["workload"]["manifests"][0], "data": {"summaries": "hacked"}}]
    session.merge(path, {"spec": {"workload": {"manifests": edited}}}, field_manager="kubectl-edit")
    wait_for(lambda: not covers(hub.backend.get(Kind.WORK, cluster, MANIFESTWORK_NAME), manifest_work), 5)

    hub.backend.apply(manifest_work)
    observed = hub.backend.get(Kind.WORK, cluster, MANIFESTWORK_NAME)
    assert observed is not None
    assert covers(observed, manifest_work), "the response is taken in at once"
    assert not is_applied(observed), "the repair is another generation"
    stored_work = session.get(path)
    assert stored_work["metadata"]["labels"]["foreign"] == "label"
    assert stored_work["metadata"]["finalizers"] == [work_finalizer]
    assert stored_work["status"]["conditions"] == [condition]
    assert covers(stored_work, manifest_work)
    version = stored_work["metadata"]["resourceVersion"]
    hub.backend.apply(manifest_work)
    assert session.get(path)["metadata"]["resourceVersion"] == version, "the same again is no change"

    hub.backend.delete(Kind.WORK, cluster, MANIFESTWORK_NAME)
    wait_for(
        lambda: (
            (hub.backend.get(Kind.WORK, cluster, MANIFESTWORK_NAME) or {}).get("metadata", {}).get("deletionTimestamp")
        ),
        2,
    )
    session.merge(path, {"metadata": {"finalizers": None}})
    wait_for(lambda: hub.backend.get(Kind.WORK, cluster, MANIFESTWORK_NAME) is None, 5)
    hub.backend.delete(Kind.WORK, cluster, MANIFESTWORK_NAME)


def _foreign_work(cluster: str, name: str) -> dict[str, Any]:
    """Return a ManifestWork of another program with our name."""
    manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "theirs", "namespace": "default"}}
    return {
        "apiVersion": MANIFEST_WORKS.api_version,
        "kind": MANIFEST_WORKS.kind,
        "metadata": {"name": name, "namespace": cluster},
        "spec": {"workload": {"manifests": [manifest]}},
    }


@pytest.mark.parametrize("name", [MANIFESTWORK_NAME, CREDENTIALS_WORK_NAME])
def test_foreign_manifest_work_is_neither_changed_nor_deleted(
    control_plane: ControlPlane, session: Session, hub: Hub, name: str
) -> None:
    cluster = control_plane.cluster()
    path = MANIFEST_WORKS.path(cluster, name)
    before = session.create(MANIFEST_WORKS.path(cluster), _foreign_work(cluster, name))
    credentials = Credentials(KeyIds(1), derive_key(bytes(32), cluster, 1).dump())
    writes: dict[str, Callable[[], None]] = {
        MANIFESTWORK_NAME: lambda: hub.backend.apply(_work(cluster)),
        CREDENTIALS_WORK_NAME: lambda: hub.backend.deliver_credentials(cluster, credentials),
    }
    with pytest.raises(ForeignObjectError, match="made neither by this framework nor by upstream's"):
        writes[name]()
    hub.backend.delete(Kind.WORK, cluster, name)
    assert session.get(path) == before


def test_manifest_work_without_its_label_is_still_the_hubs(
    control_plane: ControlPlane, session: Session, hub: Hub
) -> None:
    cluster = control_plane.cluster()
    path = MANIFEST_WORKS.path(cluster, MANIFESTWORK_NAME)
    hub.backend.apply(_work(cluster))
    session.merge(path, {"metadata": {"labels": None}}, field_manager="kubectl-edit")
    wait_for(lambda: hub.backend.get(Kind.WORK, cluster, MANIFESTWORK_NAME) is None, 5)
    hub.backend.apply(_work(cluster))
    assert MANAGED_BY_LABEL in session.get(path)["metadata"]["labels"]
    session.merge(path, {"metadata": {"labels": None}}, field_manager="kubectl-edit")
    wait_for(lambda: hub.backend.get(Kind.WORK, cluster, MANIFESTWORK_NAME) is None, 5)
    hub.backend.delete(Kind.WORK, cluster, MANIFESTWORK_NAME)
    with pytest.raises(ObjectNotFoundError):
        session.get(path)


def test_manifest_work_of_upstream_is_taken_over(control_plane: ControlPlane, session: Session, hub: Hub) -> None:
    cluster = control_plane.cluster()
    path = MANIFEST_WORKS.path(cluster, MANIFESTWORK_NAME)
    upstream.create_work(session, cluster, {"name": "old"})
    hub.backend.apply(_work(cluster))
    assert covers(session.get(path), _work(cluster))


def test_foreign_work_in_place_of_a_deleted_one_is_not_changed(
    control_plane: ControlPlane, session: Session, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch has not reported it yet."""
    cluster = control_plane.cluster()
    path = MANIFEST_WORKS.path(cluster, MANIFESTWORK_NAME)
    hub.backend.apply(_work(cluster))
    known_work = hub.backend.get(Kind.WORK, cluster, MANIFESTWORK_NAME)
    monkeypatch.setattr(hub.backend, "get", lambda *_: known_work)
    session.delete(path)
    foreign_work = session.create(MANIFEST_WORKS.path(cluster), _foreign_work(cluster, MANIFESTWORK_NAME))
    with pytest.raises(ForeignObjectError):
        hub.backend.apply(_work(cluster))
    hub.backend.delete(Kind.WORK, cluster, MANIFESTWORK_NAME)
    assert session.get(path) == foreign_work


def test_foreign_config_map_with_the_name_of_the_claims_is_not_changed(session: Session, hub: Hub) -> None:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": CLAIMS_NAME}, "data": {"claims": "theirs"}}
    before = session.create(CONFIG_MAPS.path(hub.namespace), body)
    with pytest.raises(ForeignObjectError, match="needs that name"):
        hub.backend.read_name_claims(hub.namespace)
    with pytest.raises(ObjectConflictError):
        hub.backend.keep_name_claims(hub.namespace, "ours")
    assert session.get(CONFIG_MAPS.path(hub.namespace, CLAIMS_NAME)) == before


def test_status_is_replaced_as_a_whole_and_only_if_it_differs(
    control_plane: ControlPlane, session: Session, hub: Hub
) -> None:
    namespace = control_plane.namespace()
    path = DYNAMIC_SCORERS.path(namespace, "sample")
    session.create(DYNAMIC_SCORERS.path(namespace), scorer(namespace))
    wait_for(lambda: hub.has_notified(Kind.SCORER, namespace, "sample"), 5)

    def condition(kind: str, status: str) -> dict[str, str]:
        return {
            "type": kind,
            "status": status,
            "reason": "R",
            "message": "",
            "lastTransitionTime": "2026-11-21T09:00:00Z",
        }

    def write(status: dict[str, Any]) -> dict[str, Any]:
        hub.backend.update_status(Kind.SCORER, namespace, "sample", status)
        stored_object = session.get(path)
        assert stored_object["status"] == status
        observed = hub.backend.get(Kind.SCORER, namespace, "sample")
        assert observed is not None
        assert observed["status"] == status, "the response is taken in at once"
        return stored_object

    both = {
        "healthStatus": "Active",
        "conditions": [condition("Healthy", "True"), condition("Scoring", "True")],
        "lastSyncedConfig": {"name": "a", "source": {"type": "Prometheus"}},
        "clusters": {"desired": 2},
    }
    first = write(both)
    assert write(both)["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    write({"healthStatus": "Inactive", "conditions": [condition("Scoring", "False"), condition("Healthy", "True")]})
    write({"healthStatus": "Inactive", "conditions": [condition("Healthy", "False")]})
    # A different program wrote a status before, as the original project's controller does.
    session.merge(path + "/status", {"status": {"lastSyncedConfig": {"name": "old", "description": "d"}}})
    write({"healthStatus": "Inactive", "lastSyncedConfig": {"name": "old"}})
    assert first["spec"] == session.get(path)["spec"]
    with pytest.raises(ObjectNotFoundError):
        hub.backend.update_status(Kind.SCORER, namespace, "other", both)


# --- credentials ----------------------------------------------------------------------------------------------------


def test_two_hubs_agree_on_one_signing_secret(start_hub: Callable[..., Hub], session: Session) -> None:
    hub = start_hub()
    backend = hub.backend
    barrier = threading.Barrier(8)

    def read(_: int) -> str:
        barrier.wait()
        return backend.get_master_secret()

    with ThreadPoolExecutor(8) as pool:
        (secret,) = set(pool.map(read, range(8)))
    assert len(bytes.fromhex(secret)) == 32
    assert backend.get_master_secret() == secret
    path = SECRETS.path(hub.namespace, "dynamic-scoring-hub-signing")
    session.merge(path, {"data": None})
    with pytest.raises(BackendError, match="no usable key signing-secret; delete it"):
        backend.get_master_secret()


def test_credentials_have_a_manifest_work_of_their_own(
    control_plane: ControlPlane, session: Session, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = control_plane.cluster()
    path = MANIFEST_WORKS.path(cluster, CREDENTIALS_WORK_NAME)
    key = derive_key(b"x" * 32, cluster, 1).dump()
    plain = Credentials(KeyIds(), key)
    assert hub.backend.get_delivered_key_ids(cluster) is None
    hub.backend.deliver_credentials(cluster, plain)
    wait_for(lambda: hub.has_notified(Kind.WORK, cluster, CREDENTIALS_WORK_NAME), 5)
    requests: list[object] = []
    apply = hub.session.apply
    monkeypatch.setattr(hub.session, "apply", lambda *args, **options: requests.append(args) or apply(*args, **options))
    hub.backend.deliver_credentials(cluster, plain)
    assert requests == [], "what is there is not written again"
    session.merge(path, {"spec": {"workload": {"manifests": []}}})
    wait_for(lambda: hub.has_notified(Kind.WORK, cluster, CREDENTIALS_WORK_NAME, 2), 5)
    hub.backend.deliver_credentials(cluster, plain)
    stored_work = session.get(path)
    (secret,) = stored_work["spec"]["workload"]["manifests"]
    assert (secret["kind"], secret["metadata"]["namespace"]) == ("Secret", "dynamic-scoring")
    assert {name: base64.b64decode(text).decode() for name, text in secret["data"].items()} == {"signing-key": key}
    # The valid ids are recorded there, and read from the key itself if the record is lost.
    assert hub.backend.get_delivered_key_ids(cluster) == KeyIds()
    rotating = KeyIds(4, 3, 1700000000.5)
    newer = derive_key(b"x" * 32, cluster, 4).dump()
    hub.backend.deliver_credentials(cluster, Credentials(rotating, newer, "word", "sentinelword"))
    assert hub.backend.get_delivered_key_ids(cluster) == rotating
    (secret,) = session.get(path)["spec"]["workload"]["manifests"]
    assert base64.b64decode(secret["data"]["redis-password"]) == b"word"
    # An unneeded password is removed.
    hub.backend.deliver_credentials(cluster, Credentials(rotating, newer))
    (secret,) = session.get(path)["spec"]["workload"]["manifests"]
    assert list(secret["data"]) == ["signing-key"]
    session.merge(path, {"metadata": {"annotations": {KEY_IDS_ANNOTATION: "nonsense"}}})
    wait_for(lambda: hub.backend.get_delivered_key_ids(cluster) == KeyIds(4), 5)
    for _ in range(2):
        hub.backend.remove_credentials(cluster)
    with pytest.raises(ObjectNotFoundError):
        session.get(path)
    with pytest.raises(ObjectNotFoundError):
        hub.backend.deliver_credentials("nowhere", plain)


def test_contested_work_is_written_rarely_and_names_the_other_manager(
    control_plane: ControlPlane, session: Session, hub: Hub
) -> None:
    cluster = control_plane.cluster()
    path = MANIFEST_WORKS.path(cluster, MANIFESTWORK_NAME)
    hub.backend.apply(_work(cluster))
    for number in range(20):
        session.merge(path, {"metadata": {"labels": {MANAGED_BY_LABEL: f"rival-{number}"}}}, field_manager="rival")
        try:
            hub.backend.apply(_work(cluster))
        except ContestedObjectError as error:
            contest = error
            break
    assert number == IMMEDIATE_REPAIRS
    assert "field managers of others: rival" in str(contest)
    assert contest.retry_after > 0
    # New content is no repair.
    changed = _work(cluster)
    changed["spec"]["workload"]["manifests"][0]["data"] = {"summaries": "[]", "new": "1"}
    hub.backend.apply(changed)


def test_contested_status_is_written_rarely(control_plane: ControlPlane, session: Session, hub: Hub) -> None:
    path = DYNAMIC_SCORERS.path(hub.namespace, "s")
    session.create(DYNAMIC_SCORERS.path(hub.namespace), scorer(hub.namespace, "s"))
    status = {"healthStatus": "Active"}

    def fight() -> None:
        for _ in range(20):
            hub.backend.update_status(Kind.SCORER, hub.namespace, "s", status)
            session.merge(f"{path}/status", {"status": {"healthStatus": "Inactive"}}, field_manager="rival")

    with pytest.raises(ContestedObjectError, match=r"DynamicScorer s .* field managers of others: rival$"):
        fight()
    hub.backend.update_status(Kind.SCORER, hub.namespace, "s", {"healthStatus": "Unknown"})
