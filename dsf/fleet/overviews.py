"""Sums over pairs, and pages of pairs, worst first. As `dsf.fleet.views`: camelCase, times
in RFC 3339 UTC, durations in seconds.
"""

from __future__ import annotations

from pydantic import Field

from dsf.fleet.verdict import Verdict
from dsf.fleet.views import Books, CycleView, HeldView, HoldView, PairView, Time, View


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
    """Base of the answers that come in pages."""

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
    books: Books
    score_items: list[ItemView] = Field(default=[], description="At most 1,000 of them.")
    cycles: list[CycleView] = Field(default=[], description="Newest first, at most 50.")


class Changes(View):
    """Pairs with a new result, lost run, pause or entry, or that came or went; not those whose score expired."""

    sequence: int = Field(description="Ask for changes since this one next time.")
    pairs: list[tuple[str, str]] = Field(description="(cluster, scorer), oldest change first.")
    more: bool = Field(default=False, description="There are more than were given: ask again at once.")
