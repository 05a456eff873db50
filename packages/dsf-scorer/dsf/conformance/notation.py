"""Time series in the notation of promtool's tests: `node_load1{node="n1"}` and `0+1x10 _ 7 stale`.

    5            a sample
    5x3          4 samples of 5
    0+2x3        0 2 4 6; 6-2x3 is 6 4 2 0
    _  _x3       a sample that is missing, 3 of them
    stale        the series ended: missing too, as in the response of a range query

The notation is that of https://prometheus.io/docs/prometheus/latest/configuration/unit_testing_rules/#series, without
native histograms.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Any, Final

#: Maximum samples of a series: a range query of Prometheus returns at most this many.
MAX_SAMPLES: Final = 11_000
# Maximum characters of a series' labels, and of one item of its values.
_MAX_LABELS_LENGTH, _MAX_ITEM_LENGTH = 10_000, 200

_NUMBER = r"(?:(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[iI][nN][fF]|[nN][aA][nN])"
_ITEM_PATTERN = re.compile(
    rf"(?P<blank>_)|(?P<stale>stale)|(?P<value>[-+]?{_NUMBER})(?P<step>[-+]{_NUMBER}(?=x))?", re.ASCII
)
_OCTAL_PATTERN = re.compile(r"([-+]?)0([0-7]+)", re.ASCII)
_REPETITION_PATTERN = re.compile(r"x([0-9]+)", re.ASCII)
_NAME_PATTERN = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*", re.ASCII)
_LABEL_PATTERN = re.compile(
    r"""\s*(?P<name>[a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*
    (?P<value>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|`[^`]*`)\s*""",
    re.ASCII | re.VERBOSE,
)
_ESCAPE_PATTERN = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPED_CHARACTERS: Final = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", '"': '"', "'": "'"}


def parse_labels(text: str) -> dict[str, str]:
    """Return the labels of a series such as `up{job="a"}`. `__name__` is the metric's name. Raises ValueError."""
    if len(text) > _MAX_LABELS_LENGTH:
        raise ValueError(f"has more than {_MAX_LABELS_LENGTH} characters")
    name, brace, remaining_text = text.strip().partition("{")
    name = name.strip()
    labels: dict[str, str] = {}
    if name:
        if _NAME_PATTERN.fullmatch(name) is None:
            raise ValueError(f"{name[:100]!r} is no name of a metric")
        labels["__name__"] = name
    if not brace:
        if not name:
            raise ValueError('is empty; a series is such as up{job="a"} or {node="n1"}')
        return labels
    if not remaining_text.endswith("}"):
        raise ValueError("has no closing brace at its end")
    remaining_text = remaining_text[:-1]
    while remaining_text.strip():
        match = _LABEL_PATTERN.match(remaining_text)
        if match is None:
            raise ValueError(f'a label is such as node="n1", not {remaining_text.strip()[:100]!r}')
        if match["name"] in labels:
            raise ValueError(f"has the label {match['name']} twice")
        labels[match["name"]] = _unquote(match["value"])
        remaining_text = remaining_text[match.end() :]
        if remaining_text and not remaining_text.startswith(","):
            raise ValueError(f"a comma is missing before {remaining_text.strip()[:100]!r}")
        remaining_text = remaining_text[1:]
    # As in Prometheus, an empty label is the same as a missing one.
    return {label: value for label, value in labels.items() if value}


def parse_values(text: str) -> list[float | None]:
    """Return the samples in order, None for a missing sample.

    Raises ValueError, also for more than `MAX_SAMPLES` samples.
    """
    values: list[float | None] = []
    for item_text in text.split():
        item = _ITEM_PATTERN.match(item_text) if len(item_text) <= _MAX_ITEM_LENGTH else None
        repetition = None if item is None else _REPETITION_PATTERN.fullmatch(item_text, item.end())
        if item is None or not (repetition or item.end() == len(item_text)) or (item["step"] and not repetition):
            raise ValueError(f"{item_text[:100]!r} is not such as 5, 5x3, 0+2x3, _, _x3 or stale")
        # Reject counts of ten or more digits before the conversion, which is slow for long numbers.
        count = 0 if repetition is None else int(repetition[1]) if len(repetition[1]) < 10 else MAX_SAMPLES + 1
        # `5x3` has four samples: one for time 0 and three repetitions. `_x3` has three, and `_` without a count one.
        length = max(count, repetition is None) if item["blank"] else count + 1
        if len(values) + length > MAX_SAMPLES:
            raise ValueError(
                f"{item_text[:100]!r} makes more than {MAX_SAMPLES} samples, the most that a range query answers"
            )
        if item["blank"] or item["stale"]:
            values += [None] * length
            continue
        value, step = _parse_number(item["value"]), _parse_number(item["step"] or "0")
        for _ in range(length):
            values.append(value)
            # Add repeatedly, as promtool does, because a multiplication would round differently.
            value += step
    return values


def make_series(labels: dict[str, str], values: list[float | None], start: float, interval: float) -> dict[str, Any]:
    """Return a series of a scoring request, as a range query from `start` on returns it.

    `interval` is the step of the query in seconds.
    """
    timestamps = (start + number * interval for number in range(len(values)))
    samples = [
        [_simplify_time(timestamp), _format_value(value)]
        for timestamp, value in zip(timestamps, values, strict=True)
        if value is not None
    ]
    return {"metric": labels, "values": samples}


def _parse_number(text: str) -> float:
    octal = _OCTAL_PATTERN.fullmatch(text)
    # Parse numbers like Go: a 64-bit whole number with a leading zero is octal, any other number is decimal.
    if octal is not None and (number := int(octal[2], 8)) < 2**63:
        return float(f"{octal[1]}{number}")
    value = float(text)
    if math.isinf(value) and not text.lower().endswith("inf"):
        raise ValueError(f"{text[:100]} is too large for a sample")
    return value


def _simplify_time(timestamp: float) -> float | int:
    return int(timestamp) if float(timestamp).is_integer() else timestamp


def _format_value(value: float) -> str:
    """Return the value as Prometheus writes it, without an exponent."""
    if math.isfinite(value):
        return format(Decimal(repr(value)), "f").removesuffix(".0")
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def _unquote(text: str) -> str:
    if text.startswith("`"):
        return text[1:-1]

    def unescape(match: re.Match[str]) -> str:
        escape = match[1]
        if escape.startswith("u") and len(escape) > 1:
            return chr(int(escape[1:], 16))
        if escape not in _ESCAPED_CHARACTERS:
            raise ValueError(f"\\{escape} in {text[:100]} is not one of \\n \\t \\r \\\\ \\\" \\' \\uXXXX")
        return _ESCAPED_CHARACTERS[escape]

    return _ESCAPE_PATTERN.sub(unescape, text[1:-1])
