"""The report of `dsf status`: from Redis, and from the output folder of a hub on a folder."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import redis
from pydantic import Field

from dsf.cli.output import TABLE_PAIRS
from dsf.errors import UnknownScorerError
from dsf.fleet.outfolder import ManifestMistake, UnmetCondition, conditions_of, problems_in, unmet
from dsf.fleet.overviews import ScorerOverview, ScorerPage
from dsf.fleet.reader import FleetReader
from dsf.fleet.schedule import override_view
from dsf.fleet.views import OverrideView, ScoreView, Time, View
from dsf.settings import Settings
from dsf.store.agents import Agents
from dsf.store.notices import Notices
from dsf.store.registry import Registry
from dsf.store.schedule import ScheduleStore
from dsf.store.ticks import ticks_problem

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
    """State of all scorers, or of one.

    Raises UnknownScorerError for a name that is neither registered nor in the hub's folder, and redis.RedisError.
    """
    fleet = FleetReader(client)
    out = settings.out
    every = conditions_of(Notices(client).scorers())
    conditions = [condition for condition in every if named in (None, condition.scorer)]
    problems: list[ManifestMistake] = []
    scores: list[ScoreView] | None = None
    total = 0
    if named is None:
        scorer_list = fleet.scorers()
        problems = list(problems_in(out))
    else:
        try:
            scorer_list = fleet.scorers(named)
            scores, total = _scores(fleet, named)
        except UnknownScorerError:
            if not conditions:
                raise
            # Known, but it cannot run: the conditions say why.
            scorer_list = fleet.scorers().model_copy(update={"scorers": []})
    problems += _stopped(ticks_problem(client, time.time()))
    refused = Agents(client).problems(Registry(client).clusters().values())
    problems += [ManifestMistake(message=f"cluster {name}: {text}") for name, text in refused.items()]
    gone = {name: notice.problem for name, notice in sorted(Notices(client).clusters().items()) if notice.problem}
    problems += [ManifestMistake(message=f"cluster {name}: {text}", severity="note") for name, text in gone.items()]
    report = _report(scorer_list, scores, total, conditions, problems)
    shown, now = {scorer.name for scorer in scorer_list.scorers}, time.time()
    pauses = [
        override_view(target, override)
        for target, override in sorted(ScheduleStore(client).overrides().items())
        if target.partition("/")[2] in shown
        and override.paused
        and (override.paused_until is None or override.paused_until > now)
    ]
    return report.model_copy(update={"pauses": pauses[:TABLE_PAIRS]})


def ask_report(client: Client, named: str | None) -> StatusReport:
    """The same from the JSON API, which lacks the data of a hub's folder and the versions of agents.

    Raises UnknownScorerError, HttpError and ApiError.
    """
    summary = client.summary()
    by_scorer = {scorer.name: scorer.conditions for scorer in summary.scorers}
    by_scorer |= {scorer.name: scorer.conditions for scorer in summary.unready}
    scores: list[ScoreView] | None = None
    total = 0
    try:
        scorer_list = client.scorers(named)
        if named is not None:
            by_scorer[named] = client.scorer(named).conditions
            scores, total = _scores(client, named)
    except UnknownScorerError:
        if named not in by_scorer:
            raise
        scorer_list = client.scorers().model_copy(update={"scorers": []})
    conditions = [
        condition for name in sorted(by_scorer) if named in (None, name) for condition in unmet(name, by_scorer[name])
    ]
    return _report(scorer_list, scores, total, conditions, _stopped(summary.ticks_problem))


def _stopped(problem: str) -> list[ManifestMistake]:
    return [ManifestMistake(message=problem)] if problem else []


def _report(
    found: ScorerPage,
    scores: list[ScoreView] | None,
    total: int,
    conditions: list[UnmetCondition],
    problems: list[ManifestMistake],
) -> StatusReport:
    wrong = any(problem.severity == "error" for problem in problems)
    failing = any(state_of(scorer) in ("unhealthy", "failing", "expired") for scorer in found.scorers)
    return StatusReport(
        at=found.at,
        ok=not (wrong or conditions or failing),
        scorers=found.scorers,
        scores=scores,
        scores_total=total,
        conditions=conditions,
        problems=problems,
    )


def _scores(fleet: FleetReader | Client, scorer: str) -> tuple[list[ScoreView], int]:
    """The scores that need attention first, limited for a readable table; and their total number."""
    worst = fleet.worst_scores(scorer, TABLE_PAIRS)
    return [score.model_copy(update={"results": []}) for score in worst.scores], worst.total


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
