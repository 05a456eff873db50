from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from pydantic import ValidationError

from dsf.api.meta import Condition, ObjectMeta, format_rfc3339, set_condition

EARLY = datetime(2026, 1, 1, tzinfo=UTC)
LATE = EARLY + timedelta(hours=1)


def condition(status: str = "True", *, kind: str = "Healthy", message: str = "", at: datetime = EARLY) -> Condition:
    return Condition(type=kind, status=status, reason="Checked", message=message, last_transition_time=at)


def test_rfc3339_is_utc_with_whole_seconds() -> None:
    moment = datetime(2026, 1, 1, 9, 30, 15, 999999, tzinfo=timezone(timedelta(hours=9)))
    assert format_rfc3339(moment) == "2026-01-01T00:30:15Z"


def test_new_condition_is_appended() -> None:
    other = condition(kind="Scoring")
    assert set_condition([other], condition()) == [other, condition()]


def test_unchanged_status_keeps_its_transition_time() -> None:
    assert set_condition([condition()], condition(message="new", at=LATE)) == [condition(message="new")]


def test_changed_condition_status_updates_its_time_in_position() -> None:
    other = condition(kind="Scoring")
    flipped = condition("False", at=LATE)
    assert set_condition([condition(), other], flipped) == [flipped, other]


def test_set_condition_leaves_its_input_alone() -> None:
    conditions = [condition()]
    set_condition(conditions, condition("False", at=LATE))
    assert conditions == [condition()]


def test_condition_is_written_as_a_manifest() -> None:
    assert condition(message="fine").to_manifest() == {
        "type": "Healthy",
        "status": "True",
        "reason": "Checked",
        "message": "fine",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }


def test_metadata_as_a_manifest_leaves_out_what_is_empty() -> None:
    meta = ObjectMeta(name="a", labels={"x": "y"}, creation_timestamp=EARLY)
    assert meta.to_manifest() == {"name": "a", "labels": {"x": "y"}, "creationTimestamp": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize("name", ["", "../x", "A", "a/b", "a" * 254])
def test_name_with_path_parts_is_refused(name: str) -> None:
    with pytest.raises(ValidationError):
        ObjectMeta(name=name)
    if name:
        with pytest.raises(ValidationError):
            ObjectMeta(name="a", namespace=name)
