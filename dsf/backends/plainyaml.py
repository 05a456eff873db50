"""Dumps plain data as YAML in PyYAML's format in a tenth of its time: a hub writes thousands of files at a time. Text
that kubectl would read as another type is quoted, too.

It supports what most objects consist of: mappings and lists of texts and integers. PyYAML formats each text once, and
the result is cached, as nearly all texts repeat; a long one, such as the summaries of a cluster, where it stands.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final

import yaml

from dsf.api import kubeyaml

#: Most characters of a line; longer ones are folded.
WIDTH: Final = 120
_UUID: Final = re.compile("[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TIME: Final = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")


class _OtherError(Exception):
    """The data has an unsupported value."""


class _PlainDumper(kubeyaml.Dumper):
    """No anchors and aliases: users read these files."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def dump(data: Any) -> str:
    """Plain data as YAML, keys in their order."""
    if type(data) is dict and data:
        lines: list[str] = []
        try:
            _mapping(data, "", "", lines)
        except _OtherError:
            pass
        else:
            return "\n".join(lines) + "\n"
    return _dumped(data, WIDTH)


def _dumped(data: Any, width: int) -> str:
    text: str = yaml.dump(data, Dumper=_PlainDumper, sort_keys=False, allow_unicode=True, width=width)
    return text


def _mapping(data: dict[Any, Any], indent: str, head: str, lines: list[str]) -> None:
    """`head` precedes the first key, `indent` the others."""
    for name, value in data.items():
        if type(name) is not str:
            raise _OtherError
        key = f"{head}{_text(name)}:"
        head = indent
        if type(value) is dict and value:
            _add(key, lines)
            deeper = indent + "  "
            _mapping(value, deeper, deeper, lines)
        elif type(value) is list and value:
            _add(key, lines)
            _sequence(value, indent, lines)
        elif type(value) is str and _is_long(value):
            _add(key, lines)
            lines[-1] += _folded(name, value, len(indent))
        else:
            _add(f"{key} {_leaf(value)}", lines)


def _sequence(data: list[Any], indent: str, lines: list[str]) -> None:
    for value in data:
        if type(value) is dict and value:
            _mapping(value, indent + "  ", indent + "- ", lines)
        else:
            _add(f"{indent}- {_leaf(value)}", lines)


def _add(line: str, lines: list[str]) -> None:
    # libyaml counts bytes.
    if len(line) > WIDTH or (not line.isascii() and len(line.encode()) > WIDTH):
        raise _OtherError
    lines.append(line)


def _leaf(value: Any) -> str:
    kind = type(value)
    if kind is str:
        return _text(value)
    if kind is int:
        return str(value)
    if kind is bool:
        return "true" if value else "false"
    if value is None:
        return "null"
    if not value and kind in (dict, list):
        return "{}" if kind is dict else "[]"
    raise _OtherError


def _is_long(value: str) -> bool:
    return len(value) > 100 or not value.isprintable()


@lru_cache(32)
def _folded(name: str, value: str, column: int) -> str:
    """What follows `name:` in this column for a value of any length: its lines depend on both."""
    data: dict[str, Any] = {name: value}
    for _ in range(column // 2):
        data = {"": data}
    lines = _dumped(data, WIDTH).split("\n", column // 2)
    return lines[-1].removesuffix("\n")[column + len(_text(name)) + 1 :]


@lru_cache(8192)
def _text(value: str) -> str:
    # These two do not repeat.
    if _UUID.fullmatch(value):
        return value
    if _TIME.fullmatch(value):
        return f"'{value}'"
    if _is_long(value):
        raise _OtherError
    # Wider than our lines: the caller checks the length.
    return _dumped(value, 1000).removesuffix("\n").removesuffix("\n...")
