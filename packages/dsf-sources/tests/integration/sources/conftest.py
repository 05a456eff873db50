"""Agents with an OTLP receiver, and senders; both are stopped after the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from .senders import Agent, Make, Sdk, pushed


@pytest.fixture
def make() -> Iterator[Make]:
    """Return a function that creates agents, by default with a scorer of the SDK's metrics."""
    agents: list[Agent] = []

    def start(scorer: Any = None, **options: Any) -> Agent:
        agents.append(Agent(scorer or pushed(), **options))
        return agents[-1]

    yield start
    for agent in agents:
        agent.memory.stop()


@pytest.fixture
def sdk() -> Iterator[Callable[..., Sdk]]:
    """Makes applications that push to the URL they are given."""
    sdks: list[Sdk] = []

    def start(*args: Any, **options: Any) -> Sdk:
        sdks.append(Sdk(*args, **options))
        return sdks[-1]

    yield start
    for running_sdk in sdks:
        running_sdk.close()
