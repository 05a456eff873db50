"""Boot steps of Celery's worker: they attach the agent's objects to each connection to Redis."""

from __future__ import annotations

import sys
from typing import Any

from celery import bootsteps
from kombu.common import ignore_errors

from dsf.agent import runtime, ticks


class _Strategies(dict[str, Any]):
    """What becomes of a message, by its task's name; for names that are no task of ours, too."""

    def __missing__(self, name: str) -> Any:
        return ticks.refuse_message


class StartedByUs(bootsteps.Step):
    """Refuses a worker that `celery worker` starts: it would have neither configuration nor key."""

    def __init__(self, worker: Any, **options: Any) -> None:
        super().__init__(worker, **options)
        if not runtime.is_installed():
            sys.exit("an agent is started with `dsf agent`, which does what `celery worker` does, with its settings")


class AgentStep(bootsteps.StartStopStep):
    """Ticks are taken while it is started."""

    requires = ("celery.worker.consumer.tasks:Tasks", "dsf.worker.events:GatheredEvents")

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        self._look: Any = None

    def start(self, consumer: Any) -> None:
        """New connection: the worker takes ticks."""
        agent = runtime.current()
        consumer.strategies = _Strategies(consumer.strategies)
        # For removed scorers, each second.
        self._look = consumer.timer.call_repeatedly(1.0, agent.look)
        agent.readiness.consuming(True)

    def stop(self, consumer: Any) -> None:
        """Shutdown or lost connection. Running cycles are finished; no new one begins."""
        agent = runtime.current()
        agent.readiness.consuming(False)
        if self._look is not None:
            self._look.cancel()
            self._look = None
        if agent.ending.is_set() and consumer.task_consumer is not None:
            # Waits for the answer to the last pop: a tick in it still runs. Later ones stay in the queue.
            ignore_errors(consumer, consumer.task_consumer.channel.close)
