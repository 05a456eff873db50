"""The hub before its first plan, and the events that it treats as changes."""

from __future__ import annotations

from unittest.mock import Mock, call

import pytest
import redis

from dsf.backends.kube import KubeBackend
from dsf.backends.protocol import Backend, Kind, Manifest, ObjectKey
from dsf.errors import BackendError
from dsf.hub.hub import Hub
from dsf.kube.session import Session
from dsf.settings import Settings
from dsf.store import server
from tests.unit.hub.objects import Objects


@pytest.mark.parametrize("kind", [Kind.CLUSTER, Kind.SCORE, Kind.SCORER])
def test_hub_reconciles_no_key_before_the_first_plan(kind: Kind) -> None:
    """The backend reports objects at its start; the hub neither reads nor removes them before the first plan."""
    backend = Mock(spec=Backend)
    hub = Hub(Settings(backend="dir"), backend)
    assert hub._reconcile(ObjectKey(kind, "some", "name")) is None
    assert backend.mock_calls == []


def test_cluster_with_a_lost_notice_is_reconciled_in_the_next_round() -> None:
    hub = Hub(Settings(backend="dir"), Mock(spec=Backend, **{"list_keys.return_value": []}))
    plan = Mock(clusters={"a": "", "b": ""})
    hub._desired = Mock(**{"update.return_value": plan})
    hub._credentials = Mock(
        **{"have_changed.return_value": False, "read_requests.return_value": set(), "sync.return_value": set()}
    )
    hub._change_notifier = Mock()
    hub._registrar = Mock(**{"refresh.return_value": set(), "list_known_clusters.return_value": {"a", "b"}})
    hub._registrar.notices.remove_others.return_value = {"b"}
    hub._resync(0.0, is_full=False)
    assert hub._cluster_controller.queue.get() == ObjectKey(Kind.CLUSTER, "", "b")
    assert len(hub._cluster_controller.queue) == 0


def test_cluster_with_a_failed_run_is_reconciled_in_the_next_round(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(Settings(backend="dir"), Objects().backend)
    hub._desired.update()
    key = ObjectKey(Kind.CLUSTER, "", "a")
    monkeypatch.setattr(hub._cluster_reconciler, "_handle_departure", Mock(side_effect=[BackendError("not now"), None]))
    monkeypatch.setattr(hub, "_registrar", Mock(**{"refresh.side_effect": redis.ResponseError}))
    with pytest.raises(BackendError):
        hub._reconcile(key)
    for expected_keys in (1, 0):
        with pytest.raises(redis.ResponseError):
            hub._resync(0.0, is_full=False)
        assert len(hub._cluster_controller.queue) == expected_keys
        if expected_keys:
            assert hub._cluster_controller.queue.get() == key
            hub._reconcile(key)
            hub._cluster_controller.queue.done(key)


def test_older_crds_are_reported_at_a_full_resync() -> None:
    backend = Objects()
    hub = Hub(Settings(backend="dir"), backend.backend)
    hub._redis_watch = Mock()
    hub._registrar = Mock(**{"refresh.side_effect": redis.ResponseError})
    backend.describe_missing_fields = lambda: "they lack a field"  # type: ignore[method-assign]
    for is_full in (False, True):
        with pytest.raises(redis.ResponseError):
            hub._resync(0.0, is_full=is_full)
    assert hub._redis_watch.report.mock_calls == [call(server.CRDS, "they lack a field")]


def test_scorers_of_one_namespace_leave_workers_for_the_hubs_own() -> None:
    hub = Hub(Settings(backend="kube", namespace="hub", scorer_namespaces=["tenant"]), Mock(spec=Backend))
    queue = hub._scorer_controller.queue
    for number in range(2000):
        queue.add(ObjectKey(Kind.SCORER, "tenant", f"s{number}"))
    workers = len(hub._scorer_controller._threads)
    taken_keys = [queue.get() for _ in range(workers // 2)]
    queue.add(ObjectKey(Kind.SCORER, "hub", "mine"))
    taken_keys.append(queue.get())
    namespaces = [key.namespace for key in taken_keys if key is not None]
    assert namespaces == ["tenant"] * (workers // 2) + ["hub"]


def test_failed_full_resync_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(Settings(backend="dir", hub_resync=0.01), Mock(spec=Backend))
    rounds: list[bool] = []

    def resync_round(_: float, *, is_full: bool) -> None:
        rounds.append(is_full)
        if len(rounds) <= 2:
            raise BackendError("not now")
        hub._is_stopping = len(rounds) == 4

    monkeypatch.setattr(hub, "_resync", resync_round)
    hub._resync_requested.set()
    hub._resync_forever()
    assert rounds == [True, True, True, False]


def _scorer(version: int, generation: int, health: str) -> Manifest:
    metadata = {"namespace": "n", "name": "s", "uid": "1", "resourceVersion": str(version), "generation": generation}
    return {"metadata": metadata, "spec": {"description": str(generation)}, "status": {"healthStatus": health}}


def test_edit_is_a_change_even_if_a_status_write_returned_it_first(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(backend="kube")
    backend = KubeBackend(Mock(spec=Session), settings)
    hub = Hub(settings, backend)
    changed = Mock()
    monkeypatch.setattr(hub._desired, "record_changes", changed)
    backend._on_change = hub._on_change
    reflector = backend._reflectors[Kind.SCORER, ""]

    def changes_after_event(version: int, generation: int, health: str) -> int:
        changed.reset_mock()
        reflector._apply_event("MODIFIED", _scorer(version, generation, health))
        return changed.call_count

    assert changes_after_event(100, 1, "Active") == 1
    # A change of the health of the same object.
    hub._health._on_change(ObjectKey(Kind.SCORER, "n", "s"))
    assert changed.call_count == 2
    reflector.observe(_scorer(102, 2, "Inactive"))
    # The edit counts once; changes of the status alone do not count.
    assert [
        changes_after_event(101, 2, "Active"),
        changes_after_event(102, 2, "Inactive"),
        changes_after_event(103, 2, "Active"),
    ] == [1, 0, 0]
    # The observed status write has already happened.
    reflector.observe(_scorer(104, 3, "Active"))
    assert changes_after_event(104, 3, "Active") == 1
    changed.reset_mock()
    reflector._apply_event("DELETED", _scorer(105, 3, "Active"))
    assert changed.call_count == 1
