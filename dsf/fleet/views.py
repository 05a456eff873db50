"""Views of the JSON API and of `dsf ... -o json`: camelCase, times in RFC 3339 UTC, durations in seconds.

An age is always the age of the last successful cycle.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, WithJsonSchema
from pydantic.alias_generators import to_camel

from dsf.api.meta import LATEST, rfc3339
from dsf.api.scorerule import in_words
from dsf.fleet.verdict import Verdict


def _from_unix(value: object) -> object:
    # A value in Redis may be an invalid date, which must not break the whole answer.
    return datetime.fromtimestamp(max(0.0, min(LATEST, value)), UTC) if isinstance(value, int | float) else value


Time = Annotated[
    AwareDatetime,
    BeforeValidator(_from_unix),
    PlainSerializer(rfc3339, when_used="json"),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]


class View(BaseModel):
    """Base of the answers."""

    # Built at first use: a command needs few of them.
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, defer_build=True)


class FailureView(View):
    """Why a cycle failed."""

    cluster: str
    run_id: str
    stage: str = Field(description="fetch, score or publish; empty for a lost run")
    reason: str
    message: str
    at: Time


class SkipsView(View):
    """The newest ticks of one scorer on one cluster were due and were not sent."""

    cluster: str
    reason: str = Field(
        description="queue_full, rate_limit, paused, results_behind, inactive or expired: that of the newest of them"
    )
    message: str
    ticks: int = Field(description="How many in a row.")
    since: Time = Field(description="When the first of them was due.")


def _is_none(value: object) -> bool:
    return value is None


class HoldView(View):
    """Which changes of an item are published: `spec.execution.hold`."""

    min_change: int = Field(description="Points.")
    for_seconds: int

    @property
    def rule(self) -> str:
        """As a sentence."""
        return in_words(self.min_change, self.for_seconds)


class HeldView(View):
    """What a hold keeps back of one item; nothing of it is there otherwise."""

    waiting: int | None = Field(
        default=None, exclude_if=_is_none, description="The newest value, while a hold keeps it back."
    )
    waiting_since: Time | None = Field(
        default=None,
        exclude_if=_is_none,
        description="Since when all values were far enough away; left out while the newest is too near.",
    )
    waiting_until: Time | None = Field(
        default=None, exclude_if=_is_none, description="From when on it is published, if it stays as far away."
    )


class ScoreItem(HeldView):
    """One item as the AddOnPlacementScore has it: floored and clamped."""

    name: str
    value: int


class ScoreResult(View):
    """One result as the scoring API gave it."""

    metric: dict[str, str]
    score: float


class PairView(View):
    """How one scorer does on one cluster."""

    cluster: str
    scorer: str
    state: Verdict = Field(description="The state.")
    last_success: Time | None = None
    age_seconds: float | None = Field(default=None, description="Seconds since the last successful cycle.")
    valid_until: Time | None = None
    failing: int = Field(
        default=0, description="Cycles in a row that failed, or that expired in the queue again and again."
    )
    failure: FailureView | None = None
    remark: FailureView | None = Field(
        default=None, description="Why the newest score has no items, or not all of its results; null when all count."
    )
    skips: SkipsView | None = Field(default=None, description="null when the newest tick was sent.")


class ScoreView(PairView):
    """The newest score of one scorer on one cluster. An expired one has neither items nor results."""

    score_name: str
    run_id: str | None = None
    at: Time | None = Field(default=None, description="When the newest score was measured; null before the first.")
    expired: bool = Field(description="The newest score has expired.")
    empty: bool = Field(default=False, description="The newest cycle succeeded without items.")
    fresh: bool = Field(description="There is a score that has not expired, and the newest cycle succeeded.")
    hold: HoldView | None = Field(default=None, exclude_if=_is_none, description="Left out for a scorer without one.")
    items: list[ScoreItem] = []
    results: list[ScoreResult] = []


class PagedView(View):
    """Base of the answers that come in pages."""

    at: Time
    total: int = Field(default=0, description="Total number of requested pairs, on all pages together.")
    continue_: str | None = Field(
        default=None,
        alias="continue",
        description="Value of `continue` for the next page; null on the last.",
    )


class ScoreList(PagedView):
    """Answer of /api/v1/scores."""

    scores: list[ScoreView]


class SyncReport(View):
    """A /config that was read because a person asked for it."""

    scorer: str
    config_read: Time | None = Field(default=None, description="When a valid /config was last read.")
    problem: str = Field(default="", description="Why there was no valid answer now; empty if there was.")


class OverrideView(View):
    """An override of the schedule. The target is `<cluster>/<scorer>`, or `*/<scorer>` for all clusters."""

    target: str
    interval_seconds: int | None = None
    paused: bool | None = None
    paused_until: Time | None = None
    note: str = ""
    by: str = ""
    at: Time | None = None


class EntryView(View):
    """One scorer on one cluster in the schedule."""

    cluster: str
    scorer: str
    score_name: str
    interval_seconds: int = Field(description="Current interval: the entry's or an override's.")
    entry_interval_seconds: int = Field(description="The interval of the hub controller's entry.")
    interval_source: str = Field(description="Where the interval comes from: entry, or the target of an override.")
    rate_limit: str | None = Field(default=None, description="Limit of this scorer on all clusters together.")
    suspended: bool = Field(default=False, description="By its DynamicScorer, or its cluster is gone.")
    paused: bool = Field(description="No ticks are sent now: by a person, or because the scorer is suspended.")
    paused_until: Time | None = None
    paused_source: str | None = Field(default=None, description="entry, or the target of the override that paused it.")
    next_run: Time | None = Field(default=None, description="null while it is paused, or cannot run.")
    lag_seconds: float = Field(description="How long the next run is overdue; 0 when it is not.")
    overrides: list[OverrideView] = []


class ScheduleList(PagedView):
    """Answer of /api/v1/schedule."""

    entries: list[EntryView]


class CycleView(View):
    """One past cycle."""

    run_id: str
    trace: str = Field(default="", description="Id of its OpenTelemetry trace, if the processes send traces.")
    at: Time
    outcome: str
    stage: str = ""
    reason: str = ""
    message: str = ""
    timings: dict[str, float] = Field(default={}, description="Seconds per stage.")
    counts: dict[str, int] = {}
    value: float | None = Field(
        default=None, description="Stands for the score it brought: its item, or the mean of its items."
    )


class Books(View):
    """Numbers of all due or requested cycles by outcome: scheduled is the sum of all others."""

    scheduled: int
    ok: int
    empty: int
    partial: int
    error: int
    skipped: int
    lost: int
    open: int = Field(description="Sent and not ended yet.")
    skipped_by_reason: dict[str, int] = {}


class HistoryList(View):
    """Answer of /api/v1/history/{cluster}/{scorer}; cycles newest first."""

    cluster: str
    scorer: str
    books: Books
    cycles: list[CycleView]
    total: int = Field(default=0, description="How many are kept.")
    cursor: str | None = Field(default=None, description="Ask again with it for earlier ones; null on the last page.")


class Problem(View):
    """An error by RFC 9457."""

    title: str
    status: int
    detail: str
