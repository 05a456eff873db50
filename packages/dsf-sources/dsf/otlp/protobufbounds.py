"""Counts the messages in an OTLP request before it is parsed.

A limit in bytes does not limit the memory: a parsed message takes up to 200 bytes, and 2 bytes are enough to encode
one. There are many encodings, as protobuf accepts numbers that are longer than necessary. Only walking through the
request finds all of them.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from dsf.errors import ProtobufBoundsError

#: Maximum nesting, which is also that of protobuf's parsers.
_MAX_DEPTH: Final = 100
#: Memory of a parsed message relative to that of an attribute or its value. A real message with a higher weight has a
#: time, a name or two numbers.
_WEIGHT: Final = 3
_LIGHT: Final = frozenset(("KeyValue", "AnyValue"))
#: A real request has at least this many bytes per unit of weight, apart from a few.
_BYTES_PER_WEIGHT: Final = 5
_FREE_WEIGHT: Final = 30_000
#: Wire types of protobuf, and the bytes of those that are numbers of a fixed size.
_VARINT: Final = 0
_LENGTH: Final = 2
_SIZES: Final = {1: 8, 5: 4}


class _MessageType(NamedTuple):
    """A type of messages. `fields` has the types of its fields that are messages, by number."""

    weight: int
    fields: dict[int, _MessageType]


def _make_type(descriptor: Any, types: dict[str, _MessageType]) -> _MessageType:
    """Return the type of a descriptor. `types` has those that exist already, because a value may contain values."""
    if descriptor.full_name not in types:
        fields: dict[int, _MessageType] = {}
        types[descriptor.full_name] = _MessageType(1 if descriptor.name in _LIGHT else _WEIGHT, fields)
        fields.update({f.number: _make_type(f.message_type, types) for f in descriptor.fields if f.message_type})
    return types[descriptor.full_name]


_REQUEST: Final = _make_type(ExportMetricsServiceRequest.DESCRIPTOR, {})


def check(body: bytes) -> None:
    """Raise ProtobufBoundsError if an ExportMetricsServiceRequest has too many messages for its size, or is invalid."""
    try:
        _walk(body, _FREE_WEIGHT + len(body) // _BYTES_PER_WEIGHT)
    except IndexError:
        raise ProtobufBoundsError("it ends within a field") from None


def _walk(body: bytes, max_weight: int) -> None:
    weight = 0
    position, end, fields = 0, len(body), _REQUEST.fields
    # The messages that contain the current one: the position after it, their end, and their fields.
    outer_messages: list[tuple[int, int, dict[int, _MessageType]]] = []
    while True:
        if position >= end:
            if position > end:
                raise ProtobufBoundsError("a field is longer than its message")
            if not outer_messages:
                return
            position, end, fields = outer_messages.pop()
            continue
        tag = body[position]
        position += 1
        if tag > 127:
            tag, position = _read_varint(body, position - 1)
        wire_type = tag & 7
        if wire_type != _LENGTH:
            position = _skip_number(body, position, wire_type)
            continue
        length = body[position]
        position += 1
        if length > 127:
            length, position = _read_varint(body, position - 1)
        message_type = fields.get(tag >> 3)
        if message_type is None:
            position += length
            continue
        weight += message_type.weight
        if weight > max_weight:
            raise ProtobufBoundsError("it has too many nearly empty parts for its size")
        if len(outer_messages) >= _MAX_DEPTH:
            raise ProtobufBoundsError(f"it is nested deeper than {_MAX_DEPTH}")
        if position + length > end:
            raise ProtobufBoundsError("a field is longer than its message")
        outer_messages.append((position + length, end, fields))
        end, fields = position + length, message_type.fields


def _skip_number(body: bytes, position: int, wire_type: int) -> int:
    """Return the position after a number."""
    if wire_type == _VARINT:
        while body[position] > 127:
            position += 1
        return position + 1
    if wire_type not in _SIZES:
        # Groups, which OTLP does not have, and undefined types.
        raise ProtobufBoundsError(f"a field has the wire type {wire_type}")
    return position + _SIZES[wire_type]


def _read_varint(body: bytes, position: int) -> tuple[int, int]:
    """Return the number at a position, of at most 10 bytes, and the position after it."""
    number = 0
    for index in range(10):
        byte = body[position + index]
        number |= (byte & 127) << (7 * index)
        if byte < 128:
            # Parsers drop the bits beyond 32 of tags, and refuse such lengths.
            return number, position + index + 1
    raise ProtobufBoundsError("a number has more than 10 bytes")
