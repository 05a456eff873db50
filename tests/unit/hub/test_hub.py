"""The hub before its first plan."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from dsf.backends.protocol import Backend, Kind, ObjectKey
from dsf.hub.hub import Hub
from dsf.settings import Settings


@pytest.mark.parametrize("kind", [Kind.CLUSTER, Kind.SCORE, Kind.SCORER])
def test_before_the_first_plan_nothing_is_gone(kind: Kind) -> None:
    """A backend tells of what is there when it starts: nothing of it is read or removed until there is a plan."""
    backend = Mock(spec=Backend)
    hub = Hub(Settings(backend="dir"), backend)
    assert hub._reconcile(ObjectKey(kind, "some", "name")) is None
    assert backend.mock_calls == []


def test_a_cluster_whose_notice_is_lost_is_looked_at_in_the_next_round() -> None:
    hub = Hub(Settings(backend="dir"), Mock(spec=Backend, **{"keys.return_value": []}))
    plan = Mock(clusters={"a": "", "b": ""})
    hub._desired = Mock(**{"update.return_value": plan})
    hub._credentials = Mock(
        **{"have_changed.return_value": False, "read_requests.return_value": set(), "sync.return_value": set()}
    )
    hub._scores = Mock(**{"orphans.return_value": []})
    hub._changes = Mock()
    hub._registrar = Mock(**{"refresh.return_value": set(), "known_clusters.return_value": {"a", "b"}})
    hub._registrar.notices.keep.return_value = {"b"}
    hub._look_around(0.0, everything=False)
    assert hub._clusters.queue.get() == ObjectKey(Kind.CLUSTER, "", "b")
    assert len(hub._clusters.queue) == 0
