"""Connections to Redis with the time-outs that a WAN needs."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from importlib import resources
from itertools import islice
from typing import Any, Final, TypeVar

import redis
from redis.backoff import ExponentialWithJitterBackoff
from redis.retry import Retry

from dsf import keys
from dsf.redislink.link import HEALTH_CHECK_INTERVAL, Link, connect_timeout
from dsf.settings import Settings

_Item = TypeVar("_Item")


def connect(settings: Settings, *, name: str = "dsf", retries: int = 3, decode_responses: bool = True) -> redis.Redis:
    """A thread-safe client that reconnects by itself, with the current password. It decodes answers to str or not.

    Connecting happens at the first command. Raises SettingsError if the URL or a named file is unusable.
    """
    options = _options(settings, name, retries) | {"decode_responses": decode_responses}
    return Link(settings).client(**options)


def connect_to(settings: Settings, host: str, port: int, *, name: str = "dsf", retries: int = 0) -> redis.Redis:
    """The same for a specific server, such as a replica."""
    return Link(settings).client_of(host, port, **_options(settings, name, retries))


def _options(settings: Settings, name: str, retries: int) -> dict[str, Any]:
    return {
        "decode_responses": True,
        "socket_timeout": settings.redis_socket_timeout,
        "socket_connect_timeout": connect_timeout(settings),
        "socket_keepalive": True,
        "health_check_interval": HEALTH_CHECK_INTERVAL,
        "client_name": name,
        # Not after a time-out: callers have waited long enough, and would wait several times as long.
        "retry": Retry(ExponentialWithJitterBackoff(base=0.05, cap=1.0), retries, (redis.ConnectionError,)),
    }


def batched(items: Iterable[_Item], size: int) -> Iterator[list[_Item]]:
    """Items in lists of at most `size`: one per round trip."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch


def at_once(client: redis.Redis, *commands: Sequence[str | float]) -> list[Any]:
    """Answers to hub commands run atomically, as in MULTI, but also while Redis is full. Each may have some thousand
    parts.

    Raises redis.RedisError; commands before a refused one stay done.
    """
    parts = [part for command in commands for part in (len(command), *command)]
    answers: list[Any] = client.register_script(lua("commands"))(args=parts)
    return answers


def hub_time(client: redis.Redis) -> float:
    """Unix seconds by the clock that all processes of the hub share, which is Redis'.

    For what people do: the clock of the machine on which they do it may be off. Raises redis.RedisError.
    """
    seconds, microseconds = client.time()
    return float(seconds) + float(microseconds) / 1e6


# The hub's data is bounded, and the hub frees memory: its scripts may write even if agents may not because Redis holds
# `maxmemory`. Memory beyond that is the hub's reserve.
_FLAGS: Final = "#!lua flags=allow-oom\n"
#: Scripts that write rows, or tell readers that a pair has changed.
_WITH_ROWS: Final = ("ingest", "sweep", "set_right", "dispatch", "reschedule", "forget")


@functools.cache
def lua(name: str) -> str:
    """Source of `lua/<name>.lua`; each script's first comment names its keys and arguments."""
    if name not in _WITH_ROWS:
        return _FLAGS + _source(name)
    pairs = keys.pair_key("", "").removesuffix("/")
    names = f"local ROWS, CHANGED, SEQUENCE, PAIR = {keys.ROWS!r}, {keys.CHANGED!r}, {keys.SEQUENCE!r}, {pairs!r}\n"
    return _FLAGS + names + _source("rows") + _source(name)


def _source(name: str) -> str:
    return resources.files("dsf.store").joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")
