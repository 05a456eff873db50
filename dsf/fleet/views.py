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
    """Return the time of a number in unix seconds; return other values unchanged."""
    # Clamp the number: Redis may contain an invalid one, which must not break the whole response.
    return datetime.fromtimestamp(max(0.0, min(LATEST, value)), UTC) if isinstance(value, int | float) else value


Time = Annotated[
    AwareDatetime,
    BeforeValidator(_from_unix),
    PlainSerializer(format_rfc3339, when_used="json"),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]


class View(BaseModel):
    """Base of all views, which are immutable."""

    # Build validators at first use, because a command uses few views.
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, defer_build=True)


class FailureView(View):
    """The reason why a cycle failed, or why a score lacks results."""

    cluster: str
    run_id: str
    stage: str = Field(description="fetch, score or publish; empty for a lost run")
    reason: str
    message: str
    at: Time


class SkipsView(View):
    """The newest ticks of one scorer on one cluster, if beat skipped them."""

    cluster: str
    reason: str = Field(
        description="Reason of the newest skip: queue_full, rate_limit, paused, results_behind, inactive or expired."
    )
    message: str
    ticks: int = Field(description="Number of consecutive skipped ticks.")
    since: Time = Field(description="Due time of the first of these ticks.")


def _is_none(value: object) -> bool:
    return value is None


def _is_empty(value: list[object]) -> bool:
    return not value


class HoldView(View):
    """The rule that decides which changes of an item are published: `spec.execution.hold`."""

    min_change: int = Field(description="Minimum change in points.")
    for_seconds: int

    @property
    def rule(self) -> str:
        """The rule as a sentence."""
        return describe_hold_rule(self.min_change, self.for_seconds)


class HeldView(View):
    """The new value of an item that a hold withholds. All fields are omitted if no value is withheld."""

    waiting: int | None = Field(
        default=None, exclude_if=_is_none, description="The newest value, while a hold withholds it."
    )
    waiting_since: Time | None = Field(
        default=None,
        exclude_if=_is_none,
        description="Time since which all values have exceeded the minimum change; omitted while the newest does not.",
    )
    waiting_until: Time | None = Field(
        default=None, exclude_if=_is_none, description="Time at which the value is published if the change lasts."
    )


class ScoreItem(HeldView):
    """An item as in the AddOnPlacementScore: rounded down, and clamped to -100..100."""

    name: str
    value: int


class ScoreResult(View):
    """A result of the scoring API, before aggregation and rounding."""

    metric: dict[str, str]
    score: float


class PairView(View):
    """The state of one scorer on one cluster, and its reasons."""

    cluster: str
    scorer: str
    state: Verdict = Field(description="State, derived from the newest cycle, the score and the schedule.")
    last_success: Time | None = None
    age_seconds: float | None = Field(default=None, description="Seconds since the last successful cycle.")
    valid_until: Time | None = None
    failing: int = Field(default=0, description="Number of consecutive cycles that failed or expired in the queue.")
    failure: FailureView | None = None
    remark: FailureView | None = Field(
        default=None,
        description="Why the newest score has no items, or lacks results; null if all results are accepted.",
    )
    skips: SkipsView | None = Field(default=None, description="Skipped ticks; null if the newest tick was sent.")


class ScoreView(PairView):
    """The newest score of one scorer on one cluster. An expired score has neither items nor results."""

    score_name: str
    run_id: str | None = None
    at: Time | None = Field(
        default=None, description="Time at which the newest score was measured; null before the first score."
    )
    expired: bool = Field(description="True if the newest score has expired.")
    empty: bool = Field(default=False, description="True if the newest cycle succeeded without items.")
    fresh: bool = Field(description="True if the newest score is valid and the newest cycle succeeded.")
    hold: HoldView | None = Field(
        default=None, exclude_if=_is_none, description="Rule of the hold; omitted for a scorer without a hold."
    )
    items: list[ScoreItem] = []
    results: list[ScoreResult] = []


class PagedView(View):
    """Base of paginated responses whose next page is requested with `continue`."""

    at: Time
    total: int = Field(default=0, description="Total number of requested pairs, on all pages together.")
    continue_: str | None = Field(
        default=None,
        alias="continue",
        description="Value of `continue` for the next page; null on the last page.",
    )


class UpstreamScore(View):
    """A score of the original project's agent that this hub has adopted and that is still valid."""

    cluster: str
    scorer: str
    since: Time = Field(description="Time at which the hub adopted the score.")
    message: str = Field(description="The object's name, the end of its validity, and the remedy.")

    @property
    def sentence(self) -> str:
        """The message with cluster and scorer, as a line of a command or of the page."""
        return f"{self.cluster}/{self.scorer}: {self.message}"


class ScoreList(PagedView):
    """Response of /api/v1/scores."""

    scores: list[ScoreView]
    upstream_scores: list[UpstreamScore] = Field(
        default=[],
        exclude_if=_is_empty,
        description="Valid scores of the original project's agent, at most 100; only on the first page.",
    )


class SyncReport(View):
    """The result of reading a /config at the request of a user."""

    scorer: str
    config_read: Time | None = Field(default=None, description="Time at which a valid /config was last read.")
    problem: str = Field(
        default="", description="Reason why the response was invalid or missing; empty after a success."
    )


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
    """Entry of the schedule: one scorer on one cluster."""

    cluster: str
    scorer: str
    score_name: str
    interval_seconds: int = Field(description="Current interval: that of an override, else that of the entry.")
    entry_interval_seconds: int = Field(description="Interval of the hub controller's entry.")
    interval_source: str = Field(description="Source of the interval: `entry`, or the target of an override.")
    rate_limit: str | None = Field(default=None, description="Limit of this scorer on all clusters together.")
    suspended: bool = Field(
        default=False, description="True if the DynamicScorer suspends the scorer, or if the cluster has departed."
    )
    paused: bool = Field(description="True while ticks are not sent, because of an override or a suspended scorer.")
    paused_until: Time | None = None
    paused_source: str | None = Field(
        default=None, description="Source of the pause: `entry`, or the target of an override; null if not paused."
    )
    next_run: Time | None = Field(
        default=None, description="Due time of the next tick; null while the scorer is paused or cannot run."
    )
    lag_seconds: float = Field(description="Seconds by which the next run is overdue; 0 if it is not overdue.")
    overrides: list[OverrideView] = []


class ScheduleList(PagedView):
    """Response of /api/v1/schedule."""

    entries: list[EntryView]


class CycleView(View):
    """A past cycle."""

    run_id: str
    trace: str = Field(default="", description="Id of the OpenTelemetry trace, if the processes send traces.")
    at: Time
    outcome: str
    stage: str = ""
    reason: str = ""
    message: str = ""
    timings: dict[str, float] = Field(default={}, description="Seconds per stage.")
    counts: dict[str, int] = {}
    value: float | None = Field(
        default=None, description="The only item of the cycle's score, or the mean of its items."
    )


class Books(View):
    """Counters of the due and requested cycles of a pair by outcome. `scheduled` is the sum of the other counters."""

    scheduled: int
    ok: int
    empty: int
    partial: int
    error: int
    skipped: int
    lost: int
    open: int = Field(description="Cycles that were sent and have not ended yet.")
    skipped_by_reason: dict[str, int] = {}


class HistoryList(View):
    """Response of /api/v1/history/{cluster}/{scorer}; cycles newest first."""

    cluster: str
    scorer: str
    books: Books
    cycles: list[CycleView]
    total: int = Field(default=0, description="Number of stored cycles.")
    cursor: str | None = Field(
        default=None, description="Cursor of the page with earlier cycles; null on the last page."
    )


class Problem(View):
    """Problem details of an error (RFC 9457)."""

    title: str
    status: int
    detail: str


class StateCounts(View):
    """Number of pairs in each state. Each pair is in exactly one state."""

    failing: int = 0
    expired: int = 0
    skipped: int = 0
    never: int = 0
    paused: int = 0
    empty: int = 0
    ok: int = 0

    @property
    def total(self) -> int:
        """Number of all pairs."""
        return self.failing + self.expired + self.skipped + self.never + self.paused + self.empty + self.ok


class ReasonGroup(View):
    """Pairs of one scorer that have no new score, or a score without some results, for the same reason."""

    scorer: str
    state: Verdict = Field(
        description="failing; skipped, expired or never for skipped ticks; empty for responses without a score; ok for "
        "scores without some of their results."
    )
    stage: str = Field(description="fetch, score or publish; empty for lost cycles and skipped ticks.")
    reason: str
    clusters: int = Field(description="Number of clusters.")
    cluster: str = Field(description="Cluster with the newest message, to which all following fields belong.")
    run_id: str = ""
    at: Time | None = None
    since: Time | None = Field(default=None, description="Time since which the cluster gets no ticks.")
    message: str = Field(description="The newest message of the group.")


class Bucket(View):
    """A bar of a histogram: the number of values above the previous bar's `upTo` and at most this bar's `upTo`."""

    up_to: float | None = Field(description="Upper bound; null for the last bar, which has none.")
    count: int


class Spread(View):
    """Distribution of numbers: exact quantiles, and a histogram."""

    count: int = 0
    minimum: float | None = None
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    maximum: float | None = None
    histogram: list[Bucket] = Field(default=[])


class ClusterValue(View):
    """The number that stands for a cluster's score: its only item, or the mean of its items."""

    cluster: str
    value: float


class ConditionView(View):
    """A condition of a DynamicScorer, as the hub controller wrote it."""

    type: str
    status: str = Field(description="True, False or Unknown.")
    reason: str
    message: str
    since: Time = Field(description="Time at which the status last changed.")


class UnreadyScorer(View):
    """A DynamicScorer that could not run yet. Its conditions contain the reasons."""

    name: str
    namespace: str
    conditions: list[ConditionView]


class ScorerOverview(View):
    """A scorer on all its clusters."""

    name: str
    score_name: str
    description: str = ""
    location: str = ""
    score_destination: str = ""
    interval_seconds: int = Field(description="Interval that the scorer declares.")
    effective_interval_seconds: int = Field(description="Interval on clusters without a separate override.")
    intervals_in_force: list[int] = Field(
        default=[],
        description="Distinct intervals in seconds on the scorer's clusters, ascending. They differ from "
        "`intervalSeconds` if a user has set an interval.",
    )
    validity_seconds: int = 0
    rate_limit: str | None = None
    suspended: bool = False
    health_status: str = "Unknown"
    problem: str = Field(
        default="", description="Reason why the scorer currently runs on no cluster; empty if it can run."
    )
    pairs: int
    states: StateCounts
    ages: Spread = Field(description="Seconds since the last successful cycle, for clusters with one.")
    reasons: list[ReasonGroup] = Field(default=[], description="At most 20 reasons, those of the most clusters first.")
    reasons_total: int = Field(default=0, description="Number of all reasons.")
    conditions: list[ConditionView] = Field(
        default=[],
        description="Conditions of the DynamicScorer. Lists of scorers only contain the conditions that are False.",
    )
    config_read: Time | None = Field(
        default=None,
        description="Time at which the hub last read a valid /config; null before, or if it reads no /config.",
    )


class SettingView(View):
    """A setting in force, and its origin."""

    name: str
    value: str = Field(description="Text of the value; `-` without a value.")
    origin: str = Field(description="spec, /config, default, override or not set.")
    instead: str = Field(default="", description="Author of an override, and the value without the override.")


class ScorerDetail(ScorerOverview):
    """A scorer with the details that lists omit."""

    values: Spread = Field(description="Distribution of one number per cluster, for clusters whose state is ok.")
    top: list[ClusterValue] = Field(default=[], description="Highest first, at most 10.")
    bottom: list[ClusterValue] = Field(default=[], description="Lowest first, at most 10.")
    lags: list[Bucket] = Field(default=[], description="Number of all ticks by their delay in seconds.")
    settings: list[SettingView] | None = Field(
        default=None, description="Settings in force; null if the process cannot read the DynamicScorer."
    )


class PathProblem(View):
    """An interruption of the path from a due pair to a written score, or another problem for users to solve."""

    stage: str = Field(
        description="redis, ticks, results, books, agents or objects; clock, crds, eviction or persistence for other "
        "problems."
    )
    message: str


class FleetOverview(View):
    """The whole fleet."""

    at: Time
    sequence: int = Field(description="Number of the newest change, for `since` of /api/v1/updates.")
    clusters: int = Field(description="Number of accepted clusters.")
    pairs: int
    states: StateCounts
    overdue: int = Field(description="Number of pairs whose tick is more than five seconds overdue.")
    problems: list[PathProblem] = Field(
        default=[],
        description="Interruptions of the path to a written score, worst first; then other problems for users to "
        "solve.",
    )
    upstream_scores: list[UpstreamScore] = Field(
        default=[], description="Valid scores of the original project's agent, at most 100."
    )
    lags: list[Bucket] = Field(default=[], description="Number of all ticks by their delay in seconds.")
    scorers: list[ScorerOverview] = Field(description="Scorers, worst first; /api/v1/scorers returns all scorers.")
    scorers_total: int = Field(default=0, description="Number of all scorers.")
    unready: list[UnreadyScorer] = Field(default=[], description="DynamicScorers that could not run yet.")
    unready_total: int = Field(default=0, description="Number of all DynamicScorers that could not run yet.")


class ClusterOverview(View):
    """A cluster with the state of each of its pairs."""

    name: str
    pairs: int
    states: StateCounts
    scorers: dict[str, Verdict] = Field(description="State by scorer.")


class CursorView(View):
    """Base of paginated responses whose next page is requested with `cursor`."""

    at: Time
    total: int = Field(description="Number of rows on all pages together.")
    cursor: str | None = Field(default=None, description="Cursor of the next page; null on the last page.")


class ScorerPage(CursorView):
    """Scorers, sorted by name."""

    scorers: list[ScorerOverview]


class ClusterPage(CursorView):
    """Clusters, worst first."""

    clusters: list[ClusterOverview]


class ClusterDetail(ClusterOverview):
    """A cluster with the details that lists omit."""

    agent_version: str = Field(default="", description="Version that the agent reported; empty if unknown.")
    agent_problem: str = Field(
        default="", description="Reason why the hub rejects the agent's results; empty if it accepts them."
    )
    problem: str = Field(
        default="",
        description="For an absent cluster: the reason why scorers do not run, and until when its data is kept.",
    )
    last_seen: Time | None = Field(default=None, description="Time of the newest successful cycle of any scorer.")
    queue: int = Field(description="Number of ticks that wait for the agent.")
    mail: int = Field(description="Number of results that wait in the mailbox.")
    key_ids: list[int] = Field(description="Ids of the valid credentials, the current one first.")
    key_since: Time | None = Field(
        default=None, description="Time at which the current credentials were created; null if unknown."
    )
    used_key_id: int | None = Field(default=None, description="Id of the credentials that signed the newest result.")
    labels: dict[str, str] = Field(default={}, description="Labels of the ManagedCluster, without those of addons.")
    absent: dict[str, str] = Field(
        default={}, description="Scorers that do not run on the cluster, with the reason: masked or not selected."
    )


class PairRow(PairView):
    """A scorer on one cluster, as a row of a table."""

    value: float | None = Field(
        default=None, description="The only item of a valid score, or the mean of its items; null without a score."
    )
    items: int | None = None
    next_run: Time | None = Field(
        default=None, description="Due time of the next tick; null while the pair is paused or inactive."
    )


class PairPage(CursorView):
    """Pairs, worst first."""

    pairs: list[PairRow]


class ItemView(HeldView):
    """An item, before and after it was rounded down and clamped to -100..100."""

    name: str
    value: int | None = Field(description="Written value; null if scores are only exported as metrics.")
    scored: float | None = Field(default=None, description="Number in the scoring API's response; null if unknown.")
    clamped: bool = False
    labels: dict[str, str] = Field(default={})


class InputView(View):
    """A score that the expression of a composite combines."""

    name: str = Field(description="Variable in the expression.")
    scorer: str
    default: float | None = Field(default=None, description="Value that replaces a missing score.")
    results: int = Field(default=0, description="Number of results of the score.")
    value: float | None = Field(default=None, description="Mean of the results; null without results.")
    problem: str = Field(default="", description="Reason why the score is missing; empty if it is valid.")
    is_registered: bool = Field(default=True, description="False if no scorer of this name runs in the namespace.")


class PairDetail(PairRow):
    """A scorer on one cluster with its items, counters and newest cycles."""

    score_name: str = ""
    run_id: str | None = None
    interval_seconds: int = 0
    paused_until: Time | None = None
    note: str = Field(default="", description="Note of the user who paused it or changed its interval.")
    unwritten: str = Field(
        default="", description="Reason why the valid score is not written to the API server; empty if it is written."
    )
    cluster_problem: str = Field(
        default="",
        description="Reason why the cluster is not served or its results are rejected; empty without a problem.",
    )
    hold: HoldView | None = Field(default=None, description="Rule of the hold; null for a scorer without a hold.")
    withheld_count: int = Field(
        default=0, alias="held", description="Number of new values that a hold withheld, counted once per cycle."
    )
    inputs: list[InputView] = Field(default=[], description="The scores that a composite combines.")
    books: Books
    score_items: list[ItemView] = Field(default=[], description="At most 1,000 items.")
    cycles: list[CycleView] = Field(default=[], description="At most 50 cycles, newest first.")


class Changes(View):
    """Pairs that changed by a result, a lost run, a pause or an entry. The expiry of a score is not a change."""

    sequence: int = Field(description="Number of the newest listed change, for `since` of the next request.")
    pairs: list[tuple[str, str]] = Field(description="Pairs as (cluster, scorer), oldest change first.")
    has_more: bool = Field(
        default=False,
        alias="more",
        description="True if there are more changes: send the next request immediately.",
    )
