"""Limits of JSON from outside, checked before parsing."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from dsf import boundedjson
from dsf.boundedjson import Bounds, check, parse
from dsf.errors import JsonBoundsError


def _depth(value: Any) -> int:
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if children is None else 1 + max(map(_depth, children), default=0)


def _count(value: Any) -> int:
    """Return the number of containers plus the elements after the first of each."""
    children = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if children is None else 1 + max(0, len(children) - 1) + sum(map(_count, children))


def _any_value(dice: random.Random, depth: int = 0) -> Any:
    kind = dice.randrange(6 if depth < 5 else 4)
    if kind == 4:
        return [_any_value(dice, depth + 1) for _ in range(dice.randrange(4))]
    if kind == 5:
        return {_text(dice): _any_value(dice, depth + 1) for _ in range(dice.randrange(4))}
    return [1, None, 2.5, _text(dice)][kind]


def _text(dice: random.Random) -> str:
    return "".join(dice.choices('\\",[]{}:aé\n', k=dice.randrange(6)))


def test_limits_are_exact_for_any_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boundedjson, "_WINDOW_BYTES", 7)
    dice = random.Random(3)
    for _ in range(3000):
        value = _any_value(dice)
        body = json.dumps(value, ensure_ascii=dice.random() < 0.5).encode()
        count, depth = _count(value), _depth(value)
        assert parse(body, Bounds(len(body), count, depth)) == value
        for bounds in ((len(body) - 1, count, depth), (len(body), count - 1, depth), (len(body), count, depth - 1)):
            if min(bounds) >= 0:
                with pytest.raises(JsonBoundsError):
                    check(body, Bounds(*bounds))


@pytest.mark.parametrize("body", [b"[" * 9, b'{"a":' * 9, b"[" * 8 + b"{"])
def test_unclosed_brackets_count_as_depth(body: bytes) -> None:
    with pytest.raises(JsonBoundsError, match="nested deeper than 8"):
        check(body, Bounds(100, 100, 8))


@pytest.mark.parametrize("body", [b"", b"{", b'"', b"[1,]", b"\xff", b'{"a":1}}', b"9" * 5000])
def test_no_json_is_a_value_error(body: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (of several kinds)
        parse(body, Bounds(10_000, 100, 8))
