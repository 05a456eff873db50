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
