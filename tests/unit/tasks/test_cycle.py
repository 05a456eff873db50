"""The tasks that a message may start."""

from __future__ import annotations

from unittest import mock

import pytest
from kombu.utils.imports import symbol_by_name

from dsf.agent import ticks
from dsf.agent.main import AgentStep
from dsf.messages import CYCLE_TASK, STAGE_TASKS
from dsf.tasks.cycle import cycle


@pytest.mark.parametrize("name", [*STAGE_TASKS, "celery.chain", "made.up"])
def test_no_message_starts_anything_else(name: str) -> None:
    strategies = dict.fromkeys([CYCLE_TASK, *STAGE_TASKS], mock.sentinel.celerys)
    consumer = mock.Mock(strategies=strategies)
    AgentStep(consumer, mock.Mock()).start(consumer)
    assert consumer.strategies[name] is ticks.drop_call
    assert consumer.strategies[CYCLE_TASK] is mock.sentinel.celerys


def test_message_starts_a_cycle() -> None:
    assert symbol_by_name(cycle.Strategy) is ticks.accept
