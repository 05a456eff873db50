"""Messages that this cluster's queue may have: score this scorer, in this run, until then.

Any holder of an agent's credential, or of a right to start tasks, may push anything there. Therefore Celery gets only
these three arguments and the id, each checked; a chain, callbacks, times and everything else in the message is dropped.
Messages that are no tick are counted and dropped, by the task's strategy or, if it is no message at all, by the
transport.

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

_NAMES: Final = ("scorer", "run_id", "deadline")
_ID: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.:@-]{0,99}")
#: The worker itself decides what follows a tick.
_NOTHING_FOLLOWS: Final = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}

_throttle = dsf.log.Throttle()
#: Called for each message that is refused; the agent counts them.
on_refused: list[Callable[[], object]] = []

#: Header of a call of a cycle that has its scorer and its deadline, for `dsf.agent.turns`.
TICK_HEADER: Final = "tick"
#: Header of a call of a cycle that is skipped, with the reason (CycleError). The agent sets it; messages cannot, as
#: their headers are made anew.
REFUSAL: Final = "refusal"

Handler = Callable[..., Any]

# Kombu's published types lack the overridden members.
_Message: Any = virtual.Message
_Transport: Any = broker.Transport
_Channel: Any = broker.Channel

#: Errors after which the worker reconnects.
_LOST: tuple[type[Exception], ...] = (Empty, *_Transport.connection_errors, *_Transport.channel_errors)


def accept(task: Any, app: Any, consumer: Any) -> Handler:
    """Celery's strategy for a task that ticks call."""
    receive = strategy.default(task, app, consumer)

    def handle(message: Any, body: Any, ack: Any, reject: Any, callbacks: Any) -> Any:
        del body
        try:
            scorer, run_id, _ = reduce(message, task.name)
            if run_id:
                message.headers |= tracing.headers(run_member(settings().cluster, scorer, run_id))
        except Exception as error:  # noqa: BLE001 (any error means that it is no tick)
            refuse(error)
            return message.ack()
        return receive(message, None, ack, reject, callbacks)

    return handle


class _NoTickError(ValueError):
    """A message is no tick. The text has nothing of the message, unlike the text of kombu's errors."""


def refuse_message(message: Any, *_: Any) -> Any:
    """Drop a call of another task, or of none."""
    refuse(_NoTickError("not a call of dsf.cycle"))
    return message.ack()


def refuse(error: Exception) -> None:
    """Count a message, and log it now and then. The log has nothing of the message's content."""
    for call in on_refused:
        call()
    why = str(error) if isinstance(error, _NoTickError) else type(error).__name__
    if (not_logged := _throttle.take(why)) is not None:
        log.warning("message refused", why=why, not_logged=not_logged)


def reduce(message: Any, task: str) -> tuple[Any, ...]:
    """Leave only the tick in a message, and make it a call of `task`; returns its arguments.

    Raises ValueError and others if it is none."""
    # Bytes; that of a tick has 150, with base64 200.
    if len(message.body) > 4096:
        raise _NoTickError("it is longer than a tick")
    args, kwargs, *_ = json.loads(message.body)
    task_arguments = tuple(arguments(args, kwargs))
    task_id = message.headers.get("id")
    if not (isinstance(task_id, str) and _ID.fullmatch(task_id)):
        task_id = str(uuid.uuid4())
    message.body = json.dumps([task_arguments, {}, _NOTHING_FOLLOWS])
    message.content_type, message.content_encoding = "application/json", "utf-8"
    message.headers = {
        "lang": "py",
        "task": task,
        "id": task_id,
        "root_id": task_id,
        # Shown by Flower and `inspect`.
        "argsrepr": repr(task_arguments),
        "kwargsrepr": "{}",
        TICK_HEADER: [task_arguments[0], task_arguments[2]],
    }
    message.properties = {"correlation_id": task_id, "priority": 0}
    return task_arguments


def arguments(args: list[Any], kwargs: dict[str, Any]) -> list[Any]:
    """Scorer, run id and deadline, positional or named: `["sample", null]` is `{"scorer": "sample"}`.

    Raises ValueError, TypeError and AttributeError.
    """
    positional = dict(zip(_NAMES, args, strict=False))
    if len(args) > len(positional) or positional.keys() & kwargs.keys() or kwargs.keys() - set(_NAMES):
        raise _NoTickError("an argument that a tick does not have")
    scorer, run_id, deadline = map((positional | kwargs).get, _NAMES)
    if not (isinstance(scorer, str) and is_name(scorer)):
        raise _NoTickError("not the name of a scorer")
    if run_id is not None and not is_run_id(run_id):
        raise _NoTickError("not a run id")
    # 1e11 is the year 5138.
    if deadline is not None and not (type(deadline) in (int, float) and 0 <= deadline < 1e11):
        raise _NoTickError("not a time")
    return [scorer, run_id, deadline]


class Message(_Message):  # type: ignore[misc]
    """A call of a task. A message on which Celery's consumer would fail is an error here, before it counts as
    unacknowledged."""

    def __init__(self, payload: Any, *args: Any, **options: Any) -> None:
        parts = payload if isinstance(payload, dict) else {}
        headers, properties = parts.get("headers"), parts.get("properties")
        if not (isinstance(headers, dict) and isinstance(properties, dict) and isinstance(headers.get("task"), str)):
            raise _NoTickError("not a call of a task")
        # A message that cannot be acknowledged would take the place of a tick for ever.
        properties |= {"delivery_tag": str(uuid.uuid4()), "delivery_info": {}}
        # Kombu would decompress without a limit.
        headers.pop("compression", None)
        try:
            super().__init__(payload, *args, **options)
        except KeyError as error:
            # Kombu takes a KeyError for a lost connection.
            raise _NoTickError(f"a message without {error}") from None
        # Kombu keeps some errors for Celery, which logs them with the message.
        if self.errors or not isinstance(self.body, bytes | str):
            raise _NoTickError("not a call of a task")


class TickChannel(_Channel):  # type: ignore[misc]
    """A channel with these messages."""

    Message = Message
    #: A tick that was taken is never put back: an agent has no right to write to its queue.
    do_restore = False


class TickTransport(_Transport):  # type: ignore[misc]
    """Redis, for a worker that nothing in its queue may end.

    Kombu reads a message's parts before Celery or a task can check them, and lets what fails there end the worker's
    main loop (https://github.com/celery/celery/issues/7975): anybody who may push into a queue could stop its agent for
    good. Only public names of kombu are overridden.
    """

    Channel = TickChannel

    def on_readable(self, fileno: int) -> None:
        """Something came from Redis: what is no message is dropped."""
        try:
            super().on_readable(fileno)
        except _LOST:
            raise
        except Exception as error:  # noqa: BLE001 (whatever it is, it is no message)
            refuse(error)
