"""The status of a DynamicScorer and of a DynamicScoringConfig, in words. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal, NamedTuple

from dsf.api.meta import Condition, rfc3339, set_condition
from dsf.api.scorer import MAX_FAILURES, ClusterCounts, DynamicScorerStatus
from dsf.api.scoringconfig import DynamicScoringConfig, DynamicScoringConfigStatus
from dsf.api.types import CONFIG_NAME, ConditionType, ConfigSyncMode, HealthStatus
from dsf.hub.cycles import Cycles
from dsf.hub.health import Health
from dsf.hub.summaries import ScorerPlan

#: Condition of a DynamicScoringConfig that does not count.
IGNORED: Final = "Ignored"
#: Condition of the DynamicScoringConfig that counts; it is there since some agent was too old or too new.
AGENTS_SUPPORTED: Final = "AgentsSupported"
#: Reasons that more than one place uses.
NOT_CHECKED_YET: Final = "NotCheckedYet"
_NO_CONFIG: Final = "NoScoringConfig"
_DISTRIBUTING: Final = "Distributing"


class Verdict(NamedTuple):
    """What a condition says."""

    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str


@dataclass(frozen=True)
class Spread:
    """Where a scorer is wanted and where it has arrived."""

    #: Accepted clusters, whether they want it or not.
    clusters: int
    desired: int
    distributed: int
    #: `namespace/name` of the one configuration, for messages, and whether it is there.
    config: str
    is_enabled: bool
    #: Whether `distributed` counts every cluster; after a start it does not at first.
    is_counted: bool = True
    #: Why one of the clusters that have not got it could not be told, `<cluster>: <error>`; empty when none failed.
    problem: str = ""
    #: Whether that one was refused, so that somebody has to act.
    is_refused: bool = False


def scorer_status(
    plan: ScorerPlan,
    health: Health,
    spread: Spread,
    cycles: Cycles | None,
    *,
    previous: DynamicScorerStatus,
    threshold: int,
    now: datetime,
) -> DynamicScorerStatus:
    """The whole status. `cycles` is None when they cannot be read; what was known of them stays then.

    `threshold` is the number of failed health checks after which a scorer is Inactive.
    """
    verdicts: dict[ConditionType, Verdict | None] = {
        ConditionType.Healthy: healthy(health, threshold),
        ConditionType.ConfigSynced: config_synced(plan, health),
        ConditionType.Distributed: distributed(plan, health, spread),
        ConditionType.Scoring: scoring(plan, spread, cycles) if cycles is not None else None,
    }
    generation = plan.scorer.metadata.generation
    conditions = previous.conditions
    for kind, verdict in verdicts.items():
        found = next((condition for condition in conditions if condition.type == kind), None)
        if verdict is None and found is not None:
            continue
        status, reason, message = verdict or Verdict("Unknown", NOT_CHECKED_YET, "not known yet")
        new = Condition(
            type=kind.value,
            status=status,
            reason=reason,
            message=message[:32768],
            last_transition_time=now,
            observed_generation=generation,
        )
        conditions = set_condition(conditions, new)
    known = previous.clusters
    resolved = plan.resolved
    return DynamicScorerStatus(
        health_status=health.status,
        last_synced_config=health.config,
        observed_generation=generation,
        conditions=conditions,
        score_name=resolved.score_name if resolved is not None else "",
        interval=resolved.interval_seconds if resolved is not None else 0,
        clusters=ClusterCounts(
            desired=spread.desired,
            succeeding=cycles.succeeding if cycles is not None else min(known.succeeding, spread.desired),
            failing=cycles.failing if cycles is not None else min(known.failing, spread.desired),
        ),
        failures=cycles.failures if cycles is not None else previous.failures,
    )


def healthy(health: Health, threshold: int) -> Verdict | None:
    """Condition Healthy; None when no check has ended yet and an earlier verdict stands."""
    if not health.is_checked:
        return None
    if health.status is HealthStatus.Active and health.failure is None:
        return Verdict("True", "HealthCheckPassed", "the scoring API answers its health checks")
    if health.failure is None:
        return None
    if health.status is HealthStatus.Active:
        text = f"{health.failures} of {threshold} failed checks in a row: {health.failure.message}"
        return Verdict("True", "HealthCheckFailing", text)
    return Verdict("False", health.failure.reason, health.failure.message)


def config_synced(plan: ScorerPlan, health: Health) -> Verdict | None:
    """Condition ConfigSynced: whether spec and `/config` say enough, and whether `/config` is good now."""
    obstacle = plan.obstacle
    if plan.scorer.spec.config_sync_mode is not ConfigSyncMode.Full:
        if obstacle is not None:
            return Verdict("False", obstacle.reason, obstacle.message)
        return Verdict("True", "SpecOnly", "configSyncMode is None: the values of the spec are used")
    if health.config is None:
        failure = health.config_failure or health.failure
        if failure is not None:
            return Verdict("False", failure.reason, f"/config was never read: {failure.message}")
        return None
    if obstacle is not None:
        return Verdict("False", obstacle.reason, obstacle.message)
    if health.config_failure is not None:
        text = f"{health.config_failure.message}; the last good configuration stays in force"
        return Verdict("False", health.config_failure.reason, text)
    if not health.is_checked:
        return None
    return Verdict("True", "Synced", "the configuration of configURL is in force")


def distributed(plan: ScorerPlan, health: Health, spread: Spread) -> Verdict | None:
    """Condition Distributed: whether every cluster that wants the scorer has been told of it.

    None while that is not known and an earlier verdict stands.
    """
    if plan.obstacle is not None and not (health.config is None and not health.is_checked):
        return Verdict("False", plan.obstacle.reason, plan.obstacle.message)
    if health.status is HealthStatus.Unknown:
        return Verdict("Unknown", NOT_CHECKED_YET, "the first health check has not ended yet")
    if plan.runnable is None:
        return Verdict("False", "NotHealthy", "the scoring API does not pass its health checks, so it runs nowhere")
    if not spread.is_enabled:
        text = f"there is no DynamicScoringConfig {spread.config}; scoring starts when it is created"
        return Verdict("False", _NO_CONFIG, text)
    if spread.clusters == 0:
        return Verdict("False", "NoClusters", "no ManagedCluster is accepted")
    if spread.desired == 0:
        return Verdict("False", "Masked", f"the DynamicScoringConfig {spread.config} masks it on every cluster")
    if spread.distributed < spread.desired:
        text = f"{spread.distributed} of {spread.desired} clusters have it"
        if spread.problem:
            reason = "DistributionRefused" if spread.is_refused else _DISTRIBUTING
            return Verdict("False", reason, f"{text}; {spread.problem}")
        if not spread.is_counted:
            return None
        return Verdict("False", _DISTRIBUTING, text)
    return Verdict("True", "Distributed", f"all {spread.desired} clusters that want it have it")


def scoring(plan: ScorerPlan, spread: Spread, cycles: Cycles) -> Verdict:
    """Condition Scoring: True while no cluster fails and at least one has a score."""
    if spread.desired == 0:
        return Verdict("False", "NotDistributed", "it runs on no cluster; see the other conditions")
    if plan.is_suspended:
        if plan.suspended_until is None:
            return Verdict("False", "Suspended", "spec.execution.suspend is true")
        until = rfc3339(datetime.fromtimestamp(plan.suspended_until, UTC))
        return Verdict("False", "Suspended", f"paused until {until} by its annotation")
    if cycles.failing > 0:
        reason = "AllClustersFail" if cycles.failing >= spread.desired else "SomeClustersFail"
        text = f"{cycles.failing} of {spread.desired} clusters fail"
        if cycles.failures:
            newest = cycles.failures[0]
            where = f"{newest.cluster}, {newest.stage}" if newest.stage else newest.cluster
            text += f"; newest: {where}, {newest.reason}: {newest.message}"
        return Verdict("False", reason, text)
    if cycles.unwritten > 0:
        text = f"{cycles.unwritten} of {spread.desired} scores cannot be written; {cycles.refusal}"
        return Verdict("False", "ScoresNotWritten", text)
    if cycles.skips is not None:
        # Without the number of ticks, which would make it another text every time.
        skips = cycles.skips
        text = f"{cycles.idle} of {spread.desired} clusters have no score, for they are sent no ticks; longest: "
        text += f"{skips.cluster}, {skips.reason}: {skips.why(plan.scorer.spec.execution.rate_limit)}"
        return Verdict("False", "TicksSkipped", text)
    if cycles.succeeding == 0:
        return Verdict("Unknown", "NoCyclesYet", "no cycle has ended yet")
    return Verdict("True", "CyclesSucceed", f"{cycles.succeeding} of {spread.desired} clusters have a score")


def config_status(
    config: DynamicScoringConfig,
    *,
    clusters: int,
    distributed: int,
    scorers: int,
    masked: int,
    now: datetime,
    agents: Mapping[str, str] | None = None,
) -> DynamicScoringConfigStatus:
    """The status of the configuration that counts; `distributed` of `clusters` have been told what to run.

    `agents` says of each cluster whose agent is too old or too new what that means; None when it is not known now.
    """
    if clusters == 0:
        verdict = Verdict("False", "NoClusters", "no ManagedCluster is accepted")
    elif distributed < clusters:
        verdict = Verdict("False", _DISTRIBUTING, f"{distributed} of {clusters} clusters are up to date")
    else:
        verdict = Verdict("True", "Distributed", f"all {clusters} accepted clusters are up to date")
    conditions = _only("Distributed", verdict, config, now)
    known = [old for old in config.status.conditions if old.type == AGENTS_SUPPORTED]
    if agents is None:
        conditions += known
    elif agents or known:
        conditions += _only(AGENTS_SUPPORTED, _agents_verdict(agents), config, now)
    return DynamicScoringConfigStatus(
        observed_generation=config.metadata.generation,
        conditions=conditions,
        clusters=clusters,
        scorers=scorers,
        masked=masked,
    )


def _agents_verdict(problems: Mapping[str, str]) -> Verdict:
    if not problems:
        return Verdict("True", "AgentsSupported", "the agents of all clusters speak with this hub")
    shown = [f"{cluster}: {problem}" for cluster, problem in sorted(problems.items())[:MAX_FAILURES]]
    more = len(problems) - len(shown)
    text = "; ".join([*shown, *([f"and {more} more"] if more else [])])
    return Verdict("False", "AgentVersionNotSupported", text)


def ignored_config_status(config: DynamicScoringConfig, namespace: str, *, now: datetime) -> DynamicScoringConfigStatus:
    """The status of another configuration than the one that counts, which is in `namespace`."""
    reason = "OtherName" if config.metadata.name != CONFIG_NAME else "OtherNamespace"
    text = f"only the DynamicScoringConfig {CONFIG_NAME} in namespace {namespace} counts"
    return DynamicScoringConfigStatus(
        observed_generation=config.metadata.generation,
        conditions=_only(IGNORED, Verdict("True", reason, text), config, now),
    )


def _only(kind: str, verdict: Verdict, config: DynamicScoringConfig, now: datetime) -> list[Condition]:
    new = Condition(
        type=kind,
        status=verdict.status,
        reason=verdict.reason,
        message=verdict.message,
        last_transition_time=now,
        observed_generation=config.metadata.generation,
    )
    return set_condition([old for old in config.status.conditions if old.type == kind], new)
