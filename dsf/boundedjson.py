"""Checks JSON from other systems before it is parsed.

A limit in bytes does not limit the memory: `[[],[],...]` takes 40 times its text in Python, and the list of all errors
of `[1,1,...]` 400 times. Each reader of foreign JSON therefore states `Bounds`, and `check` counts containers, values
and depth in the bytes. Large documents are parsed one after the other (`serialize_parsing`), because a process has many
threads.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from dsf.errors import JsonBoundsError

_SQUARE_BRACKETS: Final = bytes.maketrans(b"{}", b"[]")
_BYTES_WITHOUT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_BYTES_WITHOUT_STRUCTURE: Final = bytes(set(range(256)) - set(b'[]{},"'))
#: Number of bytes that are split at a time, because a list of all parts of a document would be large.
_WINDOW_BYTES: Final = 64 * 1024
#: Maximum size of a document that is parsed without waiting for other documents.
_MAX_PARALLEL_BYTES: Final = 128 * 1024

_parsing_lock = threading.RLock()


class Bounds(NamedTuple):
    """Limits of one kind of JSON document."""

    #: Maximum size of the text.
    max_bytes: int
    #: Maximum number of values of any type at any depth. 100,000 values take about 15 MB at most.
    max_values: int
    max_depth: int = 32


def check(body: bytes, bounds: Bounds) -> None:
    """Raise JsonBoundsError for a document beyond these bounds.

    Most documents take only a few passes at the speed of memchr.
    """
    if len(body) > bounds.max_bytes:
        raise JsonBoundsError(f"it has {len(body)} bytes, more than {bounds.max_bytes}")
    if _count_values(body) > bounds.max_values or _is_deeper(body, bounds.max_depth):
        # Count again without strings, which may contain commas and brackets. This is slower, so it is the second step.
        body = _extract_structure(body)
    if _count_values(body) > bounds.max_values:
        raise JsonBoundsError(f"it has more than {bounds.max_values} values")
    if _is_deeper(body, bounds.max_depth):
        raise JsonBoundsError(f"it is nested deeper than {bounds.max_depth}")


def parse(
    body: bytes,
    bounds: Bounds,
    *,
    parse_int: Callable[[str], Any] | None = None,
    object_pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None = None,
) -> Any:
    """Parse a document within these bounds.

    Raises JsonBoundsError for a document beyond them, and ValueError for a document that is not JSON in UTF-8.
    """
    check(body, bounds)
    try:
        return json.loads(body.decode("utf-8-sig"), parse_int=parse_int, object_pairs_hook=object_pairs_hook)
    except RecursionError:
        raise JsonBoundsError("it is nested too deeply") from None


@contextlib.contextmanager
def serialize_parsing(size: int) -> Iterator[None]:
    """Wait until no other thread of this process parses a large document, and parse one of `size` bytes in the block.

    Small documents do not wait.
    """
    if size <= _MAX_PARALLEL_BYTES:
        yield
        return
    with _parsing_lock:
        yield


def _count_values(body: bytes) -> int:
    # Each comma precedes a value, and each bracket may precede the first value of a container.
    return body.count(b",") + body.count(b"[") + body.count(b"{")


def _extract_structure(body: bytes) -> bytes:
    """Return the brackets and commas outside of strings."""
    # Remove pairs of backslashes first, because in a run of backslashes only an odd last one escapes a quotation mark.
    unescaped_body = body.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _BYTES_WITHOUT_STRUCTURE)
    structure = bytearray()
    is_in_text = False
    for start in range(0, len(unescaped_body), _WINDOW_BYTES):
        parts = unescaped_body[start : start + _WINDOW_BYTES].split(b'"')
        structure += b"".join(parts[is_in_text::2])
        is_in_text ^= len(parts) % 2 == 0
    return bytes(structure)


def _is_deeper(body: bytes, depth: int) -> bool:
    """True if brackets remain after the innermost pairs have been removed `depth` times.

    Each bracket that is not closed counts as a level.
    """
    brackets = body.translate(_SQUARE_BRACKETS, _BYTES_WITHOUT_BRACKETS)
    for _ in range(depth):
        outer_brackets = brackets.replace(b"[]", b"")
        if len(outer_brackets) == len(brackets):
            return outer_brackets.count(b"[") > depth
        brackets = outer_brackets
    return bool(brackets)
