"""Ticks, the only messages that an agent accepts from its queue. A tick has a scorer, a run id and a deadline.

Anyone with an agent's credential, or with the right to start tasks, may push anything into the queue. Therefore Celery
gets only these three arguments and the id, after validation. A chain, callbacks, times and all other content are
dropped. The task's strategy counts and drops calls of other tasks, and the transport counts and drops messages that are
not valid.

A tick expires by the hub's clock, which the agent measures (`dsf.process.hubclock`).
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable
from queue import Empty
from typing import Any, Final

from celery.worker import strategy
from kombu.transport import virtual

import dsf.log
from dsf.keys import is_name, run_member
from dsf.messages import is_run_id
from dsf.process import tracing
from dsf.redislink import broker
from dsf.settings import settings

log = dsf.log.get(__name__)

_ARGUMENT_NAMES: Final = ("scorer", "run_id", "deadline")
_TASK_ID_PATTERN: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.:@-]{0,99}")
#: Maximum bytes of a tick. A tick has about 150 bytes, or 200 with base64.
_MAX_BODY_BYTES: Final = 4096
#: Maximum deadline in unix seconds, in the year 5138.
_MAX_DEADLINE: Final = 1e11
#: Celery's fields for the tasks that follow. They are empty because only the worker decides what follows a tick.
_NO_CALLBACKS: Final = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}

_throttle = dsf.log.Throttle()
#: Called for each message that is refused. The agent counts them.
on_refused: list[Callable[[], object]] = []

#: Header with the scorer and the deadline of a tick, for `dsf.agent.fairqueue`.
TICK_HEADER: Final = "tick"
#: Header with the reason (CycleError) of a cycle that is skipped. Only the agent sets it, because `reduce_to_tick`
#: replaces all headers of a message.
REFUSAL: Final = "refusal"

Handler = Callable[..., Any]

# Kombu's published types lack the overridden members.
_Message: Any = virtual.Message
_Transport: Any = broker.Transport
_Channel: Any = broker.Channel

#: Errors after which the worker reconnects.
_CONNECTION_ERRORS: tuple[type[Exception], ...] = (Empty, *_Transport.connection_errors, *_Transport.channel_errors)


def accept(task: Any, app: Any, consumer: Any) -> Handler:
    """Return Celery's handler for messages of a task that ticks call. It refuses all other messages."""
    receive = strategy.default(task, app, consumer)

    def handle(message: Any, body: Any, ack: Any, reject: Any, callbacks: Any) -> Any:
        del body
        try:
            scorer, run_id, _ = reduce_to_tick(message, task.name)
            if run_id:
                message.headers |= tracing.make_headers(run_member(settings().cluster, scorer, run_id))
        except Exception as error:  # noqa: BLE001 (any error means that it is no tick)
            drop_message(error)
            return message.ack()
        return receive(message, None, ack, reject, callbacks)

    return handle


class _NoTickError(ValueError):
    """Raised for a message that is not a tick. Unlike kombu's errors, its text has no content of the message."""


def drop_call(message: Any, *_: Any) -> Any:
    """Drop a message that does not call the task of a cycle."""
    drop_message(_NoTickError("not a call of dsf.cycle"))
    return message.ack()


def drop_message(error: Exception) -> None:
    """Count and log a refused message, with a limited rate of log lines. The log has no content of the message."""
    for callback in on_refused:
        callback()
    cause = str(error) if isinstance(error, _NoTickError) else type(error).__name__
    if (not_logged := _throttle.take(cause)) is not None:
        log.warning("message refused", why=cause, not_logged=not_logged)


def reduce_to_tick(message: Any, task: str) -> tuple[Any, ...]:
    """Reduce a message to a call of `task` with the arguments of a tick, and return these arguments.

    Raises ValueError or another error if the message is not a tick.
    """
    if len(message.body) > _MAX_BODY_BYTES:
        raise _NoTickError("it is longer than a tick")
    args, kwargs, *_ = json.loads(message.body)
    task_arguments = tuple(parse_arguments(args, kwargs))
    task_id = message.headers.get("id")
    if not (isinstance(task_id, str) and _TASK_ID_PATTERN.fullmatch(task_id)):
        task_id = str(uuid.uuid4())
    message.body = json.dumps([task_arguments, {}, _NO_CALLBACKS])
    message.content_type, message.content_encoding = "application/json", "utf-8"
    message.headers = {
        "lang": "py",
        "task": task,
        "id": task_id,
        "root_id": task_id,
        # Flower and `celery inspect` show this text.
        "argsrepr": repr(task_arguments),
        "kwargsrepr": "{}",
        TICK_HEADER: [task_arguments[0], task_arguments[2]],
    }
    message.properties = {"correlation_id": task_id, "priority": 0}
    return task_arguments


def parse_arguments(args: list[Any], kwargs: dict[str, Any]) -> list[Any]:
    """Return scorer, run id and deadline of a call with positional or named arguments.

    For example, the positional arguments `["sample", null]` are the same as the named ones `{"scorer": "sample"}`.
    Raises ValueError, TypeError or AttributeError if they are not those of a tick.
    """
    positional_arguments = dict(zip(_ARGUMENT_NAMES, args, strict=False))
    if (
        len(args) > len(positional_arguments)
        or positional_arguments.keys() & kwargs.keys()
        or kwargs.keys() - set(_ARGUMENT_NAMES)
    ):
        raise _NoTickError("an argument that a tick does not have")
    scorer, run_id, deadline = map((positional_arguments | kwargs).get, _ARGUMENT_NAMES)
    if not (isinstance(scorer, str) and is_name(scorer)):
        raise _NoTickError("not the name of a scorer")
    if run_id is not None and not is_run_id(run_id):
        raise _NoTickError("not a run id")
    if deadline is not None and not (type(deadline) in (int, float) and 0 <= deadline < _MAX_DEADLINE):
        raise _NoTickError("not a time")
    return [scorer, run_id, deadline]


class Message(_Message):  # type: ignore[misc]
    """A call of a task. Raises an error for a message on which Celery's consumer would fail.

    The error is raised before the message counts as unacknowledged.
    """

    def __init__(self, payload: Any, *args: Any, **options: Any) -> None:
        parts = payload if isinstance(payload, dict) else {}
        headers, properties = parts.get("headers"), parts.get("properties")
        if not (isinstance(headers, dict) and isinstance(properties, dict) and isinstance(headers.get("task"), str)):
            raise _NoTickError("not a call of a task")
        # Each message gets a valid tag, because one that cannot be acknowledged would reduce the prefetch limit for
        # ever.
        properties |= {"delivery_tag": str(uuid.uuid4()), "delivery_info": {}}
        # The header is removed because kombu would decompress without a limit.
        headers.pop("compression", None)
        try:
            super().__init__(payload, *args, **options)
        except KeyError as error:
            # The error is replaced because kombu handles a KeyError like a lost connection.
            raise _NoTickError(f"a message without {error}") from None
        # Kombu stores some errors for Celery, which would log them with the message.
        if self.errors or not isinstance(self.body, bytes | str):
            raise _NoTickError("not a call of a task")


class TickChannel(_Channel):  # type: ignore[misc]
    """A channel that validates its messages."""

    Message = Message
    #: Ticks are never put back, because an agent has no right to write to its queue.
    do_restore = False


class TickTransport(_Transport):  # type: ignore[misc]
    """Redis transport that drops invalid messages instead of ending the worker.

    Kombu reads the parts of a message before Celery or a task can check them. An error there ends the worker's main
    loop (https://github.com/celery/celery/issues/7975), so anyone with the right to push into a queue could permanently
    stop its agent. Only public names of kombu are overridden.
    """

    Channel = TickChannel

    def on_readable(self, fileno: int) -> None:
        """Read from Redis, and drop a message that is not valid."""
        try:
            super().on_readable(fileno)
        except _CONNECTION_ERRORS:
            raise
        except Exception as error:  # noqa: BLE001 (any other error means that the message is not valid)
            drop_message(error)
