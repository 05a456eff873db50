"""Fixtures of the tests in this folder."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from dsf.settings import Settings
from tests.integration.backends.hub import Hub
from tests.support.controlplane import ControlPlane


@pytest.fixture
def start_hub(control_plane: ControlPlane, settings_factory: Callable[..., Settings]) -> Iterator[Callable[..., Hub]]:
    with contextlib.ExitStack() as stack:

        def start(**values: object) -> Hub:
            values.setdefault("namespace", control_plane.namespace("hub"))
            settings = settings_factory(backend="kube", **values)
            hub = Hub(control_plane, settings)
            stack.callback(hub.backend.stop)
            hub.backend.start(hub.on_change)
            return hub

        yield start


@pytest.fixture
def hub(start_hub: Callable[..., Hub]) -> Hub:
    return start_hub()
