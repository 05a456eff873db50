"""Helpers of all modules that access Redis: clients, scripts, loops that survive an outage, and parsers of stored data.

Stored data that cannot be parsed is logged once and skipped, so that it never blocks the rest.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import resources
from itertools import islice
from typing import Any, Final, Literal, NamedTuple, TypeVar

import redis
from pydantic import BaseModel, ValidationError
from redis.backoff import ExponentialWithJitterBackoff
from redis.retry import Retry

import dsf.log
from dsf import keys
from dsf.redislink.link import HEALTH_CHECK_INTERVAL, Link, get_connect_timeout
from dsf.settings import Settings

log = dsf.log.get(__name__)

_Item = TypeVar("_Item")

#: Number of times that a command retries its connection to Redis, for about three seconds in total: Redis may be
#: restarting, but a user waits.
CLI_CONNECTION_RETRIES: Final = 8


def connect(
    settings: Settings,
    *,
    name: str = "dsf",
    retries: int = 3,
    decode_responses: bool = True,
    max_connections: int | None = None,
) -> redis.Redis:
    """Return a thread-safe client that connects at the first command, and reconnects with the current password.

    With `decode_responses`, responses are str instead of bytes. Without `max_connections`, each thread gets a
    connection. Raises SettingsError if the URL or a file is unusable.
    """
    options = _make_options(settings, name, retries) | {"decode_responses": decode_responses}
    return Link(settings).make_client(max_connections, **options)


def make_server_client(settings: Settings, host: str, port: int, *, name: str = "dsf") -> redis.Redis:
    """Return a client of a specific server, such as a replica, that does not retry. See `connect`."""
    return Link(settings).make_server_client(host, port, **_make_options(settings, name, retries=0))


def _make_options(settings: Settings, name: str, retries: int) -> dict[str, Any]:
    return {
        "decode_responses": True,
        "socket_timeout": settings.redis_socket_timeout,
        "socket_connect_timeout": get_connect_timeout(settings),
        "socket_keepalive": True,
        "health_check_interval": HEALTH_CHECK_INTERVAL,
        "client_name": name,
        # Only lost connections are retried. Retries after a time-out would multiply the time that callers wait.
        "retry": Retry(ExponentialWithJitterBackoff(base=0.05, cap=1.0), retries, (redis.ConnectionError,)),
    }


def split_into_batches(items: Iterable[_Item], size: int) -> Iterator[list[_Item]]:
    """Yield the items in lists of at most `size`, for one round trip each."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch


def split_by_size(items: Iterable[tuple[_Item, int]], max_size: int) -> Iterator[list[_Item]]:
    """Yield the items of (item, size) in lists with a total size of at most `max_size`.

    An item that is larger has its own list.
    """
    batch: list[_Item] = []
    total_size = 0
    for item, size in items:
        if batch and total_size + size > max_size:
            yield batch
            batch, total_size = [], 0
        batch.append(item)
        total_size += size
    if batch:
        yield batch


def run_atomically(
    client: redis.Redis, *commands: Sequence[str | float], raise_command_errors: bool = True
) -> list[Any]:
    """Run commands atomically and return their responses, as MULTI does, but even while Redis has reached `maxmemory`.

    A command may have a few thousand arguments. Raises redis.RedisError. Without `raise_command_errors`, the error of a
    command is returned in its place, and the effects of the other commands remain.
    """
    responses: list[Any] = client.register_script(load_lua("commands"))(args=[0, *_flatten_commands(commands)])
    for response in responses if raise_command_errors else ():
        if isinstance(response, redis.RedisError):
            raise response
    return responses


class Condition(NamedTuple):
    """A condition on the response of a command: equal to `value` (operator `=`) or less than it (operator `<`).

    A missing response counts as "".
    """

    operator: Literal["=", "<"]
    value: str | int
    command: Sequence[str | float]


def run_atomically_if(
    client: redis.Redis, conditions: Sequence[Condition], *commands: Sequence[str | float]
) -> Condition | None:
    """Run commands as `run_atomically` does if all conditions hold. Check and commands are one atomic step.

    Returns None after running the commands, otherwise the first condition that does not hold. Raises redis.RedisError.
    """
    checks = [
        part
        for condition in conditions
        for part in (condition.operator, condition.value, *_flatten_commands([condition.command]))
    ]
    script = client.register_script(load_lua("commands"))
    result: Any = script(args=[len(conditions), *checks, *_flatten_commands(commands)])
    if isinstance(result, int):
        return conditions[result - 1]
    for response in result:
        if isinstance(response, redis.RedisError):
            raise response
    return None


def _flatten_commands(commands: Sequence[Sequence[str | float]]) -> list[str | float]:
    return [part for command in commands for part in (len(command), *command)]


# First line of the hub's scripts. They may write even while Redis has reached `maxmemory`, where writes of agents fail.
# The hub's data is bounded, and the hub must be able to free memory. The container's memory beyond `maxmemory` is its
# reserve.
_SCRIPT_HEADER: Final = "#!lua flags=allow-oom\n"


@functools.cache
def load_lua(name: str) -> str:
    """Return the source of `lua/<name>.lua`, whose first comment describes its keys and arguments."""
    # Scripts that write rows or notify readers of changed pairs share the functions of lua/rows.lua.
    if name not in ("ingest", "repair_times", "dispatch", "reschedule", "forget", "unwritten"):
        return _SCRIPT_HEADER + _read_source(name)
    pair_key_prefix = keys.pair_key("", "").removesuffix("/")
    names = keys.ROWS, keys.CHANGED, keys.SEQUENCE, pair_key_prefix
    constants = f"local ROWS, CHANGED, SEQUENCE, PAIR = {', '.join(map(repr, names))}\n"
    return _SCRIPT_HEADER + constants + _read_source("rows") + _read_source(name)


def _read_source(name: str) -> str:
    return resources.files("dsf.store").joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")


def run_until_stopped(
    step: Callable[[], float],
    stopping: threading.Event,
    *,
    task: str,
    retry_seconds: float = 1.0,
    wait: Callable[[float], object] | None = None,
) -> None:
    """Call `step`, which returns the seconds until its next call, until `stopping` is set.

    An exception does not end the loop, which calls `step` again after `retry_seconds` seconds. An outage of Redis is
    logged once. `wait` replaces the wait between two calls, so that it can be interrupted.
    """
    is_outage_logged = False
    while not stopping.is_set():
        try:
            seconds = step()
            is_outage_logged = False
        except redis.RedisError as error:
            if not is_outage_logged:
                log.warning("redis fails, will retry", doing=task, error=str(error))
            is_outage_logged, seconds = True, retry_seconds
        except Exception:
            log.exception("failed, will retry", doing=task)
            seconds = retry_seconds
        (wait or stopping.wait)(seconds)


_Model = TypeVar("_Model", bound=BaseModel)


def parse_stored(model: type[_Model], name: str, text: str | bytes | None) -> _Model | None:
    """Parse a stored object. Return None if it is missing or unreadable, and log an unreadable one with `name`."""
    if text is None:
        return None
    try:
        return model.model_validate_json(text, extra="ignore")
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False, include_context=False)[0]["msg"]
        log_unreadable(model.__name__, name, hash(text), problem)
        return None


def parse_all_stored(model: type[_Model], texts: Mapping[Any, Any]) -> dict[str, _Model]:
    """Parse stored objects by name. Leave out and log unreadable ones."""
    objects = ((str(name), parse_stored(model, str(name), text)) for name, text in texts.items())
    return {name: item for name, item in objects if item is not None}


def parse_counter(kind: str, name: str, text: Any) -> int:
    """Parse a stored counter. Return 0 if it is missing or unreadable; `kind` and `name` are for the log."""
    try:
        return int(text or 0)
    except (ValueError, TypeError, OverflowError) as error:
        log_unreadable(kind, name, hash(str(text)), str(error)[:100])
        return 0


def parse_number(kind: str, name: str, text: Any, default: float = 0.0) -> float:
    """Parse a stored number. Return `default` if it is missing, unreadable or not finite."""
    try:
        if math.isfinite(value := float(default if text is None else text)):
            return value
        problem = "not finite"
    except (ValueError, TypeError, OverflowError) as error:
        problem = str(error)[:100]
    log_unreadable(kind, name, hash(str(text)), problem)
    return default


def parse_validity_factor(text: str | bytes | None) -> float:
    """Return the stored factor that extends validities (see `dsf.store.writes`), which is at least 1."""
    return max(1.0, parse_number("factor of validities", "validity_factor", text, 1.0))


@functools.lru_cache(maxsize=1024)
def log_unreadable(kind: str, name: str, digest: int, problem: str) -> None:
    """Log that the stored text with this digest is unreadable.

    The cache suppresses repetitions for the 1,024 texts that were read most recently, because beat would otherwise log
    the same text many times a second.
    """
    del digest
    log.warning("stored data cannot be read", kind=kind, name=name, problem=problem)
