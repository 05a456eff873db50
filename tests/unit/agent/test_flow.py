"""How a cycle begins, without Celery and Redis."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from dsf.agent.flow import Flow
from dsf.agent.running import DuplicateError
from dsf.api.summary import ScorerSummary
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
