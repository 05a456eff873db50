"""The deadline of a stage."""

from __future__ import annotations

import time
from typing import Any, cast

import pytest

from dsf.api.summary import ScorerSummary
from dsf.cycle.stages import Cycle, Stages
from dsf.errors import CycleError


def _stages() -> Stages:
    return Stages(cast("Any", None), cast("Any", None))


@pytest.mark.parametrize(("remaining_seconds", "timeout"), [(5.0, 60), (60.0, 5)])
def test_stage_deadline_is_the_earlier_of_timeout_and_cycle(remaining_seconds: float, timeout: int) -> None:
    began = time.monotonic()
    summary = ScorerSummary.model_construct(name="a", score_name="a", timeout_seconds=timeout)
    cycle = Cycle("a", "1", summary, began + remaining_seconds)
    with _stages()._run_stage(cycle, "fetch") as deadline:
        assert began + 5 <= deadline <= time.monotonic() + 5
    assert cycle.timings["fetch"] > 0


def test_missing_source_type_is_reported_before_credentials_are_fetched() -> None:
    summary = ScorerSummary.model_construct(
        name="a", source_type="nowhere.example/csv", source_endpoint_auth_name="secret"
    )
    cycle = Cycle("a", "1", summary, time.monotonic() + 60)
    with pytest.raises(CycleError, match=r"nowhere\.example/csv") as caught:
        _stages()._query_source(cycle, summary, cycle.deadline, 1)
    assert (caught.value.stage, caught.value.reason) == ("fetch", "unsupported_source")


def test_stage_does_not_start_after_its_cycle() -> None:
    cycle = Cycle("a", "1", ScorerSummary.model_construct(name="a"), time.monotonic())
    with pytest.raises(CycleError) as caught, _stages()._run_stage(cycle, "score"):
        raise AssertionError("it begins")
    assert (caught.value.stage, caught.value.reason) == ("score", "deadline")
