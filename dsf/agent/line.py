"""The one connection over which an agent asks Redis for anything but ticks.

Commands of several threads that come while an exchange is under way go together in the next one. So one connection is
enough, however far away the hub is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import redis

Command = tuple[Any, ...]

#: Seconds without an exchange after which the server may have closed the connection.
_IDLE: Final = 0.5


@dataclass
class _Sending:
    """Commands that go together, and their answers."""

    commands: Sequence[Command]
    answers: list[Any] = field(default_factory=list)
    error: redis.RedisError | None = None
    is_done: bool = False


class Line:
    """Thread-safe, but for `exchange`."""

    def __init__(self, client: redis.Redis) -> None:
        self._pool = client.connection_pool
        self._connection: Any = None
        #: When it was used last (time.monotonic()).
        self._used = 0.0
        #: Held during an exchange.
        self.lock = threading.Lock()
        self._queue_lock = threading.Lock()
        self._queue: list[_Sending] = []

    def ask(self, commands: Sequence[Command]) -> list[Any]:
        """Answers to these commands, in one round trip with those of other threads.

        Raises redis.RedisError, also when one of the commands failed.
        """
        mine = _Sending(commands)
        with self._queue_lock:
            self._queue.append(mine)
        with self.lock:
            if not mine.is_done:
                with self._queue_lock:
                    batch, self._queue = self._queue, []
                self._send(batch)
        if mine.error is not None:
            raise mine.error
        return mine.answers

    def _send(self, batch: Sequence[_Sending]) -> None:
        try:
            answers = iter(self.exchange([command for sending in batch for command in sending.commands]))
            for sending in batch:
                sending.answers = [next(answers) for _ in sending.commands]
                sending.error = next((one for one in sending.answers if isinstance(one, redis.RedisError)), None)
        except redis.RedisError as error:
            for sending in batch:
                sending.error = error
        finally:
            for sending in batch:
                sending.is_done = True

    def exchange(self, commands: Sequence[Command]) -> list[Any]:
        """Answers to these commands as the server sent them, errors of single ones among them. `lock` must be held.

        What a pipeline of redis-py does, without a pool, callbacks and metrics, which take two thirds of its time.
        Raises redis.RedisError.
        """
        if self._connection is None:
            self._connection = self._pool.get_connection()
        connection: Any = self._connection
        if time.monotonic() - self._used > _IDLE:
            _look(connection)
        # Only this asks Sentinel where the server is, and what a failure says is for people.
        connection.connect()

        def send() -> list[Any]:
            connection.send_packed_command(connection.pack_commands(commands))
            return [_answer(connection) for _ in commands]

        try:
            answers: list[Any] = connection.retry.call_with_retry(send, lambda _: connection.disconnect())
        except BaseException:
            # Answers that are still to come would be taken for those of the next commands.
            connection.disconnect()
            raise
        self._used = time.monotonic()
        return answers


def _look(connection: Any) -> None:
    """Drop a connection that the server has closed meanwhile, so that the next command makes a new one."""
    try:
        is_of_use = not (connection.is_connected and connection.can_read(0))
    except (redis.RedisError, OSError):
        is_of_use = False
    if not is_of_use:
        connection.disconnect()


def _answer(connection: Any) -> Any:
    try:
        return connection.read_response()
    except redis.ResponseError as error:
        return error
