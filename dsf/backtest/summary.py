"""What a backtest says of each item. Values are whole numbers from -100 to 100, so their counts take little room."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from pydantic import Field

from dsf.api.hold import Waiting, hold_back
from dsf.api.meta import rfc3339
from dsf.backtest.record import Question, Record
from dsf.fleet.views import Time, View
from dsf.store.registry import HoldRule
from dsf.text import listed

#: Most columns of a picture: moments beyond that share one, which shows the newest of them.
COLUMNS: Final = 480


class ItemView(View):
    """One item of the AddOnPlacementScore over time."""

    name: str
    minimum: int
    median: float
    maximum: int
    changes: int = Field(description="How often it differed by more than the noise from the moment before.")
    held_changes: int | None = Field(
        default=None,
        exclude_if=lambda value: value is None,
        description="The same with the hold that was asked about.",
    )
    missing: float = Field(description="Share of the moments without a value, from 0 to 1.")
    line: list[int | None] = Field(description="Its values over time, in at most 480 columns.")


class FailureCount(View):
    """Moments that failed for one reason."""

    stage: str
    reason: str
    moments: int
    message: str = Field(description="Of the newest.")


class BacktestView(View):
    """What a scorer would have said of one cluster."""

    scorer: str
    score_name: str
    cluster: str
    start: Time
    end: Time
    every: int = Field(description="Seconds between two moments.")
    asked: int = Field(description="Moments from start to end.")
    moments: int = Field(description="Those that were asked so far.")
    outcomes: dict[str, int] = Field(description="Moments by outcome: ok, empty, partial, error.")
    failures: list[FailureCount]
    noise: int
    items: list[ItemView] = Field(description="Those that changed most often first.")
    notes: list[str]


class BacktestList(View):
    """One for each cluster."""

    backtests: list[BacktestView]


class _Item:
    """Counts of values, the last value, and the line."""

    __slots__ = ("changes", "counts", "held", "held_changes", "last", "line")

    def __init__(self, columns: int) -> None:
        self.counts: Counter[int] = Counter()
        self.line: list[int | None] = [None] * columns
        self.last: int | None = None
        self.changes = 0
        #: The value that a hold had published last.
        self.held: int | None = None
        self.held_changes = 0

    def publish(self, value: int, noise: int) -> None:
        """The value that is in force with a hold."""
        if self.held is not None and abs(value - self.held) > noise:
            self.held_changes += 1
        self.held = value

    def add(self, value: int, column: int, noise: int) -> None:
        self.counts[value] += 1
        self.line[column] = value
        if self.last is not None and abs(value - self.last) > noise:
            self.changes += 1
        self.last = value

    def view(self, name: str, moments: int, *, is_held: bool) -> ItemView:
        return ItemView(
            name=name,
            minimum=min(self.counts),
            median=statistics.median(self.counts.elements()),
            maximum=max(self.counts),
            changes=self.changes,
            held_changes=self.held_changes if is_held else None,
            missing=round(1 - self.counts.total() / moments, 4),
            line=self.line,
        )


class _Hold:
    """What `spec.execution.hold` would have published, moment by moment."""

    def __init__(self, rule: HoldRule, validity: int) -> None:
        self._rule = rule
        self._validity = validity
        self._published: dict[str, int] = {}
        self._waiting: dict[str, Waiting] = {}
        self._at = 0

    def published(self, record: Record) -> dict[str, int]:
        """The items in force after this moment; none after one without a score."""
        if not record.items:
            return {}
        if record.at - self._at > self._validity:
            # Out of date: the next score is published as it comes.
            self._published, self._waiting = {}, {}
        rule = self._rule
        self._published, self._waiting = hold_back(
            self._published,
            record.items,
            self._waiting,
            record.at,
            min_change=rule.min_change,
            for_seconds=rule.for_seconds,
        )
        self._at = record.at
        return self._published


@dataclass
class _Seen:
    """From when to when the source had series; moments that failed say nothing of that."""

    first: int | None = None
    last: int = 0
    #: Moments without series before the first, and after the last.
    before: int = 0
    after: int = 0

    def add(self, record: Record) -> None:
        if record.series:
            if self.first is None:
                self.first, self.before = record.at, self.after
            self.last, self.after = record.at, 0
        elif record.outcome != "error":
            self.after += 1

    def notes(self) -> Iterator[str]:
        if self.first is None:
            if self.after:
                yield "the source had no series at any moment: see what it answers with `dsf explain`"
            return
        if self.before:
            yield (
                f"the source has no series before {_time(self.first)}: it keeps less than was asked for, or what the "
                "query reads did not exist yet"
            )
        if self.after:
            yield (
                f"the source has no series after {_time(self.last)}: what the query reads is gone, or the clock of "
                "this machine is ahead"
            )


def summarised(
    question: Question, asked: range, records: Iterable[Record], *, noise: int, hold: HoldRule | None = None
) -> BacktestView:
    """The summary of these records, which are in the order of time; `asked` are the moments until now.

    With `hold` it also counts the changes that this rule would have left.
    """
    held = _Hold(hold, question.validity) if hold is not None else None
    items: dict[str, _Item] = {}
    outcomes: Counter[str] = Counter()
    failures: dict[tuple[str, str], FailureCount] = {}
    columns = min(COLUMNS, len(asked))
    seen = _Seen()
    moments = later = 0
    for record in records:
        if record.at > asked[-1]:
            later += 1
            continue
        moments += 1
        seen.add(record)
        outcomes[record.outcome] += 1
        if record.outcome == "error":
            before = failures.get((record.stage, record.reason))
            failures[record.stage, record.reason] = FailureCount(
                stage=record.stage,
                reason=record.reason,
                moments=(before.moments if before else 0) + 1,
                message=record.message,
            )
        column = (record.at - asked.start) * columns // (len(asked) * asked.step)
        for name, value in record.items.items():
            if name not in items:
                items[name] = _Item(columns)
            items[name].add(value, column, noise)
        for name, value in (held.published(record) if held is not None else {}).items():
            items[name].publish(value, noise)
    views = [item.view(name, moments, is_held=held is not None) for name, item in items.items()]
    return BacktestView(
        scorer=question.scorer,
        score_name=question.score_name,
        cluster=question.cluster,
        start=asked.start,
        end=asked[-1],
        every=question.every,
        asked=len(asked),
        moments=moments,
        outcomes=dict(outcomes),
        failures=sorted(failures.values(), key=lambda failure: -failure.moments),
        noise=noise,
        items=sorted(views, key=lambda item: (-item.changes, item.name)),
        notes=[*_often(question), *seen.notes(), *_later(later)],
    )


def _often(question: Question) -> Iterator[str]:
    if steps := sorted({source.step for source in question.sources if source.step > question.every}):
        text = listed([f"{step} s" for step in steps], 3)
        yield (
            f"{question.every} s between two moments are less than the step of the source ({text}): neighbouring "
            "moments see nearly the same samples"
        )


def _later(moments: int) -> Iterator[str]:
    if moments:
        yield (
            f"{moments} moments of the file are still to come: the clock that made them was ahead, or this one is "
            "behind"
        )


def _time(at: int) -> str:
    return rfc3339(datetime.fromtimestamp(at, UTC))
