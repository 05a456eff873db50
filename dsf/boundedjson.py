"""JSON from outside, checked before it is parsed.

A bound in bytes bounds no memory: `[[],[],...]` takes 40 times its text in Python, and the list of what is wrong with
`[1,1,...]` 400 times. Each reader of foreign JSON therefore states `Bounds`, and `check` counts containers, values and
depth in the bytes. Parsers of large documents take turns (`turn`), as a process has many threads.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from dsf.errors import JsonBoundsError

_BRACKETS: Final = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_NO_STRUCTURE: Final = bytes(set(range(256)) - set(b'[]{},"'))
#: Bytes that are split at a time: a list of all parts of a document would be large.
_WINDOW: Final = 64 * 1024
#: Bytes of a document that is parsed without waiting for a turn.
_SMALL: Final = 128 * 1024

_turns = threading.RLock()


class Bounds(NamedTuple):
    """Largest JSON document of one kind."""

    #: Of the text.
    max_bytes: int
    #: Values of every kind, at any depth; those of 100,000 take at most some 15 MB.
    max_values: int
    max_depth: int = 32


def check(body: bytes, bounds: Bounds) -> None:
    """Raise JsonBoundsError for a document beyond these bounds. Most documents cost some passes of memchr's speed."""
    if len(body) > bounds.max_bytes:
        raise JsonBoundsError(f"it has {len(body)} bytes, more than {bounds.max_bytes}")
    if _values(body) > bounds.max_values or _is_deeper(body, bounds.max_depth):
        # Texts may contain commas and brackets, too. Counted without them only now, as this is slower.
        body = _structure(body)
    if _values(body) > bounds.max_values:
        raise JsonBoundsError(f"it has more than {bounds.max_values} values")
    if _is_deeper(body, bounds.max_depth):
        raise JsonBoundsError(f"it is nested deeper than {bounds.max_depth}")


def loads(
    body: bytes,
    bounds: Bounds,
    *,
    parse_int: Callable[[str], Any] | None = None,
    object_pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None = None,
) -> Any:
    """Parse a document within these bounds. Raises JsonBoundsError, else ValueError for what is no JSON in UTF-8."""
    check(body, bounds)
    try:
        return json.loads(body.decode("utf-8-sig"), parse_int=parse_int, object_pairs_hook=object_pairs_hook)
    except RecursionError:
        raise JsonBoundsError("it is nested too deeply") from None


@contextlib.contextmanager
def turn(size: int) -> Iterator[None]:
    """Context in which a document of `size` bytes is parsed and reduced: one large document at a time per process."""
    if size <= _SMALL:
        yield
        return
    with _turns:
        yield


def _values(body: bytes) -> int:
    # A value follows each comma and may be first in each container.
    return body.count(b",") + body.count(b"[") + body.count(b"{")


def _structure(body: bytes) -> bytes:
    """Brackets and commas outside of texts."""
    # In a run of backslashes, pairs are characters; the last one of an odd run escapes what follows.
    rest = body.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _NO_STRUCTURE)
    structure = bytearray()
    is_in_text = False
    for start in range(0, len(rest), _WINDOW):
        parts = rest[start : start + _WINDOW].split(b'"')
        structure += b"".join(parts[is_in_text::2])
        is_in_text ^= len(parts) % 2 == 0
    return bytes(structure)


def _is_deeper(body: bytes, depth: int) -> bool:
    """True if brackets remain after `depth` times removing the innermost pairs. Unclosed ones count as a level each."""
    brackets = body.translate(_BRACKETS, _NO_BRACKETS)
    for _ in range(depth):
        inner = brackets.replace(b"[]", b"")
        if len(inner) == len(brackets):
            return inner.count(b"[") > depth
        brackets = inner
    return bool(brackets)
