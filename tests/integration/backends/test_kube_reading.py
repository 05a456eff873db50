"""Objects that the hub's backend reads from a real API server, and its notifications."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dsf.api.cluster import find_cluster_sets
from dsf.api.score import make_score_body
from dsf.api.types import ADDON_NAME, GROUP
from dsf.backends.kube import KubeBackend
from dsf.backends.protocol import PROBLEM_FIELD, Kind, ObjectKey
from dsf.backends.scorestate import ScoreState
from dsf.errors import BackendError
from dsf.kube.resources import (
    ADDON_PLACEMENT_SCORES,
    DYNAMIC_SCORERS,
    MANAGED_CLUSTER_ADDONS,
    MANAGED_CLUSTER_SETS,
    MANAGED_CLUSTERS,
)
from dsf.kube.session import Session
from dsf.settings import Settings
from tests.integration.backends.hub import Hub
from tests.integration.kube.recorder import Recorder, record_page_sizes, reflecting
from tests.support.controlplane import ControlPlane
from tests.support.manifests import scorer
from tests.support.wait import wait_for


def test_initial_objects_are_listed_and_notified(
    control_plane: ControlPlane, session: Session, start_hub: Callable[..., Hub]
) -> None:
    namespace, cluster = control_plane.namespace(), control_plane.cluster()
    session.create(DYNAMIC_SCORERS.path(namespace), scorer(namespace))
    hub = start_hub()
    assert hub.has_notified(Kind.SCORER, namespace, "sample")
    assert hub.has_notified(Kind.CLUSTER, "", cluster)
    cached_scorer = hub.backend.get(Kind.SCORER, namespace, "sample")
    assert cached_scorer is not None
    assert cached_scorer in hub.backend.list(Kind.SCORER)
    assert cached_scorer["spec"]["location"] == "Internal"
    assert {"uid", "generation", "creationTimestamp", "resourceVersion"} <= cached_scorer["metadata"].keys()
    assert hub.backend.get(Kind.SCORER, namespace, "other") is None
    assert not hub.overlapping


def test_changes_are_notified_at_once(control_plane: ControlPlane, session: Session, hub: Hub) -> None:
    namespace = control_plane.namespace()
    cluster = control_plane.cluster(accepted=False)
    wait_for(lambda: hub.has_notified(Kind.CLUSTER, "", cluster), 5)
    session.merge(MANAGED_CLUSTERS.path(name=cluster), {"spec": {"hubAcceptsClient": True}})
    wait_for(lambda: hub.has_notified(Kind.CLUSTER, "", cluster, 2), 5)
    session.create(DYNAMIC_SCORERS.path(namespace), scorer(namespace))
    wait_for(lambda: hub.has_notified(Kind.SCORER, namespace, "sample"), 5)
    session.delete(DYNAMIC_SCORERS.path(namespace, "sample"))
    wait_for(lambda: hub.has_notified(Kind.SCORER, namespace, "sample", 2), 5)
    assert hub.backend.get(Kind.SCORER, namespace, "sample") is None


def test_unused_fields_are_neither_kept_nor_notified(control_plane: ControlPlane, session: Session, hub: Hub) -> None:
    cluster = control_plane.cluster()
    wait_for(lambda: hub.has_notified(Kind.CLUSTER, "", cluster), 5)
    hub.notified.clear()
    claims = {"clusterClaims": [{"name": "region", "value": "eu"}]}
    path = MANAGED_CLUSTERS.path(name=cluster, subresource="status")
    session.merge(path, {"status": {"capacity": {"cpu": "8"}, "version": {"kubernetes": "v1.36.3"}}})
    session.merge(path, {"status": claims})
    wait_for(lambda: hub.has_notified(Kind.CLUSTER, "", cluster), 5)
    assert len(hub.notified) == 1
    cluster_object = hub.backend.get(Kind.CLUSTER, "", cluster)
    assert cluster_object is not None
    assert cluster_object["status"] == claims
    assert "managedFields" not in cluster_object["metadata"]


def test_cluster_sets_are_notified_without_their_status(
    control_plane: ControlPlane, session: Session, hub: Hub
) -> None:
    name = control_plane.namespace()
    selector = {"selectorType": "LabelSelector", "labelSelector": {"matchLabels": {"region": "eu"}}}
    cluster_set = {
        "apiVersion": MANAGED_CLUSTER_SETS.api_version,
        "kind": MANAGED_CLUSTER_SETS.kind,
        "metadata": {"name": name},
        "spec": {"clusterSelector": selector},
    }
    session.create(MANAGED_CLUSTER_SETS.path(), cluster_set)
    wait_for(lambda: hub.has_notified(Kind.CLUSTER_SET, "", name), 5)
    cached_set = hub.backend.get(Kind.CLUSTER_SET, "", name)
    assert cached_set is not None
    assert (find_cluster_sets({"region": "eu"}, [cached_set]), find_cluster_sets({}, [cached_set])) == (
        {name},
        frozenset(),
    )
    session.delete(MANAGED_CLUSTER_SETS.path(name=name))
    wait_for(lambda: hub.backend.get(Kind.CLUSTER_SET, "", name) is None, 5)


def test_addons_are_watched_in_addon_mode_only(
    control_plane: ControlPlane, session: Session, start_hub: Callable[..., Hub]
) -> None:
    cluster = control_plane.cluster()
    for name in (ADDON_NAME, "another"):
        body = {"apiVersion": MANAGED_CLUSTER_ADDONS.api_version, "kind": MANAGED_CLUSTER_ADDONS.kind}
        session.create(MANAGED_CLUSTER_ADDONS.path(cluster), body | {"metadata": {"name": name}, "spec": {}})
    without, using = start_hub(), start_hub(addon_mode=True)
    assert without.backend.list(Kind.ADDON) == []
    assert without.backend.get(Kind.ADDON, cluster, ADDON_NAME) is None
    addon_names = [
        addon["metadata"]["name"]
        for addon in using.backend.list(Kind.ADDON)
        if addon["metadata"]["namespace"] == cluster
    ]
    assert addon_names == [ADDON_NAME]
    session.delete(MANAGED_CLUSTER_ADDONS.path(cluster, ADDON_NAME))
    wait_for(lambda: using.notified[-1:] == [ObjectKey(Kind.ADDON, cluster, ADDON_NAME)], 5)


def test_score_changes_are_reported_and_own_writes_are_recognisable(
    control_plane: ControlPlane, session: Session, hub: Hub
) -> None:
    cluster = control_plane.cluster()
    manifest = make_score_body(cluster, "sample-scorer", "sample")
    path = ADDON_PLACEMENT_SCORES.path(cluster, "sample")

    def write(value: int) -> ScoreState:
        return hub.backend.apply_score(
            manifest, {"scores": [{"name": "a", "value": value}], "validUntil": "2099-01-01T00:00:00Z"}
        )

    def reports() -> int:
        return hub.notified.count(ObjectKey(Kind.SCORE, cluster, "sample"))

    def state() -> ScoreState | None:
        return hub.backend.find_score(cluster, "sample")

    def is_read() -> bool:
        cached_score = hub.backend.get(Kind.SCORE, cluster, "sample")
        return cached_score is not None and cached_score["metadata"]["resourceVersion"] == stored_version()

    def stored_version() -> str:
        return str(session.get(path)["metadata"]["resourceVersion"])

    for value in (1, 2, 3):
        written_state = write(value)
        wait_for(is_read, 5)
        assert state() == written_state
    assert reports() > 0
    cached_score = hub.backend.get(Kind.SCORE, cluster, "sample")
    assert cached_score is not None
    assert "status" not in cached_score
    edits: list[list[dict[str, Any]]] = [
        [],
        [{"name": "a", "value": 7}],
        [{"name": "a", "value": 7}, {"name": "b", "value": 1}],
    ]
    for scores in edits:
        before = reports()
        session.merge(path + "/status", {"status": {"scores": scores}}, field_manager="kubectl-edit")
        wait_for(
            lambda before=before, previous_state=written_state: reports() > before and state() != previous_state, 5
        )
        written_state = write(3)
        wait_for(is_read, 5)
        assert state() == written_state
    before = reports()
    session.delete(path)
    wait_for(lambda: reports() > before and state() is None, 5)
    # Scores of other addons are not the framework's.
    session.create(
        ADDON_PLACEMENT_SCORES.path(cluster),
        make_score_body(cluster, "x", "y") | {"metadata": {"name": "resource-usage-score"}},
    )
    write(4)
    wait_for(is_read, 5)
    assert not hub.has_notified(Kind.SCORE, cluster, "resource-usage-score")


def test_stopped_backend_notifies_no_more(control_plane: ControlPlane, start_hub: Callable[..., Hub]) -> None:
    hub = start_hub()
    hub.backend.stop()
    notified_before = len(hub.notified)
    control_plane.cluster()
    other = start_hub()
    assert other.notified
    assert len(hub.notified) == notified_before


def test_missing_right_prevents_the_start_and_is_named(
    control_plane: ControlPlane, settings_factory: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    namespace = control_plane.namespace()
    rule = {"apiGroups": ["*"], "verbs": ["list", "watch"]}
    resources = ["dynamicscorers", "dynamicscoringconfigs", "scoringauthentications"]
    resources += ["managedclusters", "managedclustersets", "addonplacementscores"]
    limited = control_plane.service_account(namespace, "hub", [{**rule, "resources": resources}])
    # More where the others were not listed by then: machines are busy.
    for limit in (3.0, 10.0, 30.0):
        monkeypatch.setattr("dsf.backends.kube._MAX_SYNC_SECONDS", limit)
        backend = KubeBackend(control_plane.session(limited), settings_factory(namespace=namespace))
        with contextlib.closing(contextlib.ExitStack()) as stack:
            stack.callback(backend.stop)
            with pytest.raises(BackendError) as caught:
                backend.start(lambda _: None)
        if "no response" not in str(caught.value):
            break
    assert 'cannot list resource "manifestworks"' in str(caught.value)
    assert str(caught.value).count("cannot list") == 2, "of both names of a ManifestWork, and of nothing else"


def test_stop_ends_a_waiting_start(control_plane: ControlPlane, settings_factory: Callable[..., Settings]) -> None:
    namespace = control_plane.namespace()
    limited = control_plane.service_account(namespace, "hub", [])
    backend = KubeBackend(control_plane.session(limited), settings_factory(namespace=namespace))
    timer = threading.Timer(0.3, backend.stop)
    timer.start()
    with pytest.raises(BackendError, match="stopped"):
        backend.start(lambda _: None)
    timer.join()


def _measure(value: object) -> int:
    """Bytes of a value of JSON in memory."""
    parts = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    return sys.getsizeof(value) + sum(map(_measure, parts))


#: Specs and metadata of scorers that the API server accepts, and that take megabytes.
_LARGE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "description": ({"description": "d" * 1_000_000}, {}),
    "options": (
        {"source": {"type": "mine.example.com", "params": {"query": "up"}, "options": {"a": [[]] * 300_000}}},
        {},
    ),
    "query": ({"source": {"params": {"query": "q" * 1_000_000, "range": 60, "step": 5}}}, {}),
    "finalizers": ({}, {"finalizers": [f"example.com/{number}" for number in range(5000)]}),
    "labels": ({}, {"labels": {f"l{number}": "v" * 60 for number in range(5000)}}),
    "annotations": ({}, {"annotations": {"example.com/a": "v" * 200_000, f"{GROUP}/pause": "v" * 60_000}}),
    "many annotations": ({}, {"annotations": {f"{GROUP}/{number}": "" for number in range(5000)}}),
    "owners": (
        {},
        {
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "ConfigMap", "name": "n" * 200, "uid": str(number)}
                for number in range(2000)
            ]
        },
    ),
}


@pytest.mark.parametrize("part", _LARGE)
def test_large_object_takes_little_memory(
    control_plane: ControlPlane, session: Session, start_hub: Callable[..., Hub], part: str
) -> None:
    hub, foreign = start_hub(), control_plane.namespace()
    spec, metadata = _LARGE[part]
    for namespace, max_bytes in ((hub.namespace, 300_000), (foreign, 40_000)):
        manifest = scorer(namespace, **spec)
        manifest["metadata"] |= metadata
        session.create(DYNAMIC_SCORERS.path(namespace), manifest)
        scorer_object = wait_for(lambda namespace=namespace: hub.backend.get(Kind.SCORER, namespace, "sample"), 10)
        assert _measure(scorer_object) < max_bytes
        assert (PROBLEM_FIELD in scorer_object) == (part in ("options", "query", "finalizers"))
        session.merge(DYNAMIC_SCORERS.path(namespace, "sample"), {"metadata": {"finalizers": None}})
        session.delete(DYNAMIC_SCORERS.path(namespace, "sample"))


def test_many_objects_of_a_namespace_take_little_memory(
    control_plane: ControlPlane, session: Session, start_hub: Callable[..., Hub]
) -> None:
    tenant, neighbour, foreign = (control_plane.namespace() for _ in range(3))
    # The most of its memory that the hub keeps of one object, in 15 kB of JSON.
    dense = {"type": "mine.example.com", "options": {"a": [[]] * 3800}}
    small = {"type": "mine.example.com", "options": {"a": [[]] * 200}}
    hub = start_hub(scorer_namespaces=[tenant, neighbour])

    def create(namespace: str, names: list[str], source: dict[str, Any]) -> None:
        with ThreadPoolExecutor(8) as pool:
            path = DYNAMIC_SCORERS.path(namespace)
            list(pool.map(lambda name: session.create(path, scorer(namespace, name, source=source)), names))

    def read(namespace: str) -> list[dict[str, Any]]:
        return [
            scorer_object
            for scorer_object in hub.backend.list(Kind.SCORER)
            if scorer_object["metadata"]["namespace"] == namespace
        ]

    create(tenant, [f"dense{number}" for number in range(90)], dense)
    create(foreign, [f"small{number}" for number in range(600)], small)
    create(neighbour, ["sample"], dense)
    create(hub.namespace, ["sample"], dense)
    wait_for(lambda: (len(read(tenant)), len(read(foreign))) == (90, 600), 20)
    assert sum(map(_measure, read(tenant))) < 20_000_000
    assert sum(map(_measure, read(foreign))) < 10_000_000
    refused_scorers = [scorer_object for scorer_object in read(tenant) if PROBLEM_FIELD in scorer_object]
    assert 0 < len(refused_scorers) < 90
    assert tenant in refused_scorers[0][PROBLEM_FIELD]
    # The limit of another namespace and of the hub's own namespace is not used up.
    for namespace in (neighbour, hub.namespace):
        [scorer_object] = wait_for(lambda namespace=namespace: read(namespace), 10)
        assert PROBLEM_FIELD not in scorer_object
    # With fewer objects, a changed one is read.
    readable_names = [
        scorer_object["metadata"]["name"] for scorer_object in read(tenant) if PROBLEM_FIELD not in scorer_object
    ]
    name = refused_scorers[0]["metadata"]["name"]
    for name_to_delete in readable_names[:2]:
        session.delete(DYNAMIC_SCORERS.path(tenant, name_to_delete))
    wait_for(lambda: len(read(tenant)) == 88, 10)
    session.merge(DYNAMIC_SCORERS.path(tenant, name), {"metadata": {"labels": {"a": "b"}}})
    wait_for(lambda: PROBLEM_FIELD not in (hub.backend.get(Kind.SCORER, tenant, name) or {PROBLEM_FIELD: ""}), 10)
    for namespace in (tenant, neighbour, foreign, hub.namespace):
        session.request("DELETE", DYNAMIC_SCORERS.path(namespace))


def test_list_of_large_objects_is_read_in_small_pages(control_plane: ControlPlane, session: Session) -> None:
    namespace = control_plane.namespace()
    names = [f"large{number}" for number in range(9)]
    for name in names:
        session.create(DYNAMIC_SCORERS.path(namespace), scorer(namespace, name, description="d" * 1_000_000))
    with contextlib.closing(control_plane.session()) as reader:
        page_bytes = record_page_sizes(reader)
        recorder = Recorder()
        with reflecting(reader, DYNAMIC_SCORERS, recorder, namespace=namespace):
            assert sorted(name for _, name in recorder.copy) == names
    assert len(page_bytes) > 1
    assert max(page_bytes) <= 8 * 1024 * 1024
    for name in names:
        session.delete(DYNAMIC_SCORERS.path(namespace, name))
