"""Redis as this project uses it: connections with the time-outs that a WAN needs, scripts, threads that repeat their
work, and stored data that cannot be read, which is logged once and left out, so that it stops no reader of the rest.
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


def connect(settings: Settings, *, name: str = "dsf", retries: int = 3, decode_responses: bool = True) -> redis.Redis:
    """Return a thread-safe client that reconnects by itself, with the current password.

    With `decode_responses`, responses become str.

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
        "socket_connect_timeout": get_connect_timeout(settings),
        "socket_keepalive": True,
        "health_check_interval": HEALTH_CHECK_INTERVAL,
        "client_name": name,
        # A time-out is not retried: callers have waited long enough, and would wait several times as long.
        "retry": Retry(ExponentialWithJitterBackoff(base=0.05, cap=1.0), retries, (redis.ConnectionError,)),
    }


def batched(items: Iterable[_Item], size: int) -> Iterator[list[_Item]]:
    """Items in lists of at most `size`: one per round trip."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch


def at_once(client: redis.Redis, *commands: Sequence[str | float], is_strict: bool = True) -> list[Any]:
    """Run commands atomically and return their answers, as in MULTI, but also while Redis is full. Each command may
    have some thousand parts.

    Raises redis.RedisError; what Redis has against one command is in its place if not `is_strict`, and the others stay
    done.
    """
    answers: list[Any] = client.register_script(lua("commands"))(args=[0, *_parts(commands)])
    for answer in answers if is_strict else ():
        if isinstance(answer, redis.RedisError):
            raise answer
    return answers


class Condition(NamedTuple):
    """The answer of a command is this value (`=`; "" for none), or less than it (`<`)."""

    operator: Literal["=", "<"]
    value: str | int
    command: Sequence[str | float]


def at_once_if(
    client: redis.Redis, conditions: Sequence[Condition], *commands: Sequence[str | float]
) -> Condition | None:
    """Run commands as `at_once` does, if all conditions hold then.

    Returns None if they were run, else the first condition that does not hold. Raises redis.RedisError.
    """
    checks = [part for check in conditions for part in (check.operator, check.value, *_parts([check.command]))]
    reply: Any = client.register_script(lua("commands"))(args=[len(conditions), *checks, *_parts(commands)])
    if isinstance(reply, int):
        return conditions[reply - 1]
    for answer in reply:
        if isinstance(answer, redis.RedisError):
            raise answer
    return None


def _parts(commands: Sequence[Sequence[str | float]]) -> list[str | float]:
    return [part for command in commands for part in (len(command), *command)]


# The hub's data is bounded, and the hub frees memory: its scripts may write even if agents may not because Redis holds
# `maxmemory`. Memory beyond that is the hub's reserve.
_FLAGS: Final = "#!lua flags=allow-oom\n"


@functools.cache
def lua(name: str) -> str:
    """Source of `lua/<name>.lua`; each script's first comment names its keys and arguments."""
    # Scripts that write rows, or notify readers of a changed pair.
    if name not in ("ingest", "repair_times", "dispatch", "reschedule", "forget", "unwritten"):
        return _FLAGS + _source(name)
    pairs = keys.pair_key("", "").removesuffix("/")
    names = f"local ROWS, CHANGED, SEQUENCE, PAIR = {keys.ROWS!r}, {keys.CHANGED!r}, {keys.SEQUENCE!r}, {pairs!r}\n"
    return _FLAGS + names + _source("rows") + _source(name)


def _source(name: str) -> str:
    return resources.files("dsf.store").joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")


def repeat(
    step: Callable[[], float],
    stopping: threading.Event,
    *,
    doing: str,
    pause: float = 1.0,
    wait: Callable[[float], object] | None = None,
) -> None:
    """Call `step`, which returns the seconds until its next call, until `stopping` is set.

    No exception ends it, or the thread's work would stop for good: it continues after `pause` seconds. An outage of
    Redis is logged once. `wait` is for interruptible waits.
    """
    is_logged = False
    while not stopping.is_set():
        try:
            seconds = step()
            is_logged = False
        except redis.RedisError as error:
            if not is_logged:
                log.warning("redis fails, will be tried again", doing=doing, error=str(error))
            is_logged, seconds = True, pause
        except Exception:
            log.exception("failed, will be tried again", doing=doing)
            seconds = pause
        (wait or stopping.wait)(seconds)


_Model = TypeVar("_Model", bound=BaseModel)


def parsed(model: type[_Model], name: str, text: str | bytes | None) -> _Model | None:
    """The stored object of this name; None if there is none, or if it cannot be read."""
    if text is None:
        return None
    try:
        return model.model_validate_json(text, extra="ignore")
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False, include_context=False)[0]["msg"]
        complain(model.__name__, name, hash(text), problem)
        return None


def parsed_all(model: type[_Model], texts: Mapping[Any, Any]) -> dict[str, _Model]:
    """The stored objects by name, without those that cannot be read."""
    objects = ((str(name), parsed(model, str(name), text)) for name, text in texts.items())
    return {name: item for name, item in objects if item is not None}


def whole(kind: str, name: str, text: Any) -> int:
    """A stored counter; 0 if there is none, or if it cannot be read."""
    try:
        return int(text or 0)
    except (ValueError, TypeError, OverflowError) as error:
        complain(kind, name, hash(str(text)), str(error)[:100])
        return 0


def number(kind: str, name: str, text: Any, default: float = 0.0) -> float:
    """A stored number; `default` if there is none, or if it cannot be read."""
    try:
        if math.isfinite(value := float(default if text is None else text)):
            return value
        problem = "not finite"
    except (ValueError, TypeError, OverflowError) as error:
        problem = str(error)[:100]
    complain(kind, name, hash(str(text)), problem)
    return default


def read_factor(text: str | bytes | None) -> float:
    """A stored extension factor of validities (dsf.store.writes); never below 1."""
    return max(1.0, number("factor of validities", "validity_factor", text, 1.0))


@functools.lru_cache(maxsize=1024)
def complain(kind: str, name: str, digest: int, problem: str) -> None:
    """Log that this text of `digest` cannot be read, once: beat reads many times a second."""
    del digest
    log.warning("stored data cannot be read", kind=kind, name=name, problem=problem)
