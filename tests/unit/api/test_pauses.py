"""The bound for the end of a pause is the same in manifests, commands and Redis."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from dsf.api.meta import LATEST, limit_pause_end
from dsf.api.types import PAUSED_UNTIL_ANNOTATION
from dsf.cli import duration
from dsf.store.client import parse_stored
from dsf.store.entries import Entry, ScheduleOverride
from dsf.web import actions
from tests.unit.hub.builders import scorer


def from_annotation(text: str) -> float | None:
    from dsf.api.resolve import resolve

    return resolve(scorer(metadata={"annotations": {PAUSED_UNTIL_ANNOTATION: text}})).paused_until


def from_store(text: str) -> float | None:
    entry = parse_stored(
        ScheduleOverride, "c1/s", f'{{"paused": true, "paused_until": {datetime.fromisoformat(text).timestamp()}}}'
    )
    return entry.paused_until if entry is not None else None


@pytest.mark.parametrize("read_end", [from_annotation, actions.parse_pause_end, duration.parse_pause_end, from_store])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2999-01-01T00:00:00Z", datetime(2999, 1, 1, tzinfo=UTC).timestamp()),
        ("9999-12-31T00:00:00Z", LATEST),
        ("9999-12-31T23:59:59-12:00", LATEST),
    ],
)
def test_all_forms_of_a_pause_have_the_same_limit(
    read_end: Callable[[str], float | None], text: str, expected: float
) -> None:
    assert read_end(text) == expected


def test_pause_end_is_bounded_and_nan_is_refused() -> None:
    assert limit_pause_end(float("inf")) == LATEST
    assert datetime.fromtimestamp(limit_pause_end(1e300), UTC).year == 9999
    with pytest.raises(ValueError, match="no time"):
        limit_pause_end(float("nan"))


def test_pause_end_read_from_redis_is_bounded() -> None:
    entry = parse_stored(
        Entry,
        "c1/s",
        '{"cluster":"c1","scorer":"s","score_name":"s","interval":5,"suspended":true,"suspended_until":1e300}',
    )
    assert entry is not None
    assert entry.suspended_until == LATEST > time.time()
