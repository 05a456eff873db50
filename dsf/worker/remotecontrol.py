"""Celery's remote control: `celery -A dsf.celery status`, `inspect ...` and `control ...`, for users on the hub.

Commands and their handlers are Celery's, but the transport is not. Kombu's transport needs the right to add to lists
and sets in Redis for replies and bindings. With one stolen credential an attacker could use that right to fill Redis.

This module publishes a command on a channel that agents may only read, and each worker publishes its replies on a
separate channel. Redis stores nothing. Commands that only query workers have a channel of their own, because Flower may
send only these.
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
from dsf.messages import CYCLE_TASK, FETCH_TASK, INGEST_TASK, PUBLISH_TASK, SCORE_TASK
from dsf.process.threads import SupervisedThread
from dsf.redislink import address, broker
from dsf.settings import settings
from dsf.store.client import CLI_CONNECTION_RETRIES, connect, run_until_stopped
from dsf.text import clean, escape_unprintable

log = dsf.log.get(__name__)

#: Commands that query a worker, and those that change it. Celery's other commands end a worker, make it consume other
#: queues, or do not work with its pool.
QUERY_COMMANDS: Final = (
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
CHANGE_COMMANDS: Final = ("rate_limit", "revoke")
_TASKS: Final = (CYCLE_TASK, FETCH_TASK, SCORE_TASK, PUBLISH_TASK, INGEST_TASK)
#: Maximum size of a reply. The largest replies list all tasks of a worker's threads, and the names of all tasks.
_REPLY_BOUNDS: Final = Bounds(1024 * 1024, 20_000)
#: Maximum bytes of a command.
_MAX_COMMAND_BYTES: Final = 64 * 1024
COMMANDS: Final = (*QUERY_COMMANDS, *CHANGE_COMMANDS)
#: Seconds between two checks whether the listener must end.
_STOP_CHECK_SECONDS: Final = 1.0


def describe_commands(command: str) -> None:
    """Make the help of `celery inspect` or `celery control` list the commands that our workers support."""
    # The imports are local because workers do not use Celery's command line.
    from celery.bin import control as commands
    from celery.worker.control import Panel

    names = QUERY_COMMANDS if command == "inspect" else CHANGE_COMMANDS
    for name in [name for name, meta in Panel.meta.items() if meta.type == command and name not in names]:
        # Celery's command line then refuses the commands that workers would refuse.
        Panel.meta.pop(name)
    lines = [f"  {name} {Panel.meta[name].signature or ''}".rstrip() for name in names]
    getattr(commands, command).help = (
        "Send the COMMAND to the workers: agents (spoke@<cluster>) and results workers (results@<host>).\n\n"
        "\b\nCommands, which --list describes:\n" + "\n".join(lines)
    )


class RemoteControl(Control):
    """Sends commands and receives the replies, as `app.control` of the caller."""

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
        """Send a command to all workers or some, and return their replies if requested. Raises redis.RedisError."""
        del connection, channel
        # Drop the commands that every event listener sends, because our workers always send events.
        if command in ("enable_events", "heartbeat"):
            return None
        ticket = uuid.uuid4().hex
        # Publish unsupported commands, too, because workers refuse them with an explanation.
        channels = _make_channels()
        command_channel = channels.commands if command in CHANGE_COMMANDS else channels.questions
        if destination and limit is None:
            # Each worker replies at most once.
            limit = len(destination)
        body = {
            "method": command,
            "arguments": dict(arguments or {}, **extra),
            "destination": destination,
            "pattern": pattern,
            "matcher": matcher,
            "ticket": ticket,
            # The handler of a command requires both fields. The worker uses its own reply channel.
            "reply_to": {"exchange": "", "routing_key": ticket} if reply else None,
        }
        # Read replies as bytes, because an agent may publish data that is not text.
        with (
            connect(settings(), name="dsf-control", retries=CLI_CONNECTION_RETRIES, decode_responses=False) as client,
            _make_subscriber(client) as subscriber,
        ):
            if not reply:
                client.publish(command_channel, json.dumps(body))
                return None
            subscriber.psubscribe(channels.reply("*"))
            # Wait for the confirmation of the subscription, so that no reply is missed.
            subscriber.get_message(timeout=5.0)
            client.publish(command_channel, json.dumps(body))
            replies: list[dict[str, Any]] = []
            deadline = time.monotonic() + (timeout or 1.0)
            while (remaining_seconds := deadline - time.monotonic()) > 0 and (limit is None or len(replies) < limit):
                message = subscriber.get_message(ignore_subscribe_messages=True, timeout=remaining_seconds)
                worker_reply = None if message is None else _parse_reply(message, ticket)
                if worker_reply is not None and (not destination or worker_reply.keys() <= set(destination)):
                    replies.append(worker_reply)
                    if callback is not None:
                        callback(worker_reply)
            return replies


class FlowerControl(RemoteControl):
    """Queries single workers for their pages, because at its start Flower would query all workers of a large fleet."""

    def broadcast(self, command: str, *arguments: Any, **options: Any) -> list[dict[str, Any]] | None:
        """Send a command to some workers, or a command without replies to all. Raises redis.RedisError."""
        if options.get("reply") and not options.get("destination"):
            return []
        return super().broadcast(command, *arguments, **options)


class RemoteControlNode(pidbox.Node):
    """Runs commands in a worker and publishes its replies."""

    client: redis.Redis

    def reply(self, data: Any, exchange: Any, routing_key: Any, ticket: Any, **_: Any) -> None:
        """Publish a reply on the channel of this worker."""
        del exchange, routing_key
        # Replies may contain objects without a JSON form, such as the one that reads the password.
        jsonable = jsonify(data[self.hostname], unknown_type_filter=object.__repr__)
        # Use a new connection, because an idle one may be dead and the user waits only for a second.
        with connect(settings(), name="dsf-control") as client:
            client.publish(
                _make_channels().reply(str(self.hostname)), json.dumps({"ticket": ticket, "reply": jsonable})
            )


class Listener(bootsteps.StartStopStep):
    """Runs commands in a thread of the worker, also while the main loop is busy."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        self._end = threading.Event()

    def start(self, consumer: Any) -> None:
        """Start listening for commands after a new connection."""
        from celery.utils.collections import AttributeDict
        from celery.worker.control import Panel

        state = AttributeDict(app=consumer.app, hostname=consumer.hostname, consumer=consumer, tset=set)
        handlers = {name: Panel.data[name] for name in COMMANDS} | {
            "rate_limit": partial(_set_rate_limit, Panel.data["rate_limit"])
        }
        node = RemoteControlNode(consumer.hostname, state, None, handlers, consumer.app.control.mailbox)
        node.client = connect(settings(), name="dsf-control")
        self._end = threading.Event()
        SupervisedThread(partial(_listen, node, self._end), "dsf-control").start()

    def stop(self, consumer: Any) -> None:
        """Stop listening after the loss of the connection."""
        del consumer
        self._end.set()


def _make_channels() -> keys.ControlChannels:
    """Return the channels of this process's installation."""
    return keys.ControlChannels.of(address.parse(settings().resolved_redis_url()).db)


def _set_rate_limit(command: Any, state: Any, task_name: str, rate_limit: str, **options: Any) -> Any:
    """Run Celery's command `rate_limit`, and then the requests that wait under the old limit.

    Celery would run the waiting requests only when the old limit allows it, which takes an hour for `1/h`. With many
    waiting requests, the worker would accept no others during that time.
    """
    if task_name in _TASKS and task_name not in state.app.tasks:
        owner = "results workers" if task_name == INGEST_TASK else "agents"
        return {"ok": f"nothing to limit here, as {task_name} runs on {owner} only"}
    old_bucket = state.consumer.task_buckets.get(task_name)
    reply = command(state, task_name, rate_limit, **options)
    if old_bucket is not None and old_bucket is not state.consumer.task_buckets.get(task_name):
        # Loop until an IndexError, because a timer may take requests from the bucket between a check and the pop.
        with contextlib.suppress(IndexError):
            while True:
                request, _ = old_bucket.pop()
                task_reserved(request)
                state.consumer.on_task_request(request)
    return reply


def _listen(node: RemoteControlNode, end: threading.Event) -> None:
    def run_commands() -> float:
        with _make_subscriber(node.client) as commands:
            channels = _make_channels()
            commands.subscribe(*channels)
            while not end.is_set():
                message = commands.get_message(ignore_subscribe_messages=True, timeout=_STOP_CHECK_SECONDS)
                broker.check_subscription(commands)
                if message is not None:
                    _run(
                        node,
                        str(message["data"]),
                        COMMANDS if message["channel"] == channels.commands else QUERY_COMMANDS,
                    )
        return 0.0

    run_until_stopped(run_commands, end, task="listen to remote control", retry_seconds=_STOP_CHECK_SECONDS)
    node.client.close()


def _make_subscriber(client: redis.Redis) -> Any:
    # The published types of redis-py lack this method.
    subscriber: Any = client.pubsub()  # type: ignore[no-untyped-call]
    return subscriber


def _run(node: RemoteControlNode, text: str, allowed_commands: Sequence[str]) -> None:
    try:
        body = json.loads(text) if len(text) <= _MAX_COMMAND_BYTES else None
        if isinstance(body, dict) and isinstance(body.get("arguments"), dict):
            if body.get("method") in allowed_commands:
                node.handle_message(body)
            elif body.get("reply_to"):
                refusal = {
                    "error": f"{body.get('method')} is not possible here; possible are {', '.join(allowed_commands)}"
                }
                node.reply({node.hostname: refusal}, "", "", str(body.get("ticket")))
    except redis.RedisError:
        raise
    except Exception as error:  # noqa: BLE001 (an error in a command must not end the listener)
        log.warning("command not understood", error=repr(error))


def _parse_reply(message: dict[str, Any], ticket: str) -> dict[str, Any] | None:
    """Return a worker's name and its reply, or None if the message is not a reply to this ticket.

    The name is that of the channel, because only this worker may publish there.
    """
    try:
        # Limit the size, because anyone with an agent's credential can publish a reply.
        envelope = boundedjson.parse(message["data"], _REPLY_BOUNDS)
        if envelope["ticket"] != ticket:
            return None
        worker = message["channel"].decode(errors="replace").removeprefix(_make_channels().reply(""))
        return {clean(worker, 300): _make_printable(envelope["reply"])}
    except (ValueError, KeyError, TypeError):
        return None


def _make_printable(reply: Any) -> Any:
    """Return the reply without control characters and lone surrogates, so that a terminal can print its texts."""
    match reply:
        case str():
            return escape_unprintable(reply, allowed_characters="\n\t")
        case list():
            return [_make_printable(item) for item in reply]
        case dict():
            return {escape_unprintable(str(name)): _make_printable(item) for name, item in reply.items()}
    return reply
