"""Row format of the last cycles of a pair. The format is compact because fifty rows per pair are most of Redis' data.

A row is one line of space-separated fields:

    <run>[<outcome>] <timings> <counts> <value>[ <stage> <reason> <message>]

    q83HSw.0aq8FW 1X,3G,c 1A,RZ8,RZ8,a 4.5

A row without an outcome is `ok`, and ends after the value. Integers are in base 64: the run id (seven digits of
milliseconds, six digits of random bits), the timings of fetch, score and publish in units of 100 microseconds, and the
counts in the order of `COUNTS`. Other counts follow as `name=number`. Missing fields are empty, with one exception: the
count of items is empty if it equals the count of results, and `-` if there are results but no count of items.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Final

from pydantic import BaseModel, ConfigDict, FiniteFloat

from dsf.messages import STAGES

#: Counts of a cycle, in the order in which they are stored and displayed. Append new counts, because stored rows depend
#: on the order.
COUNTS: Final = ("series", "bytes_in", "bytes_out", "results", "items", "refused", "clamped", "retries", "held")
_BASE64_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_."
_DIGIT_VALUES: Final = {digit: value for value, digit in enumerate(_BASE64_DIGITS)}
#: Timings are stored in units of 100 microseconds.
_TIMING_UNITS_PER_SECOND: Final = 10_000
# Numbers of base-64 digits for the random bits and for the milliseconds of a run id.
_RANDOM_DIGITS, _TIME_DIGITS = 6, 7
_RUN_DIGITS: Final = _TIME_DIGITS + _RANDOM_DIGITS
# Stands for a missing count of items in a row with a count of results.
_NO_ITEMS_MARK: Final = "-"


class HistoryEntry(BaseModel):
    """A past cycle. `at` is its scheduled time in unix seconds, and `timings` has seconds by stage."""

    model_config = ConfigDict(frozen=True)

    run: str
    at: float
    outcome: str
    stage: str = ""
    reason: str = ""
    message: str = ""
    timings: dict[str, float] = {}
    counts: dict[str, int] = {}
    #: Number that represents the score of the cycle: its only item, or the mean of its items; None without a score.
    value: FiniteFloat | None = None

    def dump(self) -> str:
        """Return the row to store. The run id implies `at`, and timings are rounded to 100 microseconds."""
        milliseconds, _, bits = self.run.partition("-")
        cause_fields = [self.stage, self.reason, self.message] if self.stage or self.reason or self.message else []
        timings = [
            _encode(round(self.timings[name] * _TIMING_UNITS_PER_SECOND)) if name in self.timings else ""
            for name in STAGES
        ]
        counts = {name: _encode(self.counts[name]) for name in COUNTS if name in self.counts}
        if "results" in counts:
            items = counts.get("items", _NO_ITEMS_MARK)
            counts["items"] = "" if items == counts["results"] else items
        run = _encode(int(milliseconds)).zfill(_TIME_DIGITS) + _encode(int(bits, 16)).zfill(_RANDOM_DIGITS)
        fields = [
            run if self.outcome == "ok" and not cause_fields else run + self.outcome,
            ",".join(timings).rstrip(","),
            ",".join(
                [",".join(counts.get(name, "") for name in COUNTS).rstrip(","), *_format_other_counts(self.counts)]
            ),
            "" if self.value is None else f"{self.value:.6g}",
        ]
        return " ".join([*fields, *cause_fields])


def parse_row(row: str) -> HistoryEntry | None:
    """Return the cycle of this row, or None if the row is unreadable, such as a row of a later version."""
    try:
        return _parse_row(row)
    except ValueError:
        return None


def parse_run_id(row: str) -> str:
    """Return the run id of this row, or an empty string if it is unreadable. The other fields are not parsed."""
    try:
        return _parse_run(row.partition(" ")[0])[0]
    except ValueError:
        return ""


def _parse_run(text: str) -> tuple[str, int]:
    """Return (run id at the start of the text, its time in unix milliseconds). Raises ValueError for other text."""
    if len(text) < _RUN_DIGITS:
        raise ValueError(f"not a run: {text!r}")
    milliseconds, bits = _decode(text[:_TIME_DIGITS]), _decode(text[_TIME_DIGITS:_RUN_DIGITS])
    return f"{milliseconds:013d}-{bits:08x}", milliseconds


def _parse_row(row: str) -> HistoryEntry:
    # Split at the first six spaces only, because the message, which is the last field, may contain spaces.
    run_field, timings, counts, value, *cause_fields = row.split(" ", 6)
    run, milliseconds = _parse_run(run_field)
    stage, reason, message = cause_fields or ("", "", "")
    text_by_count = dict(_split_numbers(COUNTS, counts))
    if "results" in text_by_count and text_by_count.setdefault("items", text_by_count["results"]) == _NO_ITEMS_MARK:
        del text_by_count["items"]
    return HistoryEntry(
        run=run,
        at=milliseconds / 1000,
        outcome=run_field[_RUN_DIGITS:] or "ok",
        stage=stage,
        reason=reason,
        message=message,
        timings={name: _decode(text) / _TIMING_UNITS_PER_SECOND for name, text in _split_numbers(STAGES, timings)},
        counts={name: _decode(text) for name, text in text_by_count.items()},
        value=float(value) if value else None,
    )


def _split_numbers(names: Sequence[str], text: str) -> Iterator[tuple[str, str]]:
    """Yield (name, number) of a comma-separated list. `names` names the numbers without a name, by their position."""
    for positional_name, part in zip_longest(names, text.split(","), fillvalue=""):
        name, equals_sign, number = part.rpartition("=")
        if number:
            yield (name if equals_sign else positional_name), number


def _format_other_counts(counts: Mapping[str, int]) -> list[str]:
    return [f"{name}={_encode(number)}" for name, number in counts.items() if name not in COUNTS]


def _encode(number: int) -> str:
    """Return the number in base 64."""
    text = ""
    while number or not text:
        number, digit = divmod(number, len(_BASE64_DIGITS))
        text = _BASE64_DIGITS[digit] + text
    return text


def _decode(text: str) -> int:
    """Return the number that `text` represents in base 64. Raises ValueError for other text."""
    number = 0
    for digit in text:
        if digit not in _DIGIT_VALUES:
            raise ValueError(f"not a digit: {digit!r}")
        number = number * len(_BASE64_DIGITS) + _DIGIT_VALUES[digit]
    return number
