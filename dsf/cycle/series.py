"""Reads the series of a scoring request, for expressions.

The request is read in pieces, so that memory holds the series of one piece at a time. Series with many samples, as
Prometheus and the framework write them, are split at their quotes, which takes half of the time of a JSON parser; if
only the last sample counts, a tenth. Series of any other form are parsed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

from dsf.errors import CycleError
from dsf.sources.base import HEAD, TAIL

_FIRST = b'{"metric":{'
_BETWEEN = b"}," + _FIRST
_VALUES = b'},"values":[['
_LAST = b"}" + TAIL
_decode = json.JSONDecoder().raw_decode


#: Labels, values and times of one series. A plain tuple, which takes a fifth of the time of a named one.
Series: TypeAlias = tuple[dict[str, str], Sequence[float], Sequence[float]]


class Reading(NamedTuple):
    """Selects the parts of each series that are read."""

    #: Whether all values are read, and not only the last one.
    values: bool = True
    #: Whether the times are read.
    times: bool = True


def read_series(request: Iterable[bytes | memoryview], reading: Reading) -> Iterator[Series]:
    """Yield each series of a scoring request `{"data":[...]}`. Raises CycleError for an element that is none."""
    pieces = iter(request)
    rest = b""
    start = len(HEAD) + len(_FIRST)
    while len(rest) < start and (piece := next(pieces, None)) is not None:
        rest += piece
    if rest[len(HEAD) : start] != _FIRST:
        yield from _parse_series(b"".join((rest, *pieces)))
        return
    for piece in pieces:
        rest = rest[start:] + piece
        start = 0
        complete, between, after = rest.rpartition(_BETWEEN)
        if between:
            yield from _split_series(complete, reading)
            rest = after
    # Both ends are cut off in one step, because each slice copies the text.
    end = len(rest) - len(_LAST) if rest.endswith(_LAST) else len(rest.removesuffix(TAIL))
    yield from _split_series(rest[start:end], reading)


def _split_series(text: bytes, reading: Reading) -> Iterable[Series]:
    """Return the series in a text without the first braces and the last one."""
    parts = text.split(_BETWEEN)
    ends = [part.find(_VALUES) for part in parts]
    if min(ends) >= 0 and all(part.endswith(b'"]]') for part in parts):
        try:
            # The labels of all series need one call of the parser.
            head = b"},{".join([part[:end] for part, end in zip(parts, ends, strict=True)])
            labels = [_read_labels(element) for element in json.loads(b"[{%s}]" % head)]
            starts = [end + len(_VALUES) for end in ends]
            return zip(labels, *_read_samples(parts, starts, reading), strict=True)
        except (ValueError, AttributeError):
            # An element looks like a series but is not one. The JSON parser below reads it or raises an error.
            pass
    return map(_of, _loads(b"[%s%s}]" % (_FIRST, text)))


def _read_samples(
    parts: Sequence[bytes], starts: Sequence[int], reading: Reading
) -> tuple[list[Sequence[float]], list[Sequence[float]]]:
    """Return values and times of each series. Raises ValueError."""
    if not reading.values and not reading.times:
        last = [(float(part[part.rfind(b'"', start, -3) + 1 : -3]),) for part, start in zip(parts, starts, strict=True)]
        return [*last], [()] * len(parts)
    quoted = [part[start:].split(b'"') for part, start in zip(parts, starts, strict=True)]
    times: list[Sequence[float]] = [()] * len(parts)
    if reading.times:
        times = [[float(time.lstrip(b"],[")[:-1]) for time in each[:-1:2]] for each in quoted]
    return [[*map(float, each[1::2])] for each in quoted], times


def _parse_series(request: bytes) -> Iterator[Series]:
    """Return the series of a request in any form of JSON, parsed one after another."""
    try:
        text = request.decode()
        place, end = len(HEAD), len(text) - len(TAIL)
        while place < end:
            if text[place] in ", \t\r\n":
                place += 1
                continue
            element, place = _decode(text, place)
            yield _of(element)
    except (ValueError, RecursionError):
        raise _make_no_series_error() from None


def _loads(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise _make_no_series_error() from None


def _of(element: Any) -> Series:
    try:
        labels = _read_labels(element.get("metric") or {})
        if "value" in element:
            time, value = element["value"]
            return labels, (float(value),), (float(time),)
        samples = element.get("values") or ()
        return labels, [float(value) for _, value in samples], [float(time) for time, _ in samples]
    except (TypeError, ValueError, AttributeError):
        raise _make_no_series_error() from None


def _read_labels(labels: dict[str, Any]) -> dict[str, str]:
    for value in labels.values():
        if type(value) is not str:
            raise ValueError
    return labels


def _make_no_series_error() -> CycleError:
    return CycleError(
        "score",
        "bad_answer",
        'the source\'s answer has what is no series {"metric":{...},"values":[[time,"value"],...]}',
    )
