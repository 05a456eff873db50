"""The report of `dsf status`: from Redis, and from the output folder of a hub on a folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import redis
from pydantic import Field

from dsf.cli.output import TABLE_PAIRS
from dsf.errors import UnknownScorerError
from dsf.fleet.objectproblems import ManifestMistake, UnmetCondition, problems_in, unmet
from dsf.fleet.pairviews import override_view
from dsf.fleet.queries import FleetQueries
from dsf.fleet.verdict import Verdict
from dsf.fleet.views import OverrideView, ScorerOverview, ScoreView, Time, View
from dsf.process import hubclock
from dsf.settings import Settings
from dsf.store.agents import Agents
from dsf.store.notices import Notices
from dsf.store.registry import Registry
from dsf.store.schedule import ScheduleStore

if TYPE_CHECKING:
    from dsf.fleet.client import Client


class StatusReport(View):
    """Data of `dsf status`."""

    at: Time
    ok: bool
    scorers: list[ScorerOverview]
    #: The clusters of the named scorer; None without one.
    scores: list[ScoreView] | None = None
    #: Total number; `scores` has the worst of them.
    scores_total: int = 0
    #: Pauses that users made of the shown scorers, those of all clusters first.
    pauses: list[OverrideView] = Field(default_factory=list)
    conditions: list[UnmetCondition] = Field(default_factory=list)
    problems: list[ManifestMistake] = Field(default_factory=list)


def read_report(client: redis.Redis, settings: Settings, named: str | None) -> StatusReport:
    """The report with what only Redis and a hub's folder have: pauses, agents, clusters that are gone, manifests.

    Raises as `report_of`, and redis.RedisError.
    """
    now = hubclock.now()
    report = report_of(FleetQueries(client), named)
    problems = list(problems_in(settings.out)) if named is None else []
    refused = Agents(client).problems(Registry(client).clusters().values())
    problems += report.problems
    problems += [ManifestMistake(message=f"cluster {name}: {text}") for name, text in refused.items()]
    gone = {name: notice.problem for name, notice in sorted(Notices(client).clusters().items()) if notice.problem}
    problems += [ManifestMistake(message=f"cluster {name}: {text}", severity="note") for name, text in gone.items()]
    shown = {scorer.name for scorer in report.scorers}
    pauses = [
        override_view(target, override)
        for target, override in sorted(ScheduleStore(client).overrides().items())
        if target.partition("/")[2] in shown
        and override.paused
        and (override.paused_until is None or override.paused_until > now)
    ]
    ok = report.ok and all(problem.severity != "error" for problem in problems)
    return report.model_copy(update={"ok": ok, "problems": problems, "pauses": pauses[:TABLE_PAIRS]})


def report_of(fleet: FleetQueries | Client, named: str | None) -> StatusReport:
    """State of all scorers, or of one, from Redis or from the JSON API.

    Raises UnknownScorerError for a name that has neither a scorer nor conditions; HttpError and ApiError.
    """
    summary = fleet.summary()
    conditions = {scorer.name: scorer.conditions for scorer in summary.unready}
    scores: list[ScoreView] | None = None
    total = 0
    try:
        scorers = fleet.scorers(named).scorers
        if named is not None:
            worst = fleet.scores(scorer=named, states=list(Verdict), limit=TABLE_PAIRS)
            scores, total = [score.model_copy(update={"results": []}) for score in worst.scores], worst.total
    except UnknownScorerError:
        if named not in conditions:
            raise
        # Known, but it cannot run: the conditions say why.
        scorers = []
    conditions |= {scorer.name: scorer.conditions for scorer in scorers}
    listed = [one for name in sorted(conditions) if named in (None, name) for one in unmet(name, conditions[name])]
    failing = any(state_of(scorer) in ("unhealthy", "failing", "expired") for scorer in scorers)
    return StatusReport(
        at=summary.at,
        ok=not (summary.problems or listed or failing),
        scorers=scorers,
        scores=scores,
        scores_total=total,
        conditions=listed,
        problems=[ManifestMistake(message=problem.message) for problem in summary.problems],
    )


def state_of(scorer: ScorerOverview) -> str:
    """The state: unhealthy, failing, suspended, expired, paused, empty, skipped, waiting or ok; the first that
    applies."""
    states = scorer.states
    if scorer.health_status == "Inactive":
        return "unhealthy"
    if states.failing:
        return "failing"
    if scorer.suspended:
        return "suspended"
    if states.expired:
        return "expired"
    if states.paused and not states.ok:
        return "paused"
    if states.empty and not states.ok:
        return "empty"
    if states.skipped:
        return "skipped"
    return "waiting" if states.never or not states.total else "ok"
