"""Runs the agent's stages at moments of the past.

Each moment is a cycle whose range query ends at that moment. A failed moment has no value and is not retried. A second
backtest into the same file repeats the failed moments.
"""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from dsf.api.scorerule import build_rule_items
from dsf.api.summary import ScorerSummary
from dsf.api.types import SourceType
from dsf.auth.secrets import SecretSource
from dsf.backtest.errors import BacktestError
from dsf.backtest.recording import Outcome, Record
from dsf.cycle.composite import LastResults, NoResults, Result
from dsf.cycle.stages import Cycle, Observer, Stages
from dsf.errors import CycleError, HttpError, ScoreObjectTooLargeError
from dsf.messages import Stage
from dsf.settings import Settings
from dsf.sources.base import RequestRecord
from dsf.sources.memory import SourceMemory
from dsf.sources.window import Window, WindowBudget

#: Built-in source types that cannot be tested in the past, and the reason.
_REASONS_WITHOUT_HISTORY: Final = {
    SourceType.Kubernetes: "the API server has no past",
    SourceType.Object: "the API server has no past",
    SourceType.OpenTelemetry: "the collector has no past",
    SourceType.None_: "its scoring API gets the same request at every moment",
}
#: A backtest ends after this number of moments if all have failed, because later moments would probably fail, too.
MAX_INITIAL_FAILURES: Final = 5
#: Maximum moments of a run.
MAX_MOMENTS: Final = 100_000


def list_moments(seconds: int, step: int, now: float) -> range:
    """Return the multiples of `step` in the last `seconds` seconds, so that two backtests have the same moments.

    Times are unix seconds. Raises BacktestError if there is no moment, or more than MAX_MOMENTS.
    """
    if not 0 < step <= seconds:
        raise BacktestError(f"no moment: two are {step} s apart, and the time is {seconds} s")
    end = int(now) // step * step
    moment_range = range(end - seconds // step * step, end + 1, step)
    if len(moment_range) > MAX_MOMENTS:
        raise BacktestError(
            f"{len(moment_range)} moments are more than {MAX_MOMENTS}: ask for a shorter time, or less often"
        )
    return moment_range


def check_sources(summary: ScorerSummary) -> None:
    """Raise BacktestError for a scorer with a source that has no past."""
    for source in summary.each_source:
        reason = (
            _REASONS_WITHOUT_HISTORY.get(SourceType(source.source_type))
            if source.source_type in set(SourceType)
            else None
        )
        if reason is not None:
            source_text = f" ({source.source_name})" if source.source_name else ""
            raise BacktestError(
                f"scorer {summary.name!r} has a source of type {source.source_type}{source_text}, and {reason}: "
                "there is "
                "nothing to test it against"
            )


def run(
    cluster: str,
    summary: ScorerSummary,
    settings: Settings,
    secrets: SecretSource,
    moments: Iterable[int],
    *,
    inputs: Sequence[ScorerSummary] = (),
    rate: float,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Record]:
    """Yield the record of the scorer at each moment.

    `inputs` are the scorers whose scores a composite combines, as `find_inputs` returns them. `rate` is the maximum
    number of requests per second to a source or the scoring API. Ends after MAX_INITIAL_FAILURES moments if all have
    failed.
    """
    request_counter = _RequestCounter()
    input_results = _InputResults()
    stages = Stages(settings, secrets, _NoSourceMemory((*inputs, summary)), request_counter, input_results.find)
    failure_count = 0
    for number, at in enumerate(moments, 1):
        started_at = time.monotonic()
        request_counter.requests.clear()
        input_results.begin(at)
        runner = _PastRunner(cluster, stages, request_counter, at)
        input_cycles = [_run_input(runner, input_summary, input_results) for input_summary in inputs]
        record = _make_record(runner, summary, input_cycles)
        failure_count += record.outcome == "error"
        yield record
        if failure_count == number == MAX_INITIAL_FAILURES:
            return
        # Count the requests of all inputs together, because the inputs may share their servers.
        requests = max([1, *request_counter.requests.values()])
        sleep(max(0.0, started_at + requests / rate - time.monotonic()))


class _RequestCounter(Observer):
    """Counts the requests to sources and to scoring APIs, and stores the requests to sources."""

    def __init__(self) -> None:
        #: Stage -> number of requests.
        self.requests: Counter[Stage] = Counter()
        #: Requests to the sources of one cycle.
        self.source_requests: list[RequestRecord] = []

    def on_query(self, stage: Stage, record: RequestRecord) -> None:
        """Count a request."""
        self.requests[stage] += 1
        if stage == "fetch":
            self.source_requests.append(record)


class _NoSourceMemory(SourceMemory):
    """Refuses to keep samples between cycles, because a source that needs them knows only the present."""

    def __init__(self, summaries: Iterable[ScorerSummary]) -> None:
        by_name = {summary.name: summary for summary in summaries}
        super().__init__(WindowBudget(0, 0), lambda: by_name)

    def get_window(self, summary: ScorerSummary) -> Window:
        """Raise HttpError: a window belongs to a source without a past."""
        raise HttpError(
            "unsupported_source", f"a source of type {summary.source_type} knows only the present: it has no past"
        )


class _InputResults(LastResults):
    """Stores the results of a composite's inputs at the moments of a backtest, as an agent stores its last results."""

    def __init__(self) -> None:
        super().__init__()
        self._at = 0
        #: Input -> its failure at this moment.
        self._failures: dict[str, CycleError] = {}

    def read_clock(self) -> float:
        """Return the current moment in unix seconds."""
        return self._at

    def begin(self, at: int) -> None:
        """Begin a moment."""
        self._at = at
        self._failures.clear()

    def fail(self, scorer: str, failure: CycleError) -> None:
        """Store the failure of an input at this moment."""
        self._failures[scorer] = failure

    def find(self, scorer: str, namespace: str | None) -> Sequence[Result] | NoResults:
        """Return the valid results of an input, or why there are none."""
        results = super().find(scorer, namespace)
        failure = self._failures.get(scorer)
        if failure is not None and isinstance(results, NoResults):
            return results._replace(cause=f"it failed at this moment: {failure.message}")
        return results


class _PastCycle(NamedTuple):
    """A cycle at a past moment, and its failure."""

    cycle: Cycle
    #: Seconds at the start of the range without a sample; see `Record.unsampled`.
    unsampled: int
    failure: CycleError | None


class _PastRunner(NamedTuple):
    """Runs cycles on a cluster at a moment (unix seconds)."""

    cluster: str
    stages: Stages
    request_counter: _RequestCounter
    at: int

    def run_cycle(self, summary: ScorerSummary) -> _PastCycle:
        """Return the cycle of a scorer at this moment."""
        cycle = Cycle(summary.name, "", summary, math.inf, range_end=float(self.at), cluster=self.cluster)
        self.request_counter.source_requests.clear()
        failure = None
        try:
            payload = self.stages.fetch(cycle)
            self.stages.score(cycle, b"".join(payload.pieces))
        except CycleError as error:
            failure = error
        return _PastCycle(
            cycle, _find_unsampled_seconds(summary, self.request_counter.source_requests, self.at), failure
        )


def _run_input(runner: _PastRunner, summary: ScorerSummary, input_results: _InputResults) -> _PastCycle:
    past_cycle = runner.run_cycle(summary)
    if past_cycle.failure is not None:
        input_results.fail(summary.name, past_cycle.failure)
    elif past_cycle.cycle.response is not None:
        input_results.put(summary, past_cycle.cycle.response.results, summary.validity_seconds)
    return past_cycle


def _make_record(runner: _PastRunner, summary: ScorerSummary, input_cycles: Sequence[_PastCycle]) -> Record:
    cluster, at = runner.cluster, runner.at
    past_cycle = runner.run_cycle(summary)
    # A composite has the series of its inputs.
    cycles = (*input_cycles, past_cycle)
    series = sum(cycle.cycle.counts.get("series", 0) for cycle in cycles)
    try:
        if past_cycle.failure is not None:
            raise past_cycle.failure
        outcome, items = _build_items(cluster, summary, past_cycle.cycle)
    except CycleError as error:
        return Record(
            cluster=cluster,
            at=at,
            outcome="error",
            series=series,
            stage=error.stage,
            reason=error.reason,
            message=error.message,
        )
    unsampled_seconds = max(cycle.unsampled for cycle in cycles)
    return Record(cluster=cluster, at=at, outcome=outcome, items=items, series=series, unsampled=unsampled_seconds)


#: The time of a series' first sample in a response.
_FIRST_SAMPLE_PATTERN: Final = re.compile(rb'"values"\s*:\s*\[\s*\[\s*(\d{1,12})')


def _find_unsampled_seconds(summary: ScorerSummary, records: Iterable[RequestRecord], at: int) -> int:
    """Return the longest time at the beginning of a query's range in which none of its series has a sample.

    Queries without series are ignored. Each query is judged alone, because sources may have different retention times.
    """
    ranges = {source.source_name: source.source_range for source in summary.each_source}
    longest_gap = 0
    for record in records:
        times = (int(match[1]) for piece in record.pieces for match in _FIRST_SAMPLE_PATTERN.finditer(piece))
        first_time = min(times, default=None)
        if first_time is not None:
            longest_gap = max(longest_gap, first_time - (at - ranges[record.source]))
    return longest_gap


def _build_items(cluster: str, summary: ScorerSummary, cycle: Cycle) -> tuple[Outcome, dict[str, int]]:
    """Return outcome and items of a cycle as the hub builds them, regardless of the scorer's destination.

    Raises CycleError.
    """
    response = cycle.response
    if response is None:
        raise RuntimeError("the cycle was not scored")
    try:
        built_items = build_rule_items(response.results, summary.rule, cluster).built
    except ScoreObjectTooLargeError as error:
        raise CycleError("publish", "too_large", str(error)) from None
    refused_count = response.refusal_counts.total() + built_items.refusal_counts.total()
    return ("partial" if refused_count else "ok" if built_items.items else "empty"), dict(built_items.items)
