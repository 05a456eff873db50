"""Views of the JSON API and of `dsf ... -o json`: pairs, pages of pairs (worst first), and sums over pairs.

Names are camelCase, times RFC 3339 in UTC, durations seconds. An age is always the age of the last successful cycle.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, WithJsonSchema
from pydantic.alias_generators import to_camel

from dsf.api.meta import LATEST, format_rfc3339
from dsf.api.scorerule import describe_hold_rule
from dsf.fleet.verdict import Verdict


def _from_unix(value: object) -> object:
    # A value in Redis may be an invalid date, which must not break the whole answer.
    return datetime.fromtimestamp(max(0.0, min(LATEST, value)), UTC) if isinstance(value, int | float) else value


Time = Annotated[
    AwareDatetime,
    BeforeValidator(_from_unix),
    PlainSerializer(format_rfc3339, when_used="json"),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]


class View(BaseModel):
    """Base of the responses."""

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


def _is_empty(value: list[object]) -> bool:
    return not value


class HoldView(View):
    """Which changes of an item are published: `spec.execution.hold`."""

    min_change: int = Field(description="Points.")
    for_seconds: int

    @property
    def rule(self) -> str:
        """As a sentence."""
        return describe_hold_rule(self.min_change, self.for_seconds)


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
    """Base of the responses that come in pages."""

    at: Time
    total: int = Field(default=0, description="Total number of requested pairs, on all pages together.")
    continue_: str | None = Field(
        default=None,
        alias="continue",
        description="Value of `continue` for the next page; null on the last.",
    )


class UpstreamScore(View):
    """An AddOnPlacementScore that the original project's agent wrote, and that is still used."""

    cluster: str
    scorer: str
    since: Time = Field(description="When the hub took it over.")
    message: str = Field(description="Its name, until when it is used, and what to do.")

    @property
    def sentence(self) -> str:
        """The message with its place, as a line of a command or of the page."""
        return f"{self.cluster}/{self.scorer}: {self.message}"


class ScoreList(PagedView):
    """Answer of /api/v1/scores."""

    scores: list[ScoreView]
    upstream_scores: list[UpstreamScore] = Field(
        default=[],
        exclude_if=_is_empty,
        description="Scores of the original project's agent that are still used, at most 100; only on the first page.",
    )


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


class StateCounts(View):
    """How many pairs are in each state; every pair is in exactly one."""

    failing: int = 0
    expired: int = 0
    skipped: int = 0
    never: int = 0
    paused: int = 0
    empty: int = 0
    ok: int = 0

    @property
    def total(self) -> int:
        """All pairs."""
        return self.failing + self.expired + self.skipped + self.never + self.paused + self.empty + self.ok


class ReasonGroup(View):
    """Pairs of one scorer that have no new score for one reason, or one that lacks results."""

    scorer: str
    state: Verdict = Field(
        description="failing; skipped, expired or never for ticks that were not sent; empty for answers without a "
        "score; ok for scores without some of their results."
    )
    stage: str = Field(description="fetch, score or publish; empty for lost cycles and skipped ticks.")
    reason: str
    clusters: int = Field(description="Number of clusters.")
    cluster: str = Field(description="Cluster of the text.")
    run_id: str = ""
    at: Time | None = None
    since: Time | None = Field(default=None, description="Since when it gets no ticks.")
    message: str = Field(description="The newest text.")


class Bucket(View):
    """One bar of a histogram: how many are at most `upTo`, and more than the bar before."""

    up_to: float | None = Field(description="null: no bound.")
    count: int


class Spread(View):
    """How numbers are spread: exact quantiles, and a histogram."""

    count: int = 0
    minimum: float | None = None
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    maximum: float | None = None
    histogram: list[Bucket] = Field(default=[])


class ClusterValue(View):
    """The one number that stands for a score: its item, or the mean of its items."""

    cluster: str
    value: float


class ConditionView(View):
    """One condition of a DynamicScorer, as the hub controller wrote it."""

    type: str
    status: str = Field(description="True, False or Unknown.")
    reason: str
    message: str
    since: Time = Field(description="When the status last changed.")


class UnreadyScorer(View):
    """A DynamicScorer that could not run yet: its conditions say why."""

    name: str
    namespace: str
    conditions: list[ConditionView]


class ScorerOverview(View):
    """One scorer on all its clusters."""

    name: str
    score_name: str
    description: str = ""
    location: str = ""
    score_destination: str = ""
    interval_seconds: int = Field(description="What the scorer says.")
    effective_interval_seconds: int = Field(description="What is in force where nothing is said of one cluster.")
    intervals_in_force: list[int] = Field(
        default=[],
        description="Seconds on the clusters that it runs on, each number once, ascending: another than "
        "`intervalSeconds` where a person set one.",
    )
    validity_seconds: int = 0
    rate_limit: str | None = None
    suspended: bool = False
    health_status: str = "Unknown"
    problem: str = Field(default="", description="Why it runs nowhere now; empty while it can.")
    pairs: int
    states: StateCounts
    ages: Spread = Field(description="Seconds since the last successful cycle, of clusters that had one.")
    reasons: list[ReasonGroup] = Field(default=[], description="Most clusters first, at most 20.")
    reasons_total: int = Field(default=0, description="How many there are.")
    conditions: list[ConditionView] = Field(
        default=[], description="Of its DynamicScorer: all in its own answer, else those that are False."
    )
    config_read: Time | None = Field(
        default=None, description="When the hub last read a valid /config; null if it never did, or does not read it."
    )


class SettingView(View):
    """One setting in force, and where it comes from."""

    name: str
    value: str = Field(description="`-` when there is none.")
    origin: str = Field(description="spec, /config, default, override or not set.")
    instead: str = Field(default="", description="Of an override: whose it is, and what would hold without it.")


class ScorerDetail(ScorerOverview):
    """One scorer with what only its own page shows."""

    values: Spread = Field(description="The one number per cluster, of clusters whose state is ok.")
    top: list[ClusterValue] = Field(default=[], description="Highest first, at most 10.")
    bottom: list[ClusterValue] = Field(default=[], description="Lowest first, at most 10.")
    lags: list[Bucket] = Field(default=[], description="Ticks by seconds that they were sent late, since ever.")
    settings: list[SettingView] | None = Field(
        default=None, description="null where the DynamicScorer itself cannot be read."
    )


class PathProblem(View):
    """Where the path from a due pair to a written score is interrupted."""

    stage: str = Field(description="redis, ticks, results, books, agents or objects; clock, eviction or persistence.")
    message: str


class FleetOverview(View):
    """The whole fleet."""

    at: Time
    sequence: int = Field(description="Number of the newest change; ask for changes since it.")
    clusters: int = Field(description="Accepted clusters.")
    pairs: int
    states: StateCounts
    overdue: int = Field(description="Pairs that are due and whose tick was not sent within five seconds.")
    problems: list[PathProblem] = Field(
        default=[],
        description="Why scores do not arrive or are not written, worst first; then what else people must change.",
    )
    upstream_scores: list[UpstreamScore] = Field(
        default=[], description="Scores of the original project's agent that are still used, at most 100."
    )
    lags: list[Bucket] = Field(default=[], description="Ticks by seconds that they were sent late, since ever.")
    scorers: list[ScorerOverview] = Field(description="Worst first; /api/v1/scorers has all of them.")
    scorers_total: int = Field(default=0, description="How many there are.")
    unready: list[UnreadyScorer] = Field(default=[], description="DynamicScorers that could not run yet.")
    unready_total: int = Field(default=0, description="How many there are.")


class ClusterOverview(View):
    """One cluster with the state of each of its pairs."""

    name: str
    pairs: int
    states: StateCounts
    scorers: dict[str, Verdict] = Field(description="State by scorer.")


class CursorView(View):
    """Base of the responses that come in pages."""

    at: Time
    total: int = Field(description="How many there are on all pages together.")
    cursor: str | None = Field(default=None, description="Ask again with it for the next page; null on the last.")


class ScorerPage(CursorView):
    """Scorers by name."""

    scorers: list[ScorerOverview]


class ClusterPage(CursorView):
    """Clusters, worst first."""

    clusters: list[ClusterOverview]


class ClusterDetail(ClusterOverview):
    """One cluster with what only its own page shows."""

    agent_version: str = Field(default="", description="Empty when it does not say, or was never heard of.")
    agent_problem: str = Field(default="", description="Why its results are refused; empty when they are not.")
    problem: str = Field(default="", description="Why nothing runs there and until when it is kept, if it is gone.")
    last_seen: Time | None = Field(default=None, description="Newest successful cycle of any scorer.")
    queue: int = Field(description="Ticks that wait for its agent.")
    mail: int = Field(description="Results of it that wait in its mailbox.")
    key_ids: list[int] = Field(description="Credentials that the hub takes, the current one first.")
    key_since: Time | None = Field(default=None, description="When the current credential was made, where known.")
    used_key_id: int | None = Field(default=None, description="What the newest result was signed with.")
    labels: dict[str, str] = Field(default={}, description="Of its ManagedCluster, without those of addons.")
    absent: dict[str, str] = Field(
        default={}, description="Scorers that do not run there, and why: masked, not selected."
    )


class PairRow(PairView):
    """One scorer on one cluster, as a line of a table."""

    value: float | None = Field(default=None, description="Stands for a score that may be used; else null.")
    items: int | None = None
    next_run: Time | None = Field(default=None, description="null while paused or skipped as inactive.")


class PairPage(CursorView):
    """Pairs, worst first."""

    pairs: list[PairRow]


class ItemView(HeldView):
    """One item, before and after it was rounded down and clamped to -100..100."""

    name: str
    value: int | None = Field(description="As written; null where scores go to metrics only.")
    scored: float | None = Field(default=None, description="As the scoring API gave it, where that is known.")
    clamped: bool = False
    labels: dict[str, str] = Field(default={})


class InputView(View):
    """A score that the expression of a composite combines."""

    name: str = Field(description="Its variable.")
    scorer: str
    default: float | None = Field(default=None, description="Value where the score is missing.")
    results: int = Field(default=0, description="Number of its results.")
    value: float | None = Field(default=None, description="The mean of its results; null without any.")
    problem: str = Field(default="", description="Why it is missing; empty if it has a valid score.")
    is_registered: bool = Field(default=True, description="False if no scorer of this name runs in the namespace.")


class PairDetail(PairRow):
    """One scorer on one cluster."""

    score_name: str = ""
    run_id: str | None = None
    interval_seconds: int = 0
    paused_until: Time | None = None
    note: str = Field(default="", description="What was said when it was paused, or its interval was changed.")
    unwritten: str = Field(default="", description="Why the API server does not have its valid score; empty if it has.")
    cluster_problem: str = Field(
        default="", description="Why its cluster is not served or its results are refused; empty if neither."
    )
    hold: HoldView | None = Field(default=None, description="null for a scorer without one.")
    held: int = Field(default=0, description="New values of items that were held back, each once a cycle.")
    inputs: list[InputView] = Field(default=[], description="The scores that it combines; only of a composite.")
    books: Books
    score_items: list[ItemView] = Field(default=[], description="At most 1,000 of them.")
    cycles: list[CycleView] = Field(default=[], description="Newest first, at most 50.")


class Changes(View):
    """Pairs with a new result, lost run, pause or entry, or that came or went; not those whose score expired."""

    sequence: int = Field(description="Ask for changes since this one next time.")
    pairs: list[tuple[str, str]] = Field(description="(cluster, scorer), oldest change first.")
    more: bool = Field(default=False, description="There are more than were given: ask again at once.")
