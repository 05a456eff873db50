"""Summarizes the records of a backtest by item."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from pydantic import Field

from dsf.api.meta import format_rfc3339
from dsf.api.scorerule import HeldValue, HoldRule, hold_back
from dsf.backtest.recording import Question, Record, SourceQuestion
from dsf.fleet.views import Time, View
from dsf.text import list_names

#: Maximum columns of a chart. If there are more moments, several share a column, which shows the newest of them.
COLUMNS: Final = 480


class ItemView(View):
    """An item of the AddOnPlacementScore over time."""

    name: str
    minimum: int
    median: float
    maximum: int
    changes: int = Field(
        description="Number of moments whose value differed from the previous one by more than the noise."
    )
    held_changes: int | None = Field(
        default=None,
        exclude_if=lambda value: value is None,
        description="The same number with the hold of the request.",
    )
    missing: float = Field(description="Share of the moments without a value, from 0 to 1.")
    line: list[int | None] = Field(description="Values of the item over time, in at most 480 columns.")


class FailureCount(View):
    """The number of moments that failed for one reason."""

    stage: str
    reason: str
    moments: int
    message: str = Field(description="Message of the newest failure.")


class BacktestView(View):
    """Summary of a scorer's responses for a cluster."""

    scorer: str
    score_name: str
    cluster: str
    start: Time
    end: Time
    every: int = Field(description="Seconds between two moments.")
    asked: int = Field(description="Moments from start to end.")
    moments: int = Field(description="Moments whose requests have ended so far.")
    outcomes: dict[str, int] = Field(description="Moments by outcome: ok, empty, partial, error.")
    failures: list[FailureCount]
    noise: int
    items: list[ItemView] = Field(description="Items, those that changed most often first.")
    notes: list[str]


class BacktestList(View):
    """The summaries of all clusters."""

    backtests: list[BacktestView]


@dataclass
class _Changes:
    """A counter for changes of a value by more than the noise."""

    noise: int
    #: Number of changes.
    number: int = 0
    #: The last value.
    last: int | None = None

    def add(self, value: int) -> None:
        if self.last is not None and abs(value - self.last) > self.noise:
            self.number += 1
        self.last = value


@dataclass
class _Item:
    """An item. It has a count per value instead of a list of values, because a run has up to 100,000 moments."""

    line: list[int | None]
    changes: _Changes
    #: Changes of the published value with a hold.
    held_changes: _Changes
    counts: Counter[int] = field(default_factory=Counter)

    def make_view(self, name: str, moments: int, *, is_held: bool) -> ItemView:
        return ItemView(
            name=name,
            minimum=min(self.counts),
            median=statistics.median(self.counts.elements()),
            maximum=max(self.counts),
            changes=self.changes.number,
            held_changes=self.held_changes.number if is_held else None,
            missing=round(1 - self.counts.total() / moments, 4),
            line=self.line,
        )


class _Hold:
    """The items that the hub would have published with `spec.execution.hold`, moment by moment."""

    def __init__(self, rule: HoldRule, validity: int) -> None:
        self._rule = rule
        self._validity = validity
        self._published: dict[str, int] = {}
        self._waiting: dict[str, HeldValue] = {}
        self._at = 0

    def publish(self, record: Record) -> dict[str, int]:
        """Return the published items after this moment; none after a moment without a score."""
        if not record.items:
            return {}
        if record.at - self._at > self._validity:
            # The published score has expired, so the next one is published at once.
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


def summarize_records(
    question: Question, moment_range: range, records: Iterable[Record], *, noise: int, hold: HoldRule | None = None
) -> BacktestView:
    """Return the summary of these records, which are in the order of time. `moment_range` has all requested moments.

    With `hold` the summary also has the changes that remain under this rule.
    """
    hold_filter = _Hold(hold, question.validity) if hold is not None else None
    items: dict[str, _Item] = {}
    failures: dict[tuple[str, str], FailureCount] = {}
    outcomes: Counter[str] = Counter()
    columns = min(COLUMNS, len(moment_range))
    # (moment, True if the source had series) of each successful moment.
    successes: list[tuple[int, bool]] = []
    # Moments with samples only at the end of the range.
    partial_moments: list[int] = []
    step = max((source.step for source in _list_sources(question)), default=0)
    later_count = 0
    for record in records:
        if record.at > moment_range[-1]:
            later_count += 1
            continue
        outcomes[record.outcome] += 1
        if record.outcome == "error":
            _count(failures, record)
        if record.series or record.outcome != "error":
            successes.append((record.at, bool(record.series)))
        # Tolerate two steps: the grid of the range may begin up to a step late, and a rate has no sample in the first.
        if record.unsampled > max(2 * step, 60):
            partial_moments.append(record.at)
        column = (record.at - moment_range.start) * columns // (len(moment_range) * moment_range.step)
        for name, value in record.items.items():
            if name not in items:
                items[name] = _Item([None] * columns, _Changes(noise), _Changes(noise))
            item = items[name]
            item.counts[value] += 1
            item.changes.add(value)
            item.line[column] = value
        for name, value in (hold_filter.publish(record) if hold_filter is not None else {}).items():
            items[name].held_changes.add(value)
    moments = outcomes.total()
    views = [item.make_view(name, moments, is_held=hold_filter is not None) for name, item in items.items()]
    return BacktestView(
        scorer=question.scorer,
        score_name=question.score_name,
        cluster=question.cluster,
        start=moment_range.start,
        end=moment_range[-1],
        every=question.every,
        asked=len(moment_range),
        moments=moments,
        outcomes=dict(outcomes),
        failures=sorted(failures.values(), key=lambda failure: -failure.moments),
        noise=noise,
        items=sorted(views, key=lambda item: (-item.changes, item.name)),
        notes=list(_list_notes(question, successes, partial_moments, later_count)),
    )


def _count(failures: dict[tuple[str, str], FailureCount], record: Record) -> None:
    kind = (record.stage, record.reason)
    moments = failures[kind].moments + 1 if kind in failures else 1
    failures[kind] = FailureCount(stage=record.stage, reason=record.reason, moments=moments, message=record.message)


def _list_sources(question: Question) -> Iterator[SourceQuestion]:
    """Yield the sources of the scorer, and those of its inputs."""
    for scorer_question in (question, *question.inputs):
        yield from scorer_question.sources


def _list_notes(
    question: Question, successes: Sequence[tuple[int, bool]], partial_moments: Sequence[int], later_count: int
) -> Iterator[str]:
    if steps := sorted({source.step for source in _list_sources(question) if source.step > question.every}):
        text = list_names([f"{step} s" for step in steps], 3)
        yield (
            f"{question.every} s between two moments are less than the step of the source ({text}): neighbouring "
            "moments see nearly the same samples"
        )
    moments_with_series = [at for at, has_series in successes if has_series]
    if successes and not moments_with_series:
        yield "the source had no series at any moment: see what it answers with `dsf explain`"
    elif successes:
        if successes[0][0] < moments_with_series[0]:
            yield (
                f"the source has no series before {_format_time(moments_with_series[0])}: it keeps less than was asked "
                "for, or what the query reads did not exist yet"
            )
        if successes[-1][0] > moments_with_series[-1]:
            yield (
                f"the source has no series after {_format_time(moments_with_series[-1])}: what the query reads is "
                "gone, or the clock of this machine is ahead"
            )
    if partial_moments:
        yield (
            f"at {len(partial_moments)} of {len(successes)} moments, the last one "
            f"{_format_time(partial_moments[-1])}, the source has "
            "only the end of the range: their scores are made of fewer samples than those of the others"
        )
    if later_count:
        yield (
            f"{later_count} moments of the file are still to come: the clock that made them was ahead, or this one "
            "is behind"
        )


def _format_time(at: int) -> str:
    return format_rfc3339(datetime.fromtimestamp(at, UTC))
