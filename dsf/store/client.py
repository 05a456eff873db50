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
from dsf.redislink.link import Link
from dsf.settings import Settings

_Item = TypeVar("_Item")

#: Attempts of one command after a lost connection, so that a Redis restart of a second or two is not an error.
_RETRIES = 3


def connect(settings: Settings, *, name: str = "dsf", retries: int = _RETRIES) -> redis.Redis:
    """A thread-safe client that decodes answers to str and reconnects by itself, with the password of that moment.

    Connecting happens at the first command. Raises SettingsError when the URL or a file that is named cannot be used.
    """
    return Link(settings).client(**_options(settings, name, retries))


def connect_to(settings: Settings, host: str, port: int, *, name: str = "dsf", retries: int = 0) -> redis.Redis:
    """The same for one certain server, such as a replica."""
    return Link(settings).client_of(host, port, **_options(settings, name, retries))


def _options(settings: Settings, name: str, retries: int) -> dict[str, Any]:
    return {
        "decode_responses": True,
        "socket_timeout": settings.redis_socket_timeout,
        "socket_connect_timeout": settings.redis_connect_timeout,
        "socket_keepalive": True,
        "health_check_interval": settings.redis_health_check_interval,
        "client_name": name,
        "retry": Retry(ExponentialWithJitterBackoff(base=0.05, cap=1.0), retries),
        "retry_on_error": [redis.ConnectionError, redis.TimeoutError],
    }


def batched(items: Iterable[_Item], size: int) -> Iterator[list[_Item]]:
    """Items in lists of at most so many: one for each round trip."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch


def at_once(client: redis.Redis, *commands: Sequence[str | float]) -> list[Any]:
    """Answers to commands of the hub that belong together: no other one comes between them, as in MULTI, and they are
    done also while Redis is full. Each may have some thousand parts.

    Raises redis.RedisError; what came before a command that Redis does not take stays done.
    """
    parts = [part for command in commands for part in (len(command), *command)]
    answers: list[Any] = client.register_script(lua("commands"))(args=parts)
    return answers


# What the hub keeps is bounded, and it is the hub that makes room: when agents may not write because Redis holds
# `maxmemory`, our scripts still may. What Redis may have beyond that is the hub's reserve.
_FLAGS: Final = "#!lua flags=allow-oom\n"


#: Scripts that keep the read model, or mark what has to be looked at again.
_WITH_MODEL: Final = ("ingest", "sweep", "judge", "lapse", "recount", "dispatch", "reschedule", "override")


@functools.cache
def lua(name: str) -> str:
    """Source of `lua/<name>.lua`; each script's first comment names its keys and arguments."""
    if name not in _WITH_MODEL:
        return _FLAGS + _source(name)
    pairs = keys.pair_key("", "").removesuffix("/")
    names = f"local MODEL, PAIR = {keys.MODEL_PREFIX!r}, {pairs!r}\n"
    return _FLAGS + names + _source("model") + _source(name)


def _source(name: str) -> str:
    return resources.files("dsf.store").joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")
