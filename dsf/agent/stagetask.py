"""The class of the three tasks: hands on to the next stage with one cheap message."""

from __future__ import annotations

from typing import Any, Literal

import redis
from celery import Task
from celery.worker.request import Request
from celery.worker.state import revoked
from kombu.exceptions import OperationalError

from dsf.agent import runtime, wire

#: What Celery says of the next step of a chain. A call with anything else (a retry, an eta) goes Celery's own way.
_PLAIN = frozenset({"queue", "expires", "argsrepr", "chain", "root_id", "parent_id", "priority", "task_id"})


class StageRequest(Request):
    """A message of ours in the worker: it expires by the hub's clock, which is the one that wrote `expires`."""

    def maybe_expire(self) -> Literal[True] | None:
        """As Celery's own, which looks at the agent's clock only. Called in the worker's main loop."""
        expires: Any = self.expires
        if not expires or runtime.current().clock.now() <= expires.timestamp():
            return None
        revoked.add(self.id)
        return True


class StageTask(Task):  # type: ignore[type-arg]
    """A task of this agent. It is called through this agent's own queue, whatever queue the caller names."""

    abstract = True
    Request = "dsf.agent.stagetask:StageRequest"

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:  # type: ignore[override]
        """Call the task: when it is the next step of a chain, with a message of our own making.

        Raises kombu's OperationalError when Redis cannot be reached, which Celery tries again.
        """
        given = {name: value for name, value in options.items() if value is not None}
        expires = given.get("expires")
        if kwargs or not given.keys() <= _PLAIN or not isinstance(expires, str):
            return super().apply_async(args, kwargs, **options)
        agent = runtime.current()
        message = wire.call(
            self.name,
            tuple(args),
            agent.queue,
            argsrepr=given.get("argsrepr") or repr(tuple(args)),
            root_id=given.get("root_id"),
            parent_id=given.get("parent_id"),
            expires=expires,
            chain=given.get("chain"),
        )
        try:
            agent.redis.lpush(agent.queue, message)
        except redis.ConnectionError as error:
            raise OperationalError(str(error)) from error
        return None
