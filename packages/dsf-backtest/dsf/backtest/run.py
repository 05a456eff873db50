"""The agent's stages at moments of the past.

Each moment is a cycle whose range query ends there. A moment is not retried: a failure is a moment without a value, and
a second run into the same file asks it again.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from dsf.api.scorerule import build_rule_items
from dsf.api.summary import ScorerSummary
from dsf.api.types import SourceType
from dsf.auth.secrets import SecretSource
from dsf.backtest.errors import BacktestError
from dsf.backtest.recording import Outcome, Record
from dsf.cycle.stages import Cycle, Observer, Stages
from dsf.errors import CycleError, HttpError, ScoreObjectTooLargeError
from dsf.messages import Stage
from dsf.settings import Settings
from dsf.sources.base import Payload, RequestRecord
from dsf.sources.memory import SourceMemory
from dsf.sources.window import Window, WindowBudget

#: Built-in sources that know only the present -> why.
_PRESENT: Final = {
    SourceType.Kubernetes: "the API server has no past",
    SourceType.Object: "the API server has no past",
    SourceType.OpenTelemetry: "the collector has no past",
    SourceType.Scores: "the scores that it combines are those of now: backtest their scorers",
    SourceType.None_: "its scoring API gets the same request at every moment",
}
#: Moments that may fail at the beginning, all of them, before a run ends: what fails five times is no accident.
HOPELESS: Final = 5
#: Most moments of a run.
MAX_MOMENTS: Final = 100_000


def moments(since: int, every: int, now: float) -> range:
    """Return the whole multiples of `every` in the last `since` seconds, so that two runs have the same ones.

    Raises BacktestError for none, and for more than MAX_MOMENTS.
    """
    if not 0 < every <= since:
        raise BacktestError(f"no moment: two are {every} s apart, and the time is {since} s")
    end = int(now) // every * every
    moment_range = range(end - since // every * every, end + 1, every)
    if len(moment_range) > MAX_MOMENTS:
        raise BacktestError(
            f"{len(moment_range)} moments are more than {MAX_MOMENTS}: ask for a shorter time, or less often"
        )
    return moment_range


def check(summary: ScorerSummary) -> None:
    """Raise BacktestError for a scorer with a source that has no past."""
    for source in summary.each_source:
        why = _PRESENT.get(SourceType(source.source_type)) if source.source_type in set(SourceType) else None
        if why is not None:
            source_text = f" ({source.source_name})" if source.source_name else ""
            raise BacktestError(
                f"scorer {summary.name!r} has a source of type {source.source_type}{source_text}, and {why}: there is "
                "nothing to test it against"
            )


def run(
    cluster: str,
    summary: ScorerSummary,
    settings: Settings,
    secrets: SecretSource,
    at_moments: Iterable[int],
    *,
    rate: float,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Record]:
    """Yield the scorer's answer at each moment.

    `rate` is the most requests per second to a source or the scoring API. Ends after HOPELESS moments if all have
    failed.
    """
    counting = _Counting()
    stages = Stages(settings, secrets, _NoPast(summary), counting)
    failures = 0
    for number, at in enumerate(at_moments, 1):
        started = time.monotonic()
        counting.fetches = 0
        record = _record(cluster, summary, stages, at)
        failures += record.outcome == "error"
        yield record
        if failures == number == HOPELESS:
            return
        # The scoring API is asked once, a source once per query.
        sleep(max(0.0, started + max(1, counting.fetches) / rate - time.monotonic()))


class _Counting(Observer):
    """Counts the requests to sources."""

    fetches = 0

    def queried(self, stage: Stage, question: RequestRecord) -> None:
        """One more."""
        del question
        self.fetches += stage == "fetch"


class _NoPast(SourceMemory):
    """Refuses what a plug-in would keep between cycles: a source that asks for it knows only the present."""

    def __init__(self, summary: ScorerSummary) -> None:
        super().__init__(WindowBudget(0, 0), lambda: {summary.name: summary})

    def window(self, summary: ScorerSummary) -> Window:
        """None."""
        raise HttpError(
            "unsupported_source", f"a source of type {summary.source_type} knows only the present: it has no past"
        )


def _record(cluster: str, summary: ScorerSummary, stages: Stages, at: int) -> Record:
    cycle = Cycle(summary.name, "", summary, math.inf, until=float(at), cluster=cluster)
    try:
        payload = stages.fetch(cycle)
        stages.score(cycle, b"".join(payload.pieces))
        outcome, items = _items(cluster, summary, cycle)
    except CycleError as error:
        return Record(
            cluster=cluster,
            at=at,
            outcome="error",
            series=cycle.counts.get("series", 0),
            stage=error.stage,
            reason=error.reason,
            message=error.message,
        )
    unsampled = _unsampled(summary, payload, at)
    return Record(cluster=cluster, at=at, outcome=outcome, items=items, series=payload.series, unsampled=unsampled)


#: The time of a series' first sample in a scoring request.
_FIRST_SAMPLE: Final = re.compile(rb'"values"\s*:\s*\[\s*\[\s*(\d{1,12})')


def _unsampled(summary: ScorerSummary, payload: Payload, at: int) -> int:
    """Return seconds at the beginning of the longest range in which no series has a sample; 0 without series."""
    longest = max(source.source_range for source in summary.each_source)
    times = (int(match[1]) for piece in payload.inside for match in _FIRST_SAMPLE.finditer(piece))
    first = min(times, default=0)
    return max(0, first - (at - longest)) if first else 0


def _items(cluster: str, summary: ScorerSummary, cycle: Cycle) -> tuple[Outcome, dict[str, int]]:
    """As the hub makes them of a result, also for a scorer whose scores are not published. Raises CycleError."""
    response = cycle.response
    if response is None:
        raise RuntimeError("the cycle was not scored")
    try:
        built = build_rule_items(response.results, summary.rule, cluster).built
    except ScoreObjectTooLargeError as error:
        raise CycleError("publish", "too_large", str(error)) from None
    refused_count = response.refused.total() + built.refused.total()
    return ("partial" if refused_count else "ok" if built.items else "empty"), dict(built.items)
