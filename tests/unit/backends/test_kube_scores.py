"""Writes of AddOnPlacementScores that the API server accepts and changes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from dsf.api.score import make_score_body, make_score_status
from dsf.backends.kube_scores import KubeScores
from dsf.backends.scorestate import read_score_state
from dsf.errors import BackendError
from dsf.kube.session import Session

NOW = datetime(2026, 11, 21, 9, 0, tzinfo=UTC)
STATUS = make_score_status([("a", 10), ("b", -20)], valid_until=NOW, now=NOW)


class ChangingServer:
    """Responds like an API server whose mutating webhook changes each status."""

    def __init__(self, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        self._change = change

    def create(self, path: str, manifest: dict[str, Any], *, field_manager: str) -> dict[str, Any]:
        return {**manifest, "metadata": {**manifest["metadata"], "uid": "1", "resourceVersion": "1"}}

    def replace_field(self, path: str, field: str, value: dict[str, Any], **options: object) -> dict[str, Any]:
        manifest = self.create(path, make_score_body("c1", "s", "s"), field_manager="")
        return {**manifest, "status": self._change(value)}


def _apply(change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    backend = KubeScores(cast("Session", ChangingServer(change)), lambda key: None, lambda obj: None)
    backend.apply_score(make_score_body("c1", "s", "s"), STATUS)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda status: {}, "scores"),
        (lambda status: {**status, "scores": []}, "scores"),
        (lambda status: {**status, "scores": None}, "scores"),
        (lambda status: {**status, "scores": [{"name": "a", "value": 10}, {"name": "b", "value": 0}]}, "scores"),
        (lambda status: {**status, "scores": status["scores"][:1]}, "scores"),
        (lambda status: {name: value for name, value in status.items() if name != "validUntil"}, "validUntil"),
        (lambda status: {**status, "validUntil": "2020-01-01T00:00:00Z"}, "validUntil"),
    ],
)
def test_status_that_the_api_server_changes_is_an_error(
    change: Callable[[dict[str, Any]], dict[str, Any]], field: str
) -> None:
    """Otherwise the score counts as written and is not there."""
    with pytest.raises(BackendError, match=f"with other {field}: a mutating webhook or an older CRD"):
        _apply(change)


@pytest.mark.parametrize(
    "change",
    [
        lambda status: status,
        lambda status: {**status, "conditions": []},
        lambda status: {**status, "validUntil": "2026-11-21T09:00:00+00:00"},
        lambda status: {**status, "scores": [{**item, "name": f"{item['name']}\ufffd"} for item in status["scores"]]},
    ],
)
def test_status_with_the_same_meaning_is_written(change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    _apply(change)


def test_status_without_scores_is_written() -> None:
    """The API server leaves out an empty list."""
    backend = KubeScores(
        cast("Session", ChangingServer(lambda status: {"validUntil": status["validUntil"]})),
        lambda key: None,
        lambda obj: None,
    )
    backend.apply_score(make_score_body("c1", "s", "s"), make_score_status([], valid_until=NOW, now=NOW))


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59-12:00", "10000-01-01T00:00:00Z", None])
def test_time_outside_of_the_calendar_counts_as_missing(time: str | None) -> None:
    """Anybody with the right to write scores can write any time into an object with the framework's label."""
    conditions = [{"type": "x", "lastTransitionTime": time}]
    forged = {"metadata": {"uid": "u"}, "status": {"validUntil": time, "conditions": conditions}}
    state = read_score_state(forged, written_at=0.0)
    assert (state.valid_until, state.condition_changed_at) == (0.0, 0.0)
