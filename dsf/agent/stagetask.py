"""The class of the three tasks: hands on to the next stage with one cheap message."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any, Literal

import redis
from celery import Task
from celery.worker import state
from celery.worker.request import Request
from kombu.exceptions import OperationalError

import dsf.log
from dsf.agent import runtime, wire

log = dsf.log.get(__name__)

#: Seconds between two tries to hand on while Redis is away; the client itself tries for a short while.
_WAIT = 1.0
#: Seconds between two looks, meanwhile, whether the agent is to end.
_LOOK = 0.1
#: What Celery says of the next step of a chain. A call with anything else (a retry, an eta) goes Celery's own way.
_PLAIN = frozenset({"queue", "expires", "argsrepr", "chain", "root_id", "parent_id", "priority", "task_id"})


class StageRequest(Request):
    """A message of ours in the worker: it expires by the hub's clock, which is the one that wrote `expires`."""

    def maybe_expire(self) -> Literal[True] | None:
        """As Celery's own, which looks at the agent's clock only. Called in the worker's main loop."""
        expires: Any = self.expires
        if not expires or runtime.current().clock.now() <= expires.timestamp():
            return None
        state.revoked.add(self.id)
        return True


class StageTask(Task):  # type: ignore[type-arg]
    """A task of this agent. It is called through this agent's own queue, whatever queue the caller names."""

    abstract = True
    Request = "dsf.agent.stagetask:StageRequest"

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:  # type: ignore[override]
        """Call the task: when it is the next step of a chain, with a message of our own making.

        Celery does this in the thread of the stage that has just ended, which may wait: while Redis is away, refuses
        writes or has no memory left, it is tried again until the message would expire or the agent is to end.
        Raises kombu's OperationalError then; Celery takes that as the failure of the stage that hands on.
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
        _push(agent, message, _seconds_left(agent, tuple(args), expires))
        return None


def _push(agent: runtime.Runtime, message: bytes, seconds: float) -> None:
    """Put a message into the agent's own queue, for so many seconds at most. Raises OperationalError."""
    end = time.monotonic() + seconds
    is_said = False
    while True:
        try:
            agent.redis.lpush(agent.queue, message)
        except redis.RedisError as error:
            if time.monotonic() + _WAIT >= end:
                raise OperationalError(f"tried until it would have expired: {error}") from error
            if not is_said:
                is_said = True
                log.warning("next stage waits for Redis", error=str(error), seconds=round(seconds, 1))
            if _is_ended_within(_WAIT):
                raise OperationalError(f"tried until the agent was told to end: {error}") from error
        else:
            return


def _is_ended_within(seconds: float) -> bool:
    """Wait so long, or until the worker has been told to end (it was when this says True)."""
    end = time.monotonic() + seconds
    while not _is_ending():
        if time.monotonic() >= end:
            return False
        time.sleep(_LOOK)
    return True


def _is_ending() -> bool:
    # An exit code once it is to end, and 0 is one. Looked at, not waited for: a signal handler sets it.
    codes: list[Any] = [state.should_stop, state.should_terminate]
    return any(code is not None and code is not False for code in codes)


def _seconds_left(agent: runtime.Runtime, args: tuple[Any, ...], expires: str) -> float:
    """For how long the next stage is of use: until its message expires, and no longer than its run may last."""
    try:
        left = datetime.fromisoformat(expires).timestamp() - agent.clock.now()
    except (ValueError, OverflowError):
        left = 0.0
    return min(left, agent.cycles.seconds_left(str(args[0])) if args else 0.0)
