"""How a cycle begins, without Celery and Redis."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from dsf.agent.flow import Flow
from dsf.agent.metrics import AgentMetrics
from dsf.agent.running import DuplicateError
from dsf.api.scoring import Result
from dsf.api.summary import ScorerSummary
from dsf.cycle.cycle import Cycle
from dsf.errors import CycleError
from dsf.messages import new_run_id, run_time
from tests.unit.agent.test_metrics import Clock, Config, page, scorer

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


@pytest.mark.parametrize(("values", "validity"), [({}, 1800), ({"validity_seconds": 20}, 20)])
def test_own_series_last_as_long_as_the_hubs_score_at_the_interval_of_the_tick(
    values: dict[str, int], validity: int
) -> None:
    summary, clock = scorer("a", **values), Clock()
    config: Any = Config(summary)
    metrics, cycles = AgentMetrics("c", config, clock), Mock()
    run_id = new_run_id(HUB_NOW)
    cycle = Cycle("a", run_id, summary, time.monotonic() + 60)
    cycle.response = Mock(results=[Result({}, 1.0)])
    cycles.enter.return_value = cycle
    cycles.result.return_value = Mock(outcome="ok", timings={}, refused={})
    flow = Flow(Mock(), config, cycles, Mock(), metrics, Mock())
    # The scorer says 10 s, a person 10 minutes: the next tick is due when this one expires.
    request = SimpleNamespace(expires=datetime.fromtimestamp(HUB_NOW + 600, UTC))
    assert flow.publish(cast("Any", SimpleNamespace(request=request)), "a", run_id) == "ok"
    clock.time += validity - 1
    assert len(page(metrics)) == 1
    clock.time += 1
    assert page(metrics) == []
