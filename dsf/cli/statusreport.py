"""Builds the report of `dsf status`.

The report comes from the JSON API alone, or from Redis and, for a hub that works on a folder of manifests, from the
hub's output folder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import redis
from pydantic import Field

from dsf.cli.output import DEFAULT_TABLE_LIMIT
from dsf.errors import UnknownScorerError
from dsf.fleet.objectproblems import StatusProblem, UnmetCondition, list_unmet_conditions, read_folder_problems
from dsf.fleet.pairviews import make_override_view
from dsf.fleet.queries import FleetQueries
from dsf.fleet.verdict import Verdict
from dsf.fleet.views import OverrideView, ScorerOverview, ScoreView, Time, View
from dsf.process import hubclock
from dsf.settings import Settings
from dsf.store.agents import Agents
from dsf.store.notices import Notices
from dsf.store.registry import Registry
from dsf.store.schedule import ScheduleStore
from dsf.store.server import check_empty_server

if TYPE_CHECKING:
    from dsf.fleet.client import Client


class StatusReport(View):
    """Data of `dsf status`."""

    at: Time
    ok: bool
    scorers: list[ScorerOverview]
    #: Scores of the selected scorer by cluster. None for all scorers.
    scores: list[ScoreView] | None = None
    #: Number of scores of the selected scorer; `scores` contains the worst of them.
    scores_total: int = 0
    #: Pauses that users set on the scorers of the report: first pauses on all clusters, then pauses on single clusters.
    pauses: list[OverrideView] = Field(default_factory=list)
    conditions: list[UnmetCondition] = Field(default_factory=list)
    problems: list[StatusProblem] = Field(default_factory=list)


def read_report(client: redis.Redis, settings: Settings, scorer_name: str | None) -> StatusReport:
    """Return the report from Redis and from the hub's folder.

    Adds data that the JSON API lacks: pauses, and problems of agents, clusters and manifests. Raises redis.RedisError,
    the errors of `make_report`, and SettingsError if this Redis has no scorers and no hub can use it.
    """
    now = hubclock.now()
    report = make_report(FleetQueries(client), scorer_name)
    if not report.scorers and not report.conditions:
        check_empty_server(client)
    problems = list(read_folder_problems(settings.out)) if scorer_name is None else []
    agent_problems = Agents(client).find_problems(Registry(client).read_clusters().values())
    problems += report.problems
    problems += [StatusProblem(message=f"cluster {name}: {text}") for name, text in agent_problems.items()]
    cluster_problems = {
        name: notice.problem for name, notice in sorted(Notices(client).read_clusters().items()) if notice.problem
    }
    problems += [
        StatusProblem(message=f"cluster {name}: {text}", severity="note") for name, text in cluster_problems.items()
    ]
    scorer_names = {scorer.name for scorer in report.scorers}
    pauses = [
        make_override_view(target, override)
        for target, override in sorted(ScheduleStore(client).read_overrides().items())
        # A target is `<cluster>/<scorer>`, or `*/<scorer>` for all clusters.
        if target.partition("/")[2] in scorer_names
        and override.paused
        and (override.paused_until is None or override.paused_until > now)
    ]
    ok = report.ok and all(problem.severity != "error" for problem in problems)
    return report.model_copy(update={"ok": ok, "problems": problems, "pauses": pauses[:DEFAULT_TABLE_LIMIT]})


def make_report(fleet: FleetQueries | Client, scorer_name: str | None) -> StatusReport:
    """Return the state of all scorers, or of one, from Redis or from the JSON API.

    Raises UnknownScorerError for a name that has neither a scorer nor conditions. Raises HttpError and ApiError if the
    API cannot be read.
    """
    summary = fleet.summary()
    conditions_by_scorer = {scorer.name: scorer.conditions for scorer in summary.unready}
    scores: list[ScoreView] | None = None
    score_count = 0
    try:
        scorers = fleet.scorers(scorer_name).scorers
        if scorer_name is not None:
            worst_scores = fleet.scores(scorer=scorer_name, states=list(Verdict), limit=DEFAULT_TABLE_LIMIT)
            # Omit the results of each score to keep the report short.
            scores = [score.model_copy(update={"results": []}) for score in worst_scores.scores]
            score_count = worst_scores.total
    except UnknownScorerError:
        if scorer_name not in conditions_by_scorer:
            raise
        # Report only the conditions of a scorer that exists and cannot run.
        scorers = []
    conditions_by_scorer |= {scorer.name: scorer.conditions for scorer in scorers}
    unmet_conditions = [
        condition
        for name in sorted(conditions_by_scorer)
        if scorer_name in (None, name)
        for condition in list_unmet_conditions(name, conditions_by_scorer[name])
    ]
    has_bad_state = any(find_scorer_state(scorer) in ("unhealthy", "failing", "expired") for scorer in scorers)
    return StatusReport(
        at=summary.at,
        ok=not (summary.problems or unmet_conditions or has_bad_state),
        scorers=scorers,
        scores=scores,
        scores_total=score_count,
        conditions=unmet_conditions,
        problems=[
            *(StatusProblem(message=problem.message) for problem in summary.problems),
            *(
                StatusProblem(message=score.sentence, severity="note")
                for score in summary.upstream_scores
                if scorer_name in (None, score.scorer)
            ),
        ],
    )


def find_scorer_state(scorer: ScorerOverview) -> str:
    """Return the most important state of a scorer on its clusters.

    The first state that applies counts, in this order: unhealthy, failing, suspended, expired, paused, empty, skipped,
    waiting, ok. The states paused and empty do not apply if the scorer is ok on any cluster.
    """
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
