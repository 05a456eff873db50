"""Parses the body of a scoring request into series.

A body is almost all samples, so they bypass the JSON parser: the samples of each series are cut out of the
bytes, the rest is parsed as JSON, and the samples of a series are parsed as one flat list of numbers. That takes
less than half of the time, and no Python object per sample outlives its series.
The shortcut works for JSON without blanks, as Prometheus writes it, and with those that Python's json writes, and for
values as text and as numbers. Any other format of the same JSON uses the parser.
"""

from __future__ import annotations

import math
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
#: Maximum commas in an object, where they separate labels. A sample has one comma, and one follows it.
_MAX_COMMAS = 512
#: Maximum samples in a format that the shortcut does not know. As Python objects, each takes some 200 bytes.
_MAX_JSON_SAMPLES = 1_000_000
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
    """The formatting of samples: the text before a series' first sample, and the text between two samples."""

    # No JSON string can contain this: its quotes would be escaped.
    key: bytes
    between: bytes

    @property
    def start(self) -> bytes:
        return self.key + b"[["


_STYLES = _Style(b'"values":', b"],["), _Style(b'"values": ', b"], [")

#: Start and end of a series' samples in the body.
Place = tuple[int, int]
Arrays = tuple["NDArray[np.float64]", "NDArray[np.float64]"]


def parse(body: Body, limits: Limits) -> list[Series]:
    """Return the series in `{"data":[{"metric":{...},"values":[[t,"v"],...]},...]}`.

    A null instead of a list or of labels is an empty one: Go encodes a nil slice or map so.
    Raises RefusedError: 400 for no JSON, 422 for JSON of another shape, 413 for more than `limits` allow.
    """
    document, arrays = _parse_document(body, limits)
    return _make_all_series("data", _get_data(document), arrays)


def parse_sources(body: Body, limits: Limits, names: Collection[str]) -> dict[str, list[Series]]:
    """Return the series of each source in `{"data":[...],"sources":{"name":[{"metric":...},...],...}}`.

    `names` are required; others are allowed. `data`, a copy of the first of them, is ignored. Raises
    RefusedError as `parse` does.
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
            raise RefusedError(422, f"the request has no source {name!r}; it has {', '.join(sources) or 'none'}")
    by_source: dict[str, list[Series]] = {}
    for name, data in sources.items():
        if data is None:
            # A null is an empty list, as for `data`.
            by_source[name] = []
            continue
        if not isinstance(data, list):
            raise _make_refusal(f"sources[{name!r}]", "is not a list of series")
        by_source[name] = _make_all_series(f"sources[{name!r}]", data, arrays)
    all_series = [item for series in by_source.values() for item in series]
    _check_counts(limits, len(all_series), sum(map(len, all_series)))
    return by_source


def _parse_document(body: Body, limits: Limits, sources: int = 0) -> tuple[dict[str, Any], list[Arrays]]:
    """Return the request without its samples, and these.

    Bounds the cost of parsing by the brackets: each series and sample has some. Brackets in labels count as well, which
    matters only close to the limits. Of several sources, one may be all and is there twice.
    """
    copies = 2 if sources else 1
    brackets = (body.count(b"[") - 1 - sources) // copies
    _check_counts(limits, body.count(b"{") // (2 * copies), brackets - limits.series)
    if body.count(b",") > 2 * body.count(b"[") + _MAX_COMMAS * (body.count(b"{") + 1):
        raise RefusedError(413, "the request has values that are neither samples nor labels, and too many of them")
    style = next((style for style in _STYLES if style.start in body), _STYLES[0])
    rest, places = _cut(body, style)
    if len(places) == 0 or (arrays := _parse_arrays(body, places, style)) is None:
        rest, arrays = body, []
    if rest.count(b"[") - 1 - sources - copies * limits.series > copies * _MAX_JSON_SAMPLES:
        raise RefusedError(
            413,
            f"the request has more than {_MAX_JSON_SAMPLES} samples in a format that takes much memory; write them as "
            "Prometheus does, without blanks",
        )
    try:
        document = from_json(rest, allow_inf_nan=False)
    except (ValueError, RecursionError) as error:
        raise RefusedError(400, f"the request is not JSON: {error}") from None
    return document if isinstance(document, dict) else {}, arrays


def _make_all_series(where: str, elements: list[Any], arrays: Sequence[Arrays]) -> list[Series]:
    return [_make_series(f"{where}[{index}]", element, arrays) for index, element in enumerate(elements)]


def _check_counts(limits: Limits, series: int, samples: int) -> None:
    for what, count, limit in (("series", series, limits.series), ("samples", samples, limits.samples)):
        if count > limit:
            raise RefusedError(413, f"the request has more than {limit} {what}, the most that this scorer takes")


def _cut(body: Body, style: _Style) -> tuple[Body, list[Place]]:
    """Return the body with a placeholder for each array of samples, and the places of these arrays."""
    pieces: list[Body] = []
    places: list[Place] = []
    position = 0
    while (start := body.find(style.start, position)) >= 0 and (end := body.find(_END, start)) >= 0:
        pieces += [body[position : start + len(style.key)], f'"{_NONCE}{len(places)}"'.encode()]
        places.append((start + len(style.start) - 1, end + 1))
        position = end + len(_END)
    pieces.append(body[position:])
    return b"".join(pieces), places


def _parse_arrays(body: Body, places: list[Place], style: _Style) -> list[Arrays] | None:
    """Return the arrays of `[t,"v"],[t,"v"]` or `[t,v],[t,v]` texts; None when one of them differs."""
    arrays: list[Arrays] = []
    for start, end in places:
        count = body.count(style.between, start, end) + 1
        times, values = np.empty(count), np.empty(count)
        filled = 0
        # A piece at a time: as Python objects, the numbers take several times the memory of their text.
        for text in _split_pieces(body, start, end, style.between):
            flat = _parse_flat(text)
            if flat is None or filled + flat.size // 2 > count:
                return None
            times[filled : filled + flat.size // 2], values[filled : filled + flat.size // 2] = flat[0::2], flat[1::2]
            filled += flat.size // 2
        if filled != count or not _are_times(times):
            return None
        arrays.append((times, _replace_infinite(values)))
    return arrays


def _split_pieces(body: Body, start: int, end: int, between: bytes) -> Iterator[Body]:
    """Yield pieces of about 256 KiB with whole samples, which are parsed at a time."""
    while start < end:
        cut = body.find(between, start + 256 * 1024, end)
        stop = end if cut < 0 else cut + 1
        piece = body[start:stop]
        # A value with this text inside is no number in any case.
        yield piece.replace(b", ", b",") if between == _STYLES[1].between else piece
        start = stop + len(between) - 2 if cut >= 0 else end


def _parse_flat(text: Body) -> NDArray[np.float64] | None:
    """Return the numbers of `[t,"v"],[t,"v"]` or `[t,v],[t,v]`; None for anything else."""
    shape = text.translate(None, _NUMBER)
    kind = next((kind for kind in _SHAPES if shape == (kind * ((len(shape) + 1) // len(kind)))[:-1]), None)
    if kind is None:
        return None
    numbers = text.translate(None, b'[]"')
    flat = _parse_floats(numbers, is_text=kind == _SHAPES[0])
    return flat if flat is not None and flat.size == numbers.count(b",") + 1 and flat.size % 2 == 0 else None


def _parse_floats(text: Body, *, is_text: bool) -> NDArray[np.float64] | None:
    """Return the numbers of `1718600000,0.5,...`; None for anything else. As text, they may also be infinite or NaN."""
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


def _get_value(element: dict[str, Any], name: str, empty: Any) -> Any:
    """Return the value of a key, or `empty` for null; None when the key is missing."""
    value = element.get(name)
    return empty if value is None and name in element else value


def _make_series(where: str, element: Any, arrays: Sequence[Arrays]) -> Series:
    if not isinstance(element, dict):
        raise _make_refusal(where, "is not an object")
    labels = _get_value(element, "metric", {})
    if not isinstance(labels, dict):
        raise _make_refusal(f"{where}.metric", "is not an object of labels")
    for name, value in labels.items():
        if type(value) is not str or value.startswith(_NONCE):
            raise _make_refusal(f"{where}.metric[{name!r}]", "is not text")
    values = _get_value(element, "values", [])
    if values is None and "histograms" in element:
        # A series of native histograms, as Prometheus sends them, has no plain samples.
        values = []
    if type(values) is str and values.startswith(_NONCE):
        times, numbers = _get_array(f"{where}.values", values[len(_NONCE) :], arrays)
    elif isinstance(values, list):
        times, numbers = _convert_samples(f"{where}.values", values)
    else:
        raise _make_refusal(f"{where}.values", "is not a list of [unix seconds, value]")
    return Series(labels, times, numbers)


def _get_array(where: str, number: str, arrays: Sequence[Arrays]) -> Arrays:
    try:
        return arrays[int(number)]
    except (ValueError, IndexError):
        raise _make_refusal(where, "is not a list of [unix seconds, value]") from None


def _convert_samples(where: str, samples: list[Any]) -> Arrays:
    times = np.empty(len(samples), dtype=np.float64)
    values = np.empty(len(samples), dtype=np.float64)
    for index, sample in enumerate(samples):
        if not isinstance(sample, list) or len(sample) != 2:
            raise _make_refusal(f"{where}[{index}]", "is not [unix seconds, value]")
        time, value = sample
        if type(time) not in (int, float):
            raise _make_refusal(f"{where}[{index}][0]", "is not a number of seconds")
        times[index] = _check_finite(time)
        values[index] = _check_number(f"{where}[{index}][1]", value)
    if not _are_times(times):
        raise _make_refusal(where, f"has a time beyond {MAX_TIME}, which is no unix seconds; milliseconds perhaps?")
    return times, _replace_infinite(values)


def _check_number(where: str, value: Any) -> float:
    # Prometheus writes values as text. Numbers are accepted too, for handwritten requests.
    if type(value) in (int, float):
        return _check_finite(value)
    if type(value) is str and not value.strip(_NUMBER_TEXT):
        try:
            return float(value)
        except ValueError:
            pass
    raise _make_refusal(where, 'is not a number as text, such as "0.5" or "NaN"')


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


def _make_refusal(where: str, what: str) -> RefusedError:
    return RefusedError(422, f"{where} {what}")
