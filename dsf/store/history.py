"""The last cycles of a pair, and their row format: fifty rows per pair are most of Redis' data.

A row is one line of space-separated fields:

    <run>[<outcome>] <timings> <counts> <value>[ <stage> <reason> <message>]

    q83HSw.0aq8FW 1X,3G,c 1A,RZ8,RZ8,a 4.5

No outcome is `ok`, without what follows the value. Integers are in base 64: the run id (seven digits of milliseconds,
six of random bits), the timings of fetch, score and publish in units of 100 microseconds, and the counts in the order
of `COUNTS`; other counts follow as `name=number`. Missing fields are empty, but as many items as results are left out,
and no items beside results are `-`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Final

from pydantic import BaseModel, ConfigDict, FiniteFloat

from dsf.messages import STAGES

# The order is part of the stored format: new ones go last.
#: Counts of a cycle, in the order in which they are stored and shown.
COUNTS: Final = ("series", "bytes_in", "bytes_out", "results", "items", "refused", "clamped", "retries", "held")
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_."
_VALUES: Final = {digit: value for value, digit in enumerate(_DIGITS)}
#: Timings per second.
_UNITS: Final = 10_000
# Digits of a run id's random bits, and the least of its milliseconds.
_BITS, _MILLISECONDS = 6, 7
_RUN: Final = _MILLISECONDS + _BITS
# Instead of a number of items.
_NO_ITEMS: Final = "-"


class HistoryEntry(BaseModel):
    """A past cycle. `at` is when it was scheduled (unix seconds), timings are seconds per stage."""

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
    value: FiniteFloat | None = None

    def row(self) -> str:
        """Return the stored row, without `at`, which the run id implies; timings are rounded to 100 microseconds."""
        milliseconds, _, bits = self.run.partition("-")
        why = [self.stage, self.reason, self.message] if self.stage or self.reason or self.message else []
        timings = [_packed(round(self.timings[name] * _UNITS)) if name in self.timings else "" for name in STAGES]
        counts = {name: _packed(self.counts[name]) for name in COUNTS if name in self.counts}
        if "results" in counts:
            items = counts.get("items", _NO_ITEMS)
            counts["items"] = "" if items == counts["results"] else items
        run = _packed(int(milliseconds)).zfill(_MILLISECONDS) + _packed(int(bits, 16)).zfill(_BITS)
        fields = [
            run if self.outcome == "ok" and not why else run + self.outcome,
            ",".join(timings).rstrip(","),
            ",".join([",".join(counts.get(name, "") for name in COUNTS).rstrip(","), *_others(self.counts)]),
            "" if self.value is None else f"{self.value:.6g}",
        ]
        return " ".join([*fields, *why])


def read_row(row: str) -> HistoryEntry | None:
    """Return the cycle of this row; None if unreadable, e.g. of a later version."""
    try:
        return _unpacked(row)
    except ValueError:
        return None


def run_of(row: str) -> str:
    """Only the run id of this row; empty if unreadable."""
    try:
        return _run(row.partition(" ")[0])[0]
    except ValueError:
        return ""


def _run(packed: str) -> tuple[str, int]:
    """Return a run id, and its milliseconds."""
    if len(packed) < _RUN:
        raise ValueError(f"not a run: {packed!r}")
    milliseconds, bits = _number(packed[:_MILLISECONDS]), _number(packed[_MILLISECONDS:_RUN])
    return f"{milliseconds:013d}-{bits:08x}", milliseconds


def _unpacked(row: str) -> HistoryEntry:
    # The message, after six fields, alone may contain spaces.
    first, timings, counts, value, *why = row.split(" ", 6)
    run, milliseconds = _run(first)
    stage, reason, message = why or ("", "", "")
    by_name = dict(_given(COUNTS, counts))
    if "results" in by_name and by_name.setdefault("items", by_name["results"]) == _NO_ITEMS:
        del by_name["items"]
    return HistoryEntry(
        run=run,
        at=milliseconds / 1000,
        outcome=first[_RUN:] or "ok",
        stage=stage,
        reason=reason,
        message=message,
        timings={name: _number(text) / _UNITS for name, text in _given(STAGES, timings)},
        counts={name: _number(text) for name, text in by_name.items()},
        value=float(value) if value else None,
    )


def _given(names: Sequence[str], text: str) -> Iterator[tuple[str, str]]:
    """The numbers present in a list: positional ones by position, the others by name."""
    for place, part in zip_longest(names, text.split(","), fillvalue=""):
        name, is_named, number = part.rpartition("=")
        if number:
            yield (name if is_named else place), number


def _others(counts: Mapping[str, int]) -> list[str]:
    return [f"{name}={_packed(number)}" for name, number in counts.items() if name not in COUNTS]


def _packed(number: int) -> str:
    """In base 64."""
    text = ""
    while number or not text:
        number, digit = divmod(number, len(_DIGITS))
        text = _DIGITS[digit] + text
    return text


def _number(packed: str) -> int:
    """From base 64. Raises ValueError if it is none."""
    number = 0
    for digit in packed:
        if digit not in _VALUES:
            raise ValueError(f"not a digit: {digit!r}")
        number = number * len(_DIGITS) + _VALUES[digit]
    return number
