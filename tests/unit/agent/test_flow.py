"""How a cycle begins, without Celery and Redis."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from dsf.agent.flow import Flow
from dsf.agent.running import DuplicateError
from dsf.api.summary import ScorerSummary
from dsf.cycle.cycle import Cycle
from dsf.errors import CycleError
from dsf.messages import run_time

HUB_NOW = 1_800_000_000.5


class _Entered:
    """In the place of Cycles: which run was to begin."""

    run_id = ""

    def enter(self, run_id: str, *_: object) -> None:
        self.run_id = run_id
        raise DuplicateError


def test_a_fetch_by_hand_is_of_the_hubs_time() -> None:
    entered = _Entered()
    summary = ScorerSummary.model_construct(name="sample")
    unused: Any = None
    flow = Flow(
        unused,
        cast("Any", SimpleNamespace(get=lambda _: summary)),
        cast("Any", entered),
        unused,
        unused,
        unused,
        hub_time=lambda: HUB_NOW,
    )
    task: Any = SimpleNamespace(request=SimpleNamespace(expires=None, chain=None))
    assert flow.fetch(task, "sample", None) == "duplicate"
    assert run_time(entered.run_id) == HUB_NOW


@pytest.mark.parametrize("error", [SystemExit(1), ValueError("x")])
def test_a_cycle_is_reported_whatever_ends_its_stage(error: BaseException) -> None:
    summary = ScorerSummary.model_construct(name="sample", score_name="sample")
    cycles, outbox, unused = Mock(), Mock(), Mock()
    cycles.enter.return_value = Cycle("sample", "run", summary, time.monotonic() + 60)
    cycles.fetch.side_effect = error
    flow = Flow(unused, Mock(get=lambda _: summary), cycles, outbox, Mock(), unused)
    with pytest.raises(CycleError):
        flow.fetch(cast("Any", SimpleNamespace(request=SimpleNamespace(expires=None))), "sample", "run")
    assert cycles.ended.call_args.args[2:4] == ("error", "internal_error")
    outbox.send.assert_called_once()
    cycles.leave.assert_called_once_with("sample", "run")
