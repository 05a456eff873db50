"""Stored data that cannot be read: logged once and left out, so that it stops no reader of the rest."""

from __future__ import annotations

import functools
import math
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

import dsf.log

log = dsf.log.get(__name__)

_Model = TypeVar("_Model", bound=BaseModel)


def parsed(model: type[_Model], name: str, text: str | bytes | None, context: Any = None) -> _Model | None:
    """The stored object of this name; None if there is none, or if it cannot be read."""
    if text is None:
        return None
    try:
        return model.model_validate_json(text, context=context)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False, include_context=False)[0]["msg"]
        complain(model.__name__, name, hash(text), problem)
        return None


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


@functools.lru_cache(maxsize=1024)
def complain(kind: str, name: str, digest: int, problem: str) -> None:
    """Log that this text of `digest` cannot be read, once: beat reads many times a second."""
    del digest
    log.warning("stored data cannot be read", kind=kind, name=name, problem=problem)
