"""The class of the three tasks: a message expires by the hub's clock."""

from __future__ import annotations

from datetime import UTC
from typing import Any, Literal

from celery import Task
from celery.worker.request import Request

from dsf.agent import runtime

# Some members are missing in Celery's type stubs.
_Request: Any = Request


class StageRequest(_Request):  # type: ignore[misc]
    """A stage call in the worker: it expires by the hub's clock, by which `expires` was set."""

    # Celery would look it up in its configuration; stage calls use UTC.
    _tzlocal = UTC

    def revoked(self) -> bool:
        """Like Celery's, which asks twice per task and checks more reasons. Called in any thread."""
        return (self._already_revoked or self.maybe_expire() is not None) and bool(super().revoked())

    def maybe_expire(self) -> Literal[True] | None:
        """Like Celery's, which uses the agent's clock only and keeps the id of each expired task."""
        expires: Any = self._expires
        return True if expires and runtime.current().clock.now() > expires.timestamp() else None


class StageTask(Task):  # type: ignore[type-arg]
    """A task of this agent. `Flow` calls the next stage, within this worker."""

    abstract = True
    Request = "dsf.agent.stagetask:StageRequest"
