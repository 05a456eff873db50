"""Agents with an OTLP receiver, and senders; both are stopped after the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.integration.sources.senders import Agent, Make, Sdk, pushed


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes agents; by default of a scorer that wants what the SDK's tests measure."""
    made: list[Agent] = []

    def start(scorer: Any = None, **options: Any) -> Agent:
        made.append(Agent(scorer or pushed(), **options))
        return made[-1]

    yield start
    for agent in made:
        agent.memory.stop()


@pytest.fixture
def sdk() -> Iterator[Callable[..., Sdk]]:
    """Makes applications that push to the URL they are given."""
    made: list[Sdk] = []

    def start(*args: Any, **options: Any) -> Sdk:
        made.append(Sdk(*args, **options))
        return made[-1]

    yield start
    for one in made:
        one.close()
