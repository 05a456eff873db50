"""The class of the three tasks: a message expires by the hub's clock."""

from __future__ import annotations

from datetime import UTC
from typing import Any, Literal

from celery import Task
from celery.worker import state
from celery.worker.request import Request

from dsf.agent import runtime

# Its members are not all in the published types of Celery.
_Request: Any = Request


class StageRequest(_Request):  # type: ignore[misc]
    """A call of ours in the worker: it expires by the hub's clock, which is the one that wrote `expires`."""

    # Celery would look for it in its configuration; ours are of UTC.
    _tzlocal = UTC

    def revoked(self) -> bool:
        """As Celery's own, which asks twice for each and looks for more reasons."""
        if self.maybe_expire() or self._already_revoked or self.id in state.revoked:
            return bool(super().revoked())
        return False

    def maybe_expire(self) -> Literal[True] | None:
        """As Celery's own, which looks at the agent's clock only. Called in the worker's main loop."""
        expires: Any = self._expires
        if not expires or runtime.current().clock.now() <= expires.timestamp():
            return None
        state.revoked.add(self.id)
        return True


class StageTask(Task):  # type: ignore[type-arg]
    """A task of this agent. The next stage is called by `Flow`, within this worker."""

    abstract = True
    Request = "dsf.agent.stagetask:StageRequest"
