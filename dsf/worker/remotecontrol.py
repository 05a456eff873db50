"""Celery's remote control: `celery -A dsf.celery status`, `inspect ...` and `control ...`, for people on the hub.

Commands and their handlers are Celery's. The way there is not: kombu's needs the right to fill lists and sets in Redis,
for replies and bindings, which one stolen credential could use to fill Redis. Here a command is published on a channel
that agents may only read, and each worker publishes its reply on a channel of its own. Redis stores nothing. Commands
that only ask have a channel of their own: Flower may send nothing else.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
import uuid
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import redis
from celery import bootsteps
from celery.app.control import Control
from celery.utils.serialization import jsonify
from celery.worker.state import task_reserved
from kombu import pidbox

import dsf.log
from dsf import boundedjson, keys
from dsf.boundedjson import Bounds
from dsf.process.threads import SupervisedThread
from dsf.redislink import address, broker
from dsf.settings import settings
from dsf.store.client import connect, repeat
from dsf.text import cleaned, visible

log = dsf.log.get(__name__)

#: Commands that read from a worker, and those that change it. The rest of Celery's commands end a worker, let it
#: consume other queues, or are not possible with its pool.
QUESTIONS: Final = (
    "active",
    "active_queues",
    "clock",
    "ping",
    "query_task",
    "registered",
    "reserved",
    "revoked",
    "scheduled",
    "stats",
)
CHANGES: Final = ("rate_limit", "revoke")
#: A reply of a worker: all tasks of its threads, and the names of all of its tasks.
_REPLY: Final = Bounds(1024 * 1024, 20_000)
COMMANDS: Final = (*QUESTIONS, *CHANGES)
#: Seconds between two checks of the listener whether it should end.
_LOOK: Final = 1.0


def describe_commands(command: str) -> None:
    """Let the help of `celery inspect` or `celery control` name the commands that our workers have."""
    # Workers need none of Celery's command line.
    from celery.bin import control as commands
    from celery.worker.control import Panel

    names = QUESTIONS if command == "inspect" else CHANGES
    for name in [name for name, meta in Panel.meta.items() if meta.type == command and name not in names]:
        # The command line refuses what workers would refuse.
        Panel.meta.pop(name)
    lines = [f"  {name} {Panel.meta[name].signature or ''}".rstrip() for name in names]
    getattr(commands, command).help = (
        "Send the COMMAND to the workers: agents (spoke@<cluster>) and results workers (results@<host>).\n\n"
        "\b\nCommands, which --list describes:\n" + "\n".join(lines)
    )


class RemoteControl(Control):
    """The callers' half: `app.control`."""

    def broadcast(
        self,
        command: str,
        arguments: Any = None,
        destination: Any = None,
        connection: Any = None,
        reply: bool = False,
        timeout: float | None = 1.0,
        limit: int | None = None,
        callback: Any = None,
        channel: Any = None,
        pattern: str | None = None,
        matcher: Any = None,
        **extra: Any,
    ) -> list[dict[str, Any]] | None:
        """Send a command to all workers or some; returns their replies if requested. Raises redis.RedisError."""
        del connection, channel
        # Every event listener sends these commands; our workers always send events.
        if command in ("enable_events", "heartbeat"):
            return None
        ticket = uuid.uuid4().hex
        # Workers refuse what is neither, and say so.
        channels = _channels()
        where = channels.commands if command in CHANGES else channels.questions
        if destination and limit is None:
            # More will not come.
            limit = len(destination)
        body = {
            "method": command,
            "arguments": dict(arguments or {}, **extra),
            "destination": destination,
            "pattern": pattern,
            "matcher": matcher,
            "ticket": ticket,
            # The handler of a command requires both; the worker has its own reply channel.
            "reply_to": {"exchange": "", "routing_key": ticket} if reply else None,
        }
        # Replies are bytes: any agent may publish what is no text.
        with (
            connect(settings(), name="dsf-control", decode_responses=False) as client,
            _subscriber(client) as replies,
        ):
            if not reply:
                client.publish(where, json.dumps(body))
                return None
            replies.psubscribe(channels.reply("*"))
            # Before the command, so that no reply is missed.
            replies.get_message(timeout=5.0)
            client.publish(where, json.dumps(body))
            answers: list[dict[str, Any]] = []
            until = time.monotonic() + (timeout or 1.0)
            while (remaining_seconds := until - time.monotonic()) > 0 and (limit is None or len(answers) < limit):
                message = replies.get_message(ignore_subscribe_messages=True, timeout=remaining_seconds)
                answer = None if message is None else _answer(message, ticket)
                if answer is not None and (not destination or answer.keys() <= set(destination)):
                    answers.append(answer)
                    if callback is not None:
                        callback(answer)
            return answers


class FlowerControl(RemoteControl):
    """Queries one worker for its page. At its start Flower would query all workers of a large fleet."""

    def broadcast(self, command: str, *arguments: Any, **options: Any) -> list[dict[str, Any]] | None:
        """Send a command to some workers, or one without replies to all. Raises redis.RedisError."""
        if options.get("reply") and not options.get("destination"):
            return []
        return super().broadcast(command, *arguments, **options)


class RemoteControlNode(pidbox.Node):
    """Runs commands in a worker and publishes its replies."""

    client: redis.Redis

    def reply(self, data: Any, exchange: Any, routing_key: Any, ticket: Any, **_: Any) -> None:
        """Publish a reply, as kombu's own node does in its way."""
        del exchange, routing_key
        # Some responses hold objects, such as the one that reads the password.
        jsonable = jsonify(data[self.hostname], unknown_type_filter=object.__repr__)
        # A new connection: an idle one may be dead, and the user waits for a second.
        with connect(settings(), name="dsf-control") as client:
            client.publish(_channels().reply(str(self.hostname)), json.dumps({"ticket": ticket, "reply": jsonable}))


class Listener(bootsteps.StartStopStep):
    """The workers' half: a thread that runs commands, also while the main loop is busy."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        self._end = threading.Event()

    def start(self, consumer: Any) -> None:
        """New connection."""
        from celery.utils.collections import AttributeDict
        from celery.worker.control import Panel

        state = AttributeDict(app=consumer.app, hostname=consumer.hostname, consumer=consumer, tset=set)
        handlers = {name: Panel.data[name] for name in COMMANDS} | {
            "rate_limit": partial(_limit, Panel.data["rate_limit"])
        }
        node = RemoteControlNode(consumer.hostname, state, None, handlers, consumer.app.control.mailbox)
        node.client = connect(settings(), name="dsf-control")
        self._end = threading.Event()
        SupervisedThread(partial(_listen, node, self._end), "dsf-control").start()

    def stop(self, consumer: Any) -> None:
        """The connection ends."""
        del consumer
        self._end.set()


def _channels() -> keys.ControlChannels:
    """Return the channels of this process's installation."""
    return keys.ControlChannels.of(address.parse(settings().resolved_redis_url()).db)


def _limit(command: Any, state: Any, task_name: str, rate_limit: str, **options: Any) -> Any:
    """Celery's `rate_limit`; what waits for its turn under the old limit has it now.

    Celery forgets it: it would wait for as long as the old limit says, an hour for `1/h`, and a worker with that many
    requests takes no other ones meanwhile.
    """
    old = state.consumer.task_buckets.get(task_name)
    reply = command(state, task_name, rate_limit, **options)
    if old is not None and old is not state.consumer.task_buckets.get(task_name):
        # A timer takes requests from it, too.
        with contextlib.suppress(IndexError):
            while True:
                request, _ = old.pop()
                task_reserved(request)
                state.consumer.on_task_request(request)
    return reply


def _listen(node: RemoteControlNode, end: threading.Event) -> None:
    def turn() -> float:
        with _subscriber(node.client) as commands:
            channels = _channels()
            commands.subscribe(*channels)
            while not end.is_set():
                message = commands.get_message(ignore_subscribe_messages=True, timeout=_LOOK)
                broker.check_subscription(commands)
                if message is not None:
                    _run(node, str(message["data"]), COMMANDS if message["channel"] == channels.commands else QUESTIONS)
        return 0.0

    repeat(turn, end, doing="listen to remote control", pause=_LOOK)
    node.client.close()


def _subscriber(client: redis.Redis) -> Any:
    # The method is missing in redis-py's published types.
    subscriber: Any = client.pubsub()  # type: ignore[no-untyped-call]
    return subscriber


def _run(node: RemoteControlNode, text: str, allowed: Sequence[str]) -> None:
    try:
        body = json.loads(text) if len(text) <= 64 * 1024 else None
        if isinstance(body, dict) and isinstance(body.get("arguments"), dict):
            if body.get("method") in allowed:
                node.handle_message(body)
            elif body.get("reply_to"):
                refusal = {"error": f"{body.get('method')} is not possible here; possible are {', '.join(allowed)}"}
                node.reply({node.hostname: refusal}, "", "", str(body.get("ticket")))
    except redis.RedisError:
        raise
    except Exception as error:  # noqa: BLE001 (a mistake in a command must not end the listener)
        log.warning("command not understood", error=repr(error))


def _answer(message: dict[str, Any], ticket: str) -> dict[str, Any] | None:
    """Return a worker's name and its reply, if it is one to this ticket.

    By its channel, on which only that worker writes.
    """
    try:
        # Any holder of an agent's credential can send one.
        envelope = boundedjson.loads(message["data"], _REPLY)
        if envelope["ticket"] != ticket:
            return None
        worker = message["channel"].decode(errors="replace").removeprefix(_channels().reply(""))
        return {cleaned(worker, 300): _printable(envelope["reply"])}
    except (ValueError, KeyError, TypeError):
        return None


def _printable(reply: Any) -> Any:
    """Return a reply in which every text may be printed in a terminal: no control characters, no lone surrogates."""
    match reply:
        case str():
            return visible(reply, allowed_characters="\n\t")
        case list():
            return [_printable(item) for item in reply]
        case dict():
            return {visible(str(name)): _printable(item) for name, item in reply.items()}
    return reply
