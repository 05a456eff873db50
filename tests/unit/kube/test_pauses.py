"""The pauses of a reflector between two attempts."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from dsf.errors import BackendError
from dsf.kube.reflector import Reflector
from dsf.kube.resources import CONFIG_MAPS
from dsf.kube.session import ApiServerError, ForbiddenError, Session, UnreachableError


@pytest.fixture
def reflector() -> Reflector:
    """Return a reflector that is not started."""
    return Reflector(Mock(spec=Session), CONFIG_MAPS, lambda *_: None)


def _pauses(reflector: Reflector, error: BackendError, number: int) -> list[float]:
    return [reflector._compute_pause_after(error) for _ in range(number)]


def test_first_retry_is_quick_and_pauses_grow(reflector: Reflector) -> None:
    first, second, *_, last = _pauses(reflector, ForbiddenError("no", 403), 20)
    assert first <= 0.2
    assert 0.4 <= second <= 1.2
    assert 15 <= last <= 45


def test_unreachable_server_is_retried_every_few_seconds(reflector: Reflector) -> None:
    assert max(_pauses(reflector, UnreachableError("refused"), 50)) <= 4.8


def test_recovered_server_is_retried_without_the_earlier_backoff(reflector: Reflector) -> None:
    _pauses(reflector, UnreachableError("refused"), 50)
    # The API server is still loading its storage.
    first, *_, last = _pauses(reflector, ApiServerError("initializing", 429), 20)
    assert first <= 1.2
    assert last >= 15, "but it is not asked for ever at this pace"


def test_retry_after_is_the_minimum_pause(reflector: Reflector) -> None:
    assert 7 <= reflector._compute_pause_after(ApiServerError("busy", 429, 7.0)) <= 8.4


def test_excessive_retry_after_is_limited_to_a_minute(reflector: Reflector) -> None:
    assert 60 <= reflector._compute_pause_after(ApiServerError("maintenance", 503, 3600.0)) <= 72
    assert reflector._compute_pause_after(ApiServerError("nonsense", 503, 1e10)) <= 72, (
        "more than a thread can wait for"
    )
