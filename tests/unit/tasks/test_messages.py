"""What a message may start."""

from __future__ import annotations

from typing import Any

import pytest
from kombu.utils.imports import symbol_by_name

from dsf.agent import ticks
from dsf.tasks.cycle import cycle, fetch, publish, score
from dsf.tasks.ingest import ingest


@pytest.mark.parametrize("stage", [fetch, score, publish])
def test_no_message_starts_a_stage(stage: Any) -> None:
    assert symbol_by_name(stage.Strategy)(stage, None, None) is ticks.refuse_message


def test_a_message_starts_a_cycle() -> None:
    assert symbol_by_name(cycle.Strategy) is ticks.accept


@pytest.mark.parametrize("batch", [None, {}, [{"cluster": "c1"}], "text"])
def test_no_message_brings_results(batch: object) -> None:
    with pytest.raises(TypeError, match="no message can bring one"):
        ingest.run(batch)
