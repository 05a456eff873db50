"""The reflector against a real API server, also one that is killed and restarted."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest

import dsf.kube.reflector
from dsf.errors import BackendError, ObjectNotFoundError
from dsf.kube.resources import CONFIG_MAPS, DYNAMIC_SCORERS, Resource
from dsf.kube.session import Session
from dsf.kube.store import get_key, get_version
from tests.integration.kube.recorder import Recorder, on_server, reflecting
from tests.support.apirelay import ApiServerRelay
from tests.support.controlplane import ControlPlane
from tests.support.wait import wait_for


def _create(session: Session, namespace: str, name: str, **labels: str) -> dict[str, Any]:
    body = {"metadata": {"name": name, "labels": labels}, "data": {"value": "1"}}
    return session.create(CONFIG_MAPS.path(namespace), body)


def test_list_of_many_pages_is_complete(control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    namespace = control_plane.namespace()
    with contextlib.closing(control_plane.session()) as session:
        for number in range(23):
            _create(session, namespace, f"c{number}")
        requests: list[object] = []
        read: Callable[..., Any] = session.read
        monkeypatch.setattr(session, "read", lambda *args, **options: requests.append(args) or read(*args, **options))
        # The response of the API server's cache is too large.
        monkeypatch.setattr(dsf.kube.reflector, "MAX_PAGE_BYTES", 1000)
        recorder = Recorder()
        with reflecting(session, CONFIG_MAPS, recorder, namespace=namespace, page_size=5) as reflector:
            assert len(requests) == 1 + 5
            assert recorder.copy == on_server(session, CONFIG_MAPS, namespace)
            config_map = reflector.store.get((namespace, "c7"))
            assert config_map is not None
            assert (config_map["kind"], config_map["apiVersion"], config_map["data"]) == (
                "ConfigMap",
                "v1",
                {"value": "1"},
            )
            assert "managedFields" not in config_map["metadata"]


def test_changes_arrive_at_once_and_in_order(control_plane: ControlPlane, session: Session) -> None:
    namespace, recorder = control_plane.namespace(), Recorder()
    with reflecting(session, CONFIG_MAPS, recorder, namespace=namespace) as reflector:
        _create(session, namespace, "a")
        for number in range(3):
            session.merge(CONFIG_MAPS.path(namespace, "a"), {"data": {"value": str(number)}})
        session.delete(CONFIG_MAPS.path(namespace, "a"))
        wait_for(lambda: recorder.names("deleted"), 5)
        assert [change for change, _ in recorder.reports] == ["added", "changed", "changed", "changed", "deleted"]
        assert reflector.store.list() == []


def test_deselected_object_is_reported_as_deleted(control_plane: ControlPlane, session: Session) -> None:
    namespace, recorder = control_plane.namespace(), Recorder()
    _create(session, namespace, "other")
    _create(session, namespace, "ours", app="dsf")
    with reflecting(session, CONFIG_MAPS, recorder, namespace=namespace, selectors={"labelSelector": "app=dsf"}):
        assert list(recorder.copy) == [(namespace, "ours")]
        session.merge(CONFIG_MAPS.path(namespace, "ours"), {"metadata": {"labels": {"app": None}}})
        wait_for(lambda: recorder.names("deleted") == ["ours"], 5)


def test_bookmarks_advance_the_resource_version(
    control_plane: ControlPlane, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The server sends a bookmark 2 s before it ends a watch, if it finds the time, besides about one a minute. A watch
    # that ends earlier than this without having brought anything counts as a failure.
    monkeypatch.setattr(dsf.kube.reflector, "_WATCH_SECONDS", (8, 8))
    namespace, elsewhere, recorder = control_plane.namespace(), control_plane.namespace(), Recorder()
    with reflecting(session, CONFIG_MAPS, recorder, namespace=namespace) as reflector:
        newest = int(_create(session, elsewhere, "other")["metadata"]["resourceVersion"])
        wait_for(lambda: int(reflector._version or 0) >= newest, 60, "a bookmark")
        assert reflector.store.list() == []
        # The watch after that one is from there.
        _create(session, namespace, "a")
        wait_for(lambda: recorder.names("added") == ["a"], 20)


def test_response_is_observed_before_its_watch_event(control_plane: ControlPlane, session: Session) -> None:
    namespace, recorder = control_plane.namespace(), Recorder()
    first = _create(session, namespace, "a")
    with reflecting(session, CONFIG_MAPS, recorder, namespace=namespace) as reflector:
        second = session.merge(CONFIG_MAPS.path(namespace, "a"), {"data": {"value": "2"}})
        reflector.observe(second)
        key = (namespace, "a")
        assert reflector.store.get(key) == second
        reflector.observe(first)
        assert reflector.store.get(key) == second, "an older answer does not count"
        session.delete(CONFIG_MAPS.path(namespace, "a"))
        wait_for(lambda: reflector.store.get(key) is None, 5)
        reflector.observe(second)
        assert reflector.store.get(key) is None, "a response does not bring back what was deleted"


def test_reflector_names_a_missing_permission(control_plane: ControlPlane) -> None:
    namespace, recorder = control_plane.namespace(), Recorder()
    limited = control_plane.service_account(namespace, "limited", [])
    list_only = {"apiGroups": [DYNAMIC_SCORERS.group], "resources": [DYNAMIC_SCORERS.plural], "verbs": ["list"]}
    with (
        contextlib.closing(control_plane.session(limited)) as session,
        reflecting(session, DYNAMIC_SCORERS, recorder, synced=False) as reflector,
    ):
        wait_for(lambda: reflector.error, 5)
        assert f'User "system:serviceaccount:{namespace}:limited" cannot list resource "dynamicscorers"' in str(
            reflector.error
        )
        assert 'in API group "dynamic-scoring.open-cluster-management.io" at the cluster scope' in str(reflector.error)
        control_plane.set_rules(namespace, "limited", [list_only])
        wait_for(lambda: "cannot watch resource" in str(reflector.error), 15)
        control_plane.set_rules(namespace, "limited", [{**list_only, "verbs": ["list", "watch"]}])
        wait_for(lambda: reflector.error is None and reflector.synced.is_set(), 15)


def test_unknown_kind_is_an_error_and_deletes_nothing(control_plane: ControlPlane, session: Session) -> None:
    unknown_kind = Resource("example.org", "v1", "missing", "Missing")
    with reflecting(session, unknown_kind, Recorder(), synced=False) as reflector:
        wait_for(lambda: reflector.error, 5)
        assert "404" in str(reflector.error)
        assert not reflector.synced.is_set()


def test_reflector_survives_an_api_server_killed_under_load(control_plane: ControlPlane) -> None:
    plane, recorder = control_plane, Recorder()
    namespace = plane.namespace()
    session, writer = plane.session(), plane.session()
    finished = threading.Event()

    def churn() -> None:
        """Create and change objects and delete every third one; an outage only makes it wait."""
        for number in range(10_000):
            if finished.is_set():
                return
            path = CONFIG_MAPS.path(namespace, f"c{number}")
            with contextlib.suppress(BackendError):
                _create(writer, namespace, f"c{number}")
                writer.merge(path, {"data": {"value": "2"}})
                if number % 3 == 0:
                    writer.delete(path)
            finished.wait(0.02)

    thread = threading.Thread(target=churn)
    with reflecting(session, CONFIG_MAPS, recorder, namespace=namespace) as reflector:
        thread.start()
        wait_for(lambda: len(recorder.reports) > 30, 20)
        plane.kill_apiserver()
        plane.start_apiserver()
        reports = len(recorder.reports)
        wait_for(lambda: len(recorder.reports) > reports + 30, 30, "the watch to go on")
        finished.set()
        thread.join()
        wait_for(lambda: recorder.copy == on_server(session, CONFIG_MAPS, namespace), 10)
        copied_versions = {get_key(obj): get_version(obj) for obj in reflector.store.list()}
        assert copied_versions == recorder.copy
        deleted = recorder.names("deleted")
        assert len(deleted) == len(set(deleted)), "no deletion twice"
        assert reflector.error is None


def test_objects_deleted_during_an_outage_are_reported(control_plane: ControlPlane, session: Session) -> None:
    recorder, namespace = Recorder(), control_plane.namespace()
    for name in ("a", "b", "c"):
        _create(session, namespace, name)
    with (
        ApiServerRelay(control_plane) as relay,
        contextlib.closing(Session.load(relay.kubeconfig)) as lasting_session,
        reflecting(lasting_session, CONFIG_MAPS, recorder, namespace=namespace) as reflector,
    ):
        relay.cut()
        session.delete(CONFIG_MAPS.path(namespace, "b"))
        session.merge(CONFIG_MAPS.path(namespace, "c"), {"data": {"value": "2"}})
        _create(session, namespace, "d")
        # Deleted and created again: another object with the same name.
        session.delete(CONFIG_MAPS.path(namespace, "a"))
        _create(session, namespace, "a")
        # As after hours, when the server no longer has the changes since then.
        reflector._version = None
        relay.restore()
        wait_for(lambda: recorder.copy == on_server(session, CONFIG_MAPS, namespace), 40)
        assert recorder.names("deleted") == ["b"]
        assert sorted(recorder.names("changed")) == ["a", "c"]
        assert recorder.names("added")[3:] == ["d"]
        with pytest.raises(ObjectNotFoundError):
            session.get(CONFIG_MAPS.path(namespace, "b"))
        assert reflector.store.get((namespace, "b")) is None
