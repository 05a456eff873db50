"""The class of the three tasks: a message expires by the hub's clock."""

from __future__ import annotations

from datetime import UTC
from typing import Any, Literal

from celery import Task
from celery.worker.request import Request

from dsf.agent import runtime

# Its members are not all in the published types of Celery.
_Request: Any = Request


class StageRequest(_Request):  # type: ignore[misc]
    """A call of ours in the worker: it expires by the hub's clock, which is the one that wrote `expires`."""

    # Celery would look for it in its configuration; ours are of UTC.
    _tzlocal = UTC

    def revoked(self) -> bool:
        """As Celery's own, which asks twice for each and looks for more reasons. Called in any thread."""
        return (self._already_revoked or self.maybe_expire() is not None) and bool(super().revoked())

    def maybe_expire(self) -> Literal[True] | None:
        """As Celery's own, which looks at the agent's clock only, and keeps the id of each that has expired."""
        expires: Any = self._expires
        return True if expires and runtime.current().clock.now() > expires.timestamp() else None


class StageTask(Task):  # type: ignore[type-arg]
    """A task of this agent. The next stage is called by `Flow`, within this worker."""

    abstract = True
    Request = "dsf.agent.stagetask:StageRequest"
