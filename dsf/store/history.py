"""The last cycles of a pair, and their row format: fifty rows per pair are most of Redis' data.

A row is one line of space-separated fields:

    <run> <outcome> <timings> <counts> <value>[ <stage> <reason> <message>]

    q83HSw.0aq8FW ok ji,AG,1X 1A,RZ8,RZ8,a,a 4.5

Integers are in base 64: both parts of the run id (milliseconds, then six digits of random bits), the timings of fetch,
score and publish in units of 10 microseconds, and the counts in the order of `_COUNTS`; other counts follow as
`name=number`. Missing fields are empty. Rows of an earlier version have base 36, microseconds, and a `-` between the
parts of the run id. Rows of versions before that, and of runs that were declared lost, are JSON of a HistoryEntry.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Final

from pydantic import BaseModel, ConfigDict

_STAGES: Final = ("fetch", "score", "publish")
# The order is part of the stored format: new ones go last.
_COUNTS: Final = ("series", "bytes_in", "bytes_out", "results", "items", "refused", "clamped", "retries")
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_."
_TWO_DIGITS: Final = tuple(first + second for first in _DIGITS for second in _DIGITS)
_VALUES: Final = {digit: value for value, digit in enumerate(_DIGITS)}
#: Timings per second, now and in base 36.
_UNITS, _OLD_UNITS = 100_000, 1_000_000
# Digits of a run id's random bits, and the least of its milliseconds.
_BITS, _MILLISECONDS = 6, 7
# Fields before the message, which alone may contain spaces.
_BEFORE_MESSAGE: Final = 7


class HistoryEntry(BaseModel):
    """One past cycle. `at` is when it was scheduled (unix seconds), timings are seconds per stage."""

    model_config = ConfigDict(frozen=True)

    run: str
    at: float
    outcome: str
    stage: str = ""
    reason: str = ""
    message: str = ""
    timings: dict[str, float] = {}
    counts: dict[str, int] = {}
    #: The number that represents the cycle's score, if any: its item, or the mean of its items.
    value: float | None = None

    def row(self) -> str:
        """The stored row, without `at`, which the run id implies; timings are cut to 10 microseconds."""
        milliseconds, _, bits = self.run.partition("-")
        timings = [_packed(round(self.timings[one] * _UNITS)) if one in self.timings else "" for one in _STAGES]
        counts = [_packed(self.counts[one]) if one in self.counts else "" for one in _COUNTS]
        fields = [
            _packed(int(milliseconds)).zfill(_MILLISECONDS) + _packed(int(bits, 16)).zfill(_BITS),
            self.outcome,
            ",".join(timings).rstrip(","),
            ",".join([",".join(counts).rstrip(","), *_others(self.counts)]),
            "" if self.value is None else f"{self.value:.6g}",
        ]
        if self.stage or self.reason or self.message:
            fields += [self.stage, self.reason, self.message]
        return " ".join(fields)


def read_row(row: str) -> HistoryEntry | None:
    """The cycle of this row; None if unreadable, e.g. of a later version."""
    try:
        return HistoryEntry.model_validate_json(row) if row.startswith("{") else _unpacked(row)
    except ValueError:
        return None


def run_of(row: str) -> str:
    """Only the run id of this row; empty if unreadable."""
    if row.startswith("{"):
        entry = read_row(row)
        return entry.run if entry else ""
    try:
        return _run(row.partition(" ")[0])[0]
    except ValueError:
        return ""


def _run(packed: str) -> tuple[str, int]:
    """A run id, and its milliseconds."""
    if _is_old(packed):
        milliseconds, bits = (int(part, 36) for part in packed.split("-"))
    elif len(packed) < _MILLISECONDS + _BITS:
        raise ValueError(f"not a run: {packed!r}")
    else:
        milliseconds, bits = _number(packed[:-_BITS]), _number(packed[-_BITS:])
    return f"{milliseconds:013d}-{bits:08x}", milliseconds


def _is_old(packed_run: str) -> bool:
    return "-" in packed_run


def _unpacked(row: str) -> HistoryEntry:
    packed, outcome, timings, counts, value, *why = row.split(" ", _BEFORE_MESSAGE)
    run, milliseconds = _run(packed)
    stage, reason, message = why or ("", "", "")
    number, units = (_old_number, _OLD_UNITS) if _is_old(packed) else (_number, _UNITS)
    return HistoryEntry(
        run=run,
        at=milliseconds / 1000,
        outcome=outcome,
        stage=stage,
        reason=reason,
        message=message,
        timings={name: number(text) / units for name, text in _given(_STAGES, timings)},
        counts={name: number(text) for name, text in _given(_COUNTS, counts)},
        value=float(value) if value else None,
    )


def _given(names: Sequence[str], text: str) -> Iterator[tuple[str, str]]:
    """The numbers present in a list: positional ones by position, the others by name."""
    for place, part in zip_longest(names, text.split(","), fillvalue=""):
        name, is_named, number = part.rpartition("=")
        if number:
            yield (name if is_named else place), number


def _others(counts: Mapping[str, int]) -> list[str]:
    return [f"{name}={_packed(number)}" for name, number in counts.items() if name not in _COUNTS]


def _packed(number: int) -> str:
    """In base 64."""
    text = ""
    while number >= len(_TWO_DIGITS):
        number, digits = divmod(number, len(_TWO_DIGITS))
        text = _TWO_DIGITS[digits] + text
    return (_TWO_DIGITS[number] if number >= len(_DIGITS) else _DIGITS[number]) + text


def _number(packed: str) -> int:
    """From base 64. Raises ValueError if it is none."""
    number = 0
    for digit in packed:
        if digit not in _VALUES:
            raise ValueError(f"not a digit: {digit!r}")
        number = number * len(_DIGITS) + _VALUES[digit]
    return number


def _old_number(packed: str) -> int:
    return int(packed, 36)
