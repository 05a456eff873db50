"""Parses the body of a scoring request into series.

Almost all of a body is samples, so samples bypass the JSON parser: the samples of each series are cut out of the
bytes, the remaining body is parsed as JSON, and the samples of a series are parsed as one flat list of numbers. This
takes less than half of the time, and no Python object per sample outlives its series.
The shortcut works for JSON without blanks, as Prometheus writes it, and for JSON with the blanks that Python's json
writes. Values may be text or numbers. A body in any other format is parsed whole as JSON.
"""

from __future__ import annotations

import math
import reprlib
import secrets
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from pydantic_core import from_json

from dsf.scorer.errors import RefusedError
from dsf.scorer.series import Series

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dsf.scorer.limits import Limits

_END = b"]]"
#: Maximum commas between the labels of one series. Samples have further commas: one inside and one after each sample.
_MAX_COMMAS = 512
#: First bytes of a character beyond U+FFFF: in UTF-8, and as an escape.
_WIDE_BYTES = range(0xF0, 0xF5)
_WIDE_ESCAPES = b"\\ud", b"\\uD"
# Replaces samples that were cut out. Senders cannot guess it.
_NONCE = secrets.token_hex(16)

#: The year 2255: larger values are milliseconds, and pandas cannot read them.
MAX_TIME = 9_000_000_000

_NUMBER = b"0123456789.+-eENaInf"
_NUMBER_TEXT = _NUMBER.decode() + ","
#: `[1718600000,"0.5"],` and `[1718600000,0.5],` without the numbers.
_SHAPES = b'[,""],', b"[,],"

Body = bytes | bytearray


class _Style(NamedTuple):
    """The formatting of samples: the key before a series' samples, and the text between two samples."""

    # No JSON string can contain the key, because its quotes would be escaped there.
    key: bytes
    separator: bytes

    @property
    def start(self) -> bytes:
        return self.key + b"[["


_STYLES = _Style(b'"values":', b"],["), _Style(b'"values": ', b"], [")

#: Start and end of a series' samples in the body.
Place = tuple[int, int]
Arrays = tuple["NDArray[np.float64]", "NDArray[np.float64]"]


def parse(body: Body, limits: Limits) -> list[Series]:
    """Return the series in `{"data":[{"metric":{...},"values":[[t,"v"],...]},...]}`.

    A null instead of a list or of labels means an empty one, because Go encodes a nil slice or map as null.
    Raises RefusedError: 400 for no JSON, 422 for JSON of another structure, 413 for more than `limits` allow.
    """
    document, arrays = _parse_document(body, limits)
    return _make_all_series("data", _get_data(document), arrays)


def parse_sources(body: Body, limits: Limits, names: Collection[str]) -> dict[str, list[Series]]:
    """Return the series of each source in `{"data":[...],"sources":{"name":[{"metric":...},...],...}}`.

    The sources in `names` are required; further sources are allowed. `data` is ignored: it is a copy of the first
    source. Raises RefusedError as `parse` does.
    """
    document, arrays = _parse_document(body, limits, len(names))
    _get_data(document)
    sources = _get_value(document, "sources", {})
    if not isinstance(sources, dict):
        problem = "it has no sources" if sources is None else "sources is no object"
        raise RefusedError(
            422,
            f'the request is not {{"data": [...], "sources": {{name: [...]}}}}, {problem}: this scorer takes several '
            "sources; they are named in `sources` of /config or the DynamicScorer, and an old agent does not ask them",
        )
    for name in names:
        if name not in sources:
            raise RefusedError(422, f"the request has no source {name!r}; it has {', '.join(sources)[:200] or 'none'}")
    by_source: dict[str, list[Series]] = {}
    for name, data in sources.items():
        if data is None:
            # A null is an empty list, as for `data`.
            by_source[name] = []
            continue
        # Shortened, because it is part of the location of each series.
        path = f"sources[{reprlib.repr(name)}]"
        if not isinstance(data, list):
            raise _make_refusal(path, "is not a list of series")
        by_source[name] = _make_all_series(path, data, arrays)
    all_series = [item for series in by_source.values() for item in series]
    _check_counts(limits, len(all_series), sum(map(len, all_series)))
    return by_source


def _parse_document(body: Body, limits: Limits, source_count: int = 0) -> tuple[dict[str, Any], list[Arrays]]:
    """Return the request without its samples, and the samples.

    The brackets bound the cost of parsing, because each series and each sample has brackets. Brackets in labels count
    as well, which matters only close to the limits. A request with several sources has the first of them twice, and
    this source may be almost all of the request: the bounds are then twice as large.
    """
    copies = 2 if source_count else 1
    brackets = (body.count(b"[") - 1 - source_count) // copies
    _check_counts(limits, body.count(b"{") // (2 * copies), brackets - limits.series)
    if body.count(b",") > 2 * body.count(b"[") + _MAX_COMMAS * (body.count(b"{") + 1):
        raise RefusedError(413, "the request has values that are neither samples nor labels, and too many of them")
    style = next((style for style in _STYLES if style.start in body), _STYLES[0])
    remaining_body, sample_places = _cut(body, style)
    if len(sample_places) == 0 or (arrays := _parse_arrays(body, sample_places, style)) is None:
        remaining_body, arrays = body, []
    _check_labels(remaining_body, limits)
    try:
        document = from_json(remaining_body, allow_inf_nan=False)
    except (ValueError, RecursionError) as error:
        raise RefusedError(400, f"the request is not JSON: {error}") from None
    return document if isinstance(document, dict) else {}, arrays


def _make_all_series(path: str, elements: list[Any], arrays: Sequence[Arrays]) -> list[Series]:
    return [_make_series(f"{path}[{index}]", element, arrays) for index, element in enumerate(elements)]


def _check_counts(limits: Limits, series_count: int, sample_count: int) -> None:
    for unit, count, limit in (("series", series_count, limits.series), ("samples", sample_count, limits.samples)):
        if count > limit:
            raise RefusedError(413, f"the request has more than {limit} {unit}, the most that this scorer takes")


def _check_labels(remaining_body: Body, limits: Limits) -> None:
    """Bound the memory of all that is parsed as Python objects.

    Each comma precedes a value, and each bracket is one, of some 100 bytes.
    """
    if remaining_body.count(b",") + remaining_body.count(b"[") > limits.labels + remaining_body.count(b"{"):
        raise RefusedError(
            413,
            f"the request has more than {limits.labels} labels, the most that this scorer takes; a comma in a label "
            "counts as a label, and a sample that is not written as Prometheus does, without blanks, as three",
        )
    # Python stores a text with such a character in four bytes per character.
    is_wide = any(byte in remaining_body for byte in _WIDE_BYTES) or any(
        escape in remaining_body for escape in _WIDE_ESCAPES
    )
    if is_wide and len(remaining_body) > limits.bytes // 2:
        raise RefusedError(
            413,
            f"the request has more than {limits.bytes // 2} bytes besides samples, the most that this scorer takes if "
            "labels have characters beyond U+FFFF",
        )


def _cut(body: Body, style: _Style) -> tuple[Body, list[Place]]:
    """Return the body with a placeholder for the samples of each series, and where these samples are in the body."""
    pieces: list[Body] = []
    sample_places: list[Place] = []
    position = 0
    while (start := body.find(style.start, position)) >= 0 and (end := body.find(_END, start)) >= 0:
        pieces += [body[position : start + len(style.key)], f'"{_NONCE}{len(sample_places)}"'.encode()]
        sample_places.append((start + len(style.start) - 1, end + 1))
        position = end + len(_END)
    pieces.append(body[position:])
    return b"".join(pieces), sample_places


def _parse_arrays(body: Body, sample_places: list[Place], style: _Style) -> list[Arrays] | None:
    """Return the arrays of `[t,"v"],[t,"v"]` or `[t,v],[t,v]` texts; None when one of them differs."""
    arrays: list[Arrays] = []
    for start, end in sample_places:
        count = body.count(style.separator, start, end) + 1
        times, values = np.empty(count), np.empty(count)
        filled_count = 0
        # Piece by piece, because numbers as Python objects take several times the memory of their text.
        for text in _split_pieces(body, start, end, style.separator):
            numbers = _parse_flat(text)
            if numbers is None or filled_count + numbers.size // 2 > count:
                return None
            (
                times[filled_count : filled_count + numbers.size // 2],
                values[filled_count : filled_count + numbers.size // 2],
            ) = numbers[0::2], numbers[1::2]
            filled_count += numbers.size // 2
        if filled_count != count or not _are_times(times):
            return None
        arrays.append((times, _replace_infinite(values)))
    return arrays


def _split_pieces(body: Body, start: int, end: int, separator: bytes) -> Iterator[Body]:
    """Yield pieces of about 256 KiB, each of whole samples."""
    while start < end:
        separator_start = body.find(separator, start + 256 * 1024, end)
        stop = end if separator_start < 0 else separator_start + 1
        piece = body[start:stop]
        # Blanks within a value are removed too. That changes no number, because a number has no comma.
        yield piece.replace(b", ", b",") if separator == _STYLES[1].separator else piece
        start = stop + len(separator) - 2 if separator_start >= 0 else end


def _parse_flat(text: Body) -> NDArray[np.float64] | None:
    """Return the numbers of `[t,"v"],[t,"v"]` or `[t,v],[t,v]`; None for anything else."""
    shape = text.translate(None, _NUMBER)
    kind = next((kind for kind in _SHAPES if shape == (kind * ((len(shape) + 1) // len(kind)))[:-1]), None)
    if kind is None:
        return None
    number_text = text.translate(None, b'[]"')
    parsed_numbers = _parse_floats(number_text, is_text=kind == _SHAPES[0])
    return (
        parsed_numbers
        if parsed_numbers is not None
        and parsed_numbers.size == number_text.count(b",") + 1
        and parsed_numbers.size % 2 == 0
        else None
    )


def _parse_floats(text: Body, *, is_text: bool) -> NDArray[np.float64] | None:
    """Return the numbers of `1718600000,0.5,...`; None for anything else.

    Values that were text (`is_text`) may also be infinite or NaN.
    """
    try:
        # Four times as fast as float(), but does not accept +Inf.
        return np.array(from_json(b"[" + text + b"]", allow_inf_nan=is_text), dtype=np.float64)
    except (ValueError, OverflowError):
        if not is_text:
            return None
    try:
        return np.array([float(number) for number in text.split(b",")], dtype=np.float64)
    except ValueError:
        return None


def _get_data(document: dict[str, Any]) -> list[Any]:
    data = _get_value(document, "data", [])
    if not isinstance(data, list):
        raise RefusedError(422, 'the request is not {"data": [...]}')
    return data


def _get_value(element: dict[str, Any], name: str, empty_value: Any) -> Any:
    """Return the value of a key, or `empty_value` for null; None when the key is missing."""
    value = element.get(name)
    return empty_value if value is None and name in element else value


def _make_series(path: str, element: Any, arrays: Sequence[Arrays]) -> Series:
    if not isinstance(element, dict):
        raise _make_refusal(path, "is not an object")
    labels = _get_value(element, "metric", {})
    if not isinstance(labels, dict):
        raise _make_refusal(f"{path}.metric", "is not an object of labels")
    for name, value in labels.items():
        if type(value) is not str or value.startswith(_NONCE):
            raise _make_refusal(f"{path}.metric[{reprlib.repr(name)}]", "is not text")
    values = _get_value(element, "values", [])
    if values is None and "histograms" in element:
        # A series of native histograms, as Prometheus sends them, has no plain samples.
        values = []
    if type(values) is str and values.startswith(_NONCE):
        times, numbers = _get_array(f"{path}.values", values[len(_NONCE) :], arrays)
    elif isinstance(values, list):
        times, numbers = _convert_samples(f"{path}.values", values)
    else:
        raise _make_refusal(f"{path}.values", "is not a list of [unix seconds, value]")
    return Series(labels, times, numbers)


def _get_array(path: str, array_number: str, arrays: Sequence[Arrays]) -> Arrays:
    try:
        return arrays[int(array_number)]
    except (ValueError, IndexError):
        raise _make_refusal(path, "is not a list of [unix seconds, value]") from None


def _convert_samples(path: str, samples: list[Any]) -> Arrays:
    times = np.empty(len(samples), dtype=np.float64)
    values = np.empty(len(samples), dtype=np.float64)
    for index, sample in enumerate(samples):
        if not isinstance(sample, list) or len(sample) != 2:
            raise _make_refusal(f"{path}[{index}]", "is not [unix seconds, value]")
        time, value = sample
        if type(time) not in (int, float):
            raise _make_refusal(f"{path}[{index}][0]", "is not a number of seconds")
        times[index] = _check_finite(time)
        values[index] = _check_number(f"{path}[{index}][1]", value)
    if not _are_times(times):
        raise _make_refusal(path, f"has a time beyond {MAX_TIME}, which is no unix seconds; milliseconds perhaps?")
    return times, _replace_infinite(values)


def _check_number(path: str, value: Any) -> float:
    # Prometheus writes values as text. Numbers are accepted too, for handwritten requests.
    if type(value) in (int, float):
        return _check_finite(value)
    if type(value) is str and not value.strip(_NUMBER_TEXT):
        try:
            return float(value)
        except ValueError:
            pass
    raise _make_refusal(path, 'is not a number as text, such as "0.5" or "NaN"')


def _check_finite(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        # An integer of more than 308 digits exceeds the range of float.
        return math.inf


def _are_times(times: NDArray[np.float64]) -> bool:
    # NaN compares as greater, so it is refused.
    return bool((np.abs(times) <= MAX_TIME).all())


def _replace_infinite(values: NDArray[np.float64]) -> NDArray[np.float64]:
    values[~np.isfinite(values)] = np.nan
    return values


def _make_refusal(path: str, problem: str) -> RefusedError:
    return RefusedError(422, f"{path} {problem}")
