"""Builds conditions and statuses of DynamicScorer and DynamicScoringConfig. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal, NamedTuple, Self

from dsf.api.meta import Condition, ObjectMeta, format_rfc3339, set_condition
from dsf.api.scorer import MAX_FAILURES, ClusterNumbers, DynamicScorer, DynamicScorerStatus
from dsf.api.scoringconfig import DynamicScoringConfig, DynamicScoringConfigStatus
from dsf.api.types import (
    ADDON_NAME,
    CONFIG_NAME,
    OBSOLETE_FINALIZERS,
    OTHER_NAMESPACE,
    TERMINATING,
    ConditionType,
    ConfigSyncMode,
    HealthStatus,
    ResolveReason,
)
from dsf.hub.cycleoutcomes import ITEMS_REPLACED, NO_ITEMS, CycleOutcomes
from dsf.hub.health import FAILURE_THRESHOLD, Health
from dsf.hub.scorerplan import INVALID, Obstacle, ScorerPlan
from dsf.store.entries import Pace, Pauses, ScheduleOverride
from dsf.text import list_names

#: Condition of a DynamicScoringConfig that is ignored.
IGNORED: Final = "Ignored"
#: Condition of the effective DynamicScoringConfig; present once an agent was too old or too new.
AGENTS_SUPPORTED: Final = "AgentsSupported"
#: Reason of conditions before the first check.
NOT_CHECKED_YET: Final = "NotCheckedYet"
#: Conditions of a DynamicScorer that does not run in this hub, and of an unreadable DynamicScorer.
_CONDITIONS_OF_STOPPED: Final = (ConditionType.Scoring, ConditionType.Ready)
_CONDITIONS_OF_UNREADABLE: Final = (ConditionType.ConfigSynced, ConditionType.Distributed, *_CONDITIONS_OF_STOPPED)
#: Conditions of a deleted object that finalizers keep.
_CONDITIONS_OF_TERMINATING: Final = (ConditionType.Distributed, *_CONDITIONS_OF_STOPPED)
# Further reasons.
NOT_DISTRIBUTED: Final = "NotDistributed"
_NO_CONFIG: Final = "NoScoringConfig"
_DISTRIBUTING: Final = "Distributing"
_NO_CLUSTERS: Final = "NoClusters"
_NO_CYCLES: Final = "NoCyclesYet"
_NOT_SELECTED: Final = "NotSelected"
_SOME_FAIL: Final = "SomeClustersFail"
_ALL_FAIL: Final = "AllClustersFail"
#: Reasons that end without a change of the object, and with which Ready is Unknown.
_TEMPORARY_REASONS: Final = frozenset(
    {NOT_CHECKED_YET, NOT_DISTRIBUTED, _DISTRIBUTING, _NO_CLUSTERS, _NO_CONFIG, _NO_CYCLES, _NOT_SELECTED}
)
#: Conditions that Ready summarizes, each cause before its effects.
_SUMMARIZED_CONDITIONS: Final = (
    ConditionType.ConfigSynced,
    ConditionType.Healthy,
    ConditionType.Distributed,
    ConditionType.Scoring,
)


class Statement(NamedTuple):
    """Status, reason and message of a condition."""

    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str

    @classmethod
    def from_obstacle(cls, obstacle: Obstacle) -> Self:
        """Return a False statement with the reason and message of an obstacle."""
        return cls("False", obstacle.reason, obstacle.message)


@dataclass(frozen=True)
class DeliveryCounts:
    """Numbers of clusters on which a scorer should run and to which it is delivered."""

    #: Number of accepted clusters, including those on which the scorer does not run.
    clusters: int
    #: Number of clusters on which the scorer should run, and of those to which it is delivered.
    desired: int
    distributed: int
    #: `namespace/name` of the effective configuration, for messages.
    config: str
    #: True if the effective configuration exists.
    is_enabled: bool
    #: Why the effective configuration cannot be read; empty if it is readable or absent.
    config_error: str = ""
    #: Text about the effective configuration while it is being deleted; empty otherwise.
    config_terminating: str = ""
    #: True if `distributed` covers every cluster, which is not yet so right after a start.
    is_counted: bool = True
    #: Delivery error of one of the missing clusters, `<cluster>: <error>`; empty if no delivery failed.
    problem: str = ""
    #: True if the API server rejected the delivery, which needs manual action.
    is_refused: bool = False
    #: Number of accepted clusters without a ManagedClusterAddOn, which are left out.
    without_addon: int = 0


def make_scorer_status(
    plan: ScorerPlan,
    health: Health,
    deliveries: DeliveryCounts,
    cycles: CycleOutcomes | None,
    pace: Pace | None,
    *,
    previous: DynamicScorerStatus,
    now: datetime,
) -> DynamicScorerStatus:
    """Return the complete status of a scorer. Previous values stay if `cycles` or `pace` cannot be read (None)."""
    generation, resolved_scorer = plan.scorer.metadata.generation, plan.resolved_scorer
    distributed_statement = judge_distributed(plan, health, deliveries)
    scoring_statement = judge_scoring(plan, deliveries, cycles, pace.pauses if pace else Pauses()) if cycles else None
    if (
        scoring_statement
        and scoring_statement.reason == NOT_DISTRIBUTED
        and distributed_statement
        and distributed_statement.status == "False"
    ):
        # Report the cause, because kubectl shows the reason of condition Scoring.
        scoring_statement = distributed_statement
    statements: dict[str, Statement | None] = {
        ConditionType.Healthy: judge_healthy(plan, health),
        ConditionType.ConfigSynced: judge_config_synced(plan, health),
        ConditionType.Distributed: distributed_statement,
        ConditionType.Scoring: scoring_statement,
    }
    if (tls_verified := judge_tls_verified(plan, previous)) is not None:
        statements[ConditionType.TLSVerified] = tls_verified
    conditions = _apply_statements(previous.conditions, statements, generation, now)
    if cycles is not None:
        statement = judge_ready(conditions, plan, health, cycles)
        if statement.reason == _NO_CONFIG and (deliveries.config_error or deliveries.config_terminating):
            statement = statement._replace(status="False")
        conditions = _apply_statements(conditions, {ConditionType.Ready: statement}, generation, now)
    declared_interval = resolved_scorer.summary.scoring_interval if resolved_scorer is not None else None
    if pace is None:
        interval = previous.interval if declared_interval == previous.declared_interval else declared_interval
        pace = Pace(interval or 0, min(previous.clusters_with_other_interval, deliveries.desired))
    counts = cycles or _restore_cycles(previous, deliveries.desired)
    return DynamicScorerStatus(
        health_status=health.status,
        last_synced_config=health.config,
        last_synced_config_time=_find_config_time(health, previous, now),
        observed_generation=generation,
        conditions=conditions,
        score_name=resolved_scorer.score_name if resolved_scorer is not None else "",
        interval=pace.interval if resolved_scorer is not None else None,
        declared_interval=declared_interval,
        clusters_with_other_interval=pace.other_interval_clusters,
        clusters=ClusterNumbers(
            desired=deliveries.desired, succeeding=counts.succeeding, empty=counts.empty, failing=counts.failing
        ),
        failures=counts.failures,
    )


def _restore_cycles(previous_status: DynamicScorerStatus, desired_count: int) -> CycleOutcomes:
    """Return the cycle outcomes of the previous status, each limited to `desired_count` clusters."""
    succeeding_count, empty_count, failing_count = (
        min(number, desired_count)
        for number in (
            previous_status.clusters.succeeding,
            previous_status.clusters.empty,
            previous_status.clusters.failing,
        )
    )
    return CycleOutcomes(succeeding_count, failing_count, empty=empty_count, failures=previous_status.failures)


def _find_config_time(health: Health, previous_status: DynamicScorerStatus, now: datetime) -> datetime | None:
    """Return the time of the last change of /config, or None if there is no /config."""
    if health.config is None:
        return None
    is_same = health.config == previous_status.last_synced_config
    return previous_status.last_synced_config_time or now if is_same else now


def make_ignored_scorer_status(scorer: DynamicScorer, namespace: str, *, now: datetime) -> DynamicScorerStatus:
    """Return the status of a scorer in an ignored namespace; `namespace` is the hub's own namespace."""
    text = (
        f"only DynamicScorers in namespace {namespace} count, and those of DSF_SCORER_NAMESPACES (the chart's "
        "hubSetting.scorerNamespaces): create it there, or have the hub's admin add its namespace"
    )
    statement = Statement("False", OTHER_NAMESPACE, text)
    return _make_minimal_status(
        _CONDITIONS_OF_STOPPED, statement, scorer.status.conditions, scorer.metadata.generation, now
    )


def make_failed_scorer_status(scorer: DynamicScorer, obstacle: Obstacle, *, now: datetime) -> DynamicScorerStatus:
    """Return the status of a scorer with an internal error, in which all other conditions and fields stay."""
    statements: dict[str, Statement | None] = dict.fromkeys(_CONDITIONS_OF_STOPPED, Statement.from_obstacle(obstacle))
    conditions = _apply_statements(scorer.status.conditions, statements, scorer.metadata.generation, now)
    return scorer.status.model_copy(update={"conditions": conditions})


def make_unreadable_scorer_status(
    parse_error: str, previous_conditions: list[Condition], generation: int, *, now: datetime
) -> DynamicScorerStatus:
    """Return the status of a scorer with an unreadable manifest, without the conditions of a running scorer."""
    statement = Statement(
        "False", INVALID, f"{parse_error}; until it is mended nothing runs, earlier scores stay until they expire"
    )
    return _make_minimal_status(_CONDITIONS_OF_UNREADABLE, statement, previous_conditions, generation, now)


def make_terminating_scorer_status(
    previous_conditions: list[Condition], metadata: ObjectMeta, *, now: datetime
) -> DynamicScorerStatus:
    """Return the status of a deleted scorer that finalizers keep."""
    statement = Statement("False", TERMINATING, f"{describe_deletion(metadata)}; it runs nowhere")
    return _make_minimal_status(_CONDITIONS_OF_TERMINATING, statement, previous_conditions, metadata.generation, now)


def describe_deletion(metadata: ObjectMeta) -> str:
    """Return the text for users about a deleted object that finalizers keep."""
    since_text = f" since {format_rfc3339(metadata.deletion_timestamp)}" if metadata.deletion_timestamp else ""
    # Omit obsolete finalizers, which the hub itself removes.
    names = list_names([name for name in metadata.finalizers if name not in OBSOLETE_FINALIZERS], 3) or "none"
    return (
        f"it is being deleted{since_text} and stays until the owners of its finalizers ({names}) remove them; a "
        "changed "
        "manifest has no effect until it is gone: then apply it again"
    )


def _make_minimal_status(
    kinds: Sequence[str], statement: Statement, previous_conditions: list[Condition], generation: int, now: datetime
) -> DynamicScorerStatus:
    """Return a status that has only these conditions."""
    kept_conditions = [condition for condition in previous_conditions if condition.type in kinds]
    conditions = _apply_statements(kept_conditions, dict.fromkeys(kinds, statement), generation, now)
    return DynamicScorerStatus(observed_generation=generation, conditions=conditions)


def _apply_statements(
    conditions: list[Condition], statements: Mapping[str, Statement | None], generation: int, now: datetime
) -> list[Condition]:
    """Return the conditions, updated by these statements. An existing condition stays if its statement is None."""
    for kind, statement in statements.items():
        if statement is None and any(condition.type == kind for condition in conditions):
            continue
        status, reason, message = statement or Statement("Unknown", NOT_CHECKED_YET, "not known yet")
        condition = Condition(
            type=str(kind),
            status=status,
            reason=reason,
            # The CRD limits the length.
            message=message[:32768],
            last_transition_time=now,
            observed_generation=generation,
        )
        conditions = set_condition(conditions, condition)
    return conditions


def judge_ready(conditions: Sequence[Condition], plan: ScorerPlan, health: Health, cycles: CycleOutcomes) -> Statement:
    """Return condition Ready, which summarizes the other conditions for `kubectl wait` and GitOps tools.

    The status is False only if a user must act, with the reason of the condition that reports the problem. The status
    is Unknown during temporary states: a rollout, before the end of the first cycle, a scoring API that is starting,
    failing cycles while earlier scores are valid, and an invalid `/config` while the last valid one is in effect.
    """
    condition_by_type = {condition.type: condition for condition in conditions}
    unmet_conditions = [
        condition_by_type[kind]
        for kind in _SUMMARIZED_CONDITIONS
        if kind in condition_by_type and condition_by_type[kind].status != "True"
    ]
    was_false = ConditionType.Ready in condition_by_type and condition_by_type[ConditionType.Ready].status == "False"
    is_starting = 0 < health.failures < FAILURE_THRESHOLD and health.status is not HealthStatus.Active and not was_false
    temporary_reasons = set(_TEMPORARY_REASONS)
    if plan.obstacle is None and health.status is HealthStatus.Active and health.config_failure is not None:
        temporary_reasons.add(health.config_failure.reason)
    if cycles.failing_without_score == 0:
        temporary_reasons |= {_SOME_FAIL, _ALL_FAIL}
    bad_conditions = [
        condition
        for condition in unmet_conditions
        if condition.status == "False" and condition.reason not in temporary_reasons and not is_starting
    ]
    for unmet_condition in bad_conditions[:1] or unmet_conditions[:1]:
        return Statement("False" if bad_conditions else "Unknown", unmet_condition.reason, unmet_condition.message)
    scoring_condition = condition_by_type[ConditionType.Scoring]
    return Statement("True", scoring_condition.reason, scoring_condition.message)


def judge_healthy(plan: ScorerPlan, health: Health) -> Statement | None:
    """Return condition Healthy; None if no check has ended yet, so that the earlier condition stays."""
    if not health.is_checked:
        return None
    if health.status is HealthStatus.Active and health.failure is None:
        if plan.scorer.spec.scoring.expression is not None:
            return Statement("True", "ExpressionValid", "the expression compiles")
        return Statement("True", "HealthCheckPassed", "the scoring API answers its health checks")
    if health.failure is None:
        return None
    if health.status is HealthStatus.Active:
        text = f"{health.failures} of {FAILURE_THRESHOLD} failed checks in a row: {health.failure.message}"
        return Statement("True", "HealthCheckFailing", text)
    return Statement.from_obstacle(health.failure)


def judge_config_synced(plan: ScorerPlan, health: Health) -> Statement | None:
    """Return condition ConfigSynced: whether spec and `/config` are complete, and whether `/config` is valid now."""
    obstacle = plan.obstacle
    if plan.scorer.spec.config_sync_mode is not ConfigSyncMode.Full:
        if obstacle is not None:
            return Statement.from_obstacle(obstacle)
        if plan.scorer.spec.scoring.expression is not None:
            return Statement("True", "SpecOnly", "a scorer with an expression has no /config")
        return Statement("True", "SpecOnly", "configSyncMode is None: the values of the spec are used")
    if health.config is None:
        failure = health.config_failure or health.failure
        if failure is not None:
            return Statement("False", failure.reason, f"/config was never read: {failure.message}")
        return None
    if obstacle is not None:
        return Statement.from_obstacle(obstacle)
    if health.config_failure is not None:
        text = f"{health.config_failure.message}; the last good configuration stays in force"
        return Statement("False", health.config_failure.reason, text)
    if not health.is_checked:
        return None
    return Statement("True", "Synced", "the configuration of configURL is in force")


def judge_tls_verified(plan: ScorerPlan, previous_status: DynamicScorerStatus) -> Statement | None:
    """Return condition TLSVerified: whether agents verify all server certificates; None if they always did."""
    summaries = [
        variant for variant in plan.variants.values() if variant is not None and not isinstance(variant, Obstacle)
    ]
    summaries += [plan.resolved_scorer.summary] if plan.resolved_scorer is not None else []
    servers = [("scoring API", summary.scoring_access) for summary in summaries]
    for summary in summaries:
        for source in summary.each_source:
            name = "source" if source.source_name is None else f"source {source.source_name!r}"
            servers.append((name, source.source_access))
    names = sorted({name for name, access in servers if access and access.tls and access.tls.insecure_skip_verify})
    if names:
        text = (
            f"INSECURE: agents do not verify the certificate of the {' and the '.join(reversed(names))} "
            "(insecureSkipVerify): whoever is in between reads the data and the credentials, and can make up scores; "
            "use tls.caRef instead"
        )
        return Statement("False", "InsecureSkipVerify", text)
    if any(condition.type == ConditionType.TLSVerified for condition in previous_status.conditions):
        return Statement("True", "Verified", "agents verify the certificates of all its servers")
    return None


def _describe_missing_config(deliveries: DeliveryCounts) -> str:
    if deliveries.config_error:
        return f"the DynamicScoringConfig {deliveries.config} has a mistake, so nothing runs: {deliveries.config_error}"
    if deliveries.config_terminating:
        return f"nothing runs without the DynamicScoringConfig {deliveries.config}: {deliveries.config_terminating}"
    return f"there is no DynamicScoringConfig {deliveries.config}; scoring starts when it is created"


def judge_distributed(plan: ScorerPlan, health: Health, deliveries: DeliveryCounts) -> Statement | None:
    """Return condition Distributed: whether the scorer is delivered to every cluster on which it should run.

    The result is None while the counts are incomplete, so that the earlier condition stays.
    """
    if plan.obstacle is not None and not (health.config is None and not health.is_checked):
        return Statement.from_obstacle(plan.obstacle)
    if health.status is HealthStatus.Unknown:
        return Statement("Unknown", NOT_CHECKED_YET, "the first health check has not ended yet")
    if plan.runnable is None:
        return Statement("False", "NotHealthy", "the scoring API does not pass its health checks, so it runs nowhere")
    if not deliveries.is_enabled:
        return Statement("False", _NO_CONFIG, _describe_missing_config(deliveries))
    if deliveries.clusters == 0:
        return _make_no_clusters_statement(deliveries.without_addon)
    if obstacles := plan.obstacles:
        cluster, first_obstacle = min(obstacles.items())
        suffix = f", and {len(obstacles) - 1} more" if len(obstacles) > 1 else ""
        text = (
            f"it cannot run on {len(obstacles)} of {deliveries.clusters} clusters: "
            f"{cluster}{suffix}: {first_obstacle.message}"
        )
        return Statement("False", first_obstacle.reason, text)
    if len(plan.variants) >= deliveries.clusters and not any(plan.variants.values()):
        text = f"spec.clusterSelector selects none of {deliveries.clusters} clusters"
        return Statement("False", _NOT_SELECTED, text)
    if deliveries.desired == 0:
        return Statement("False", "Masked", f"the DynamicScoringConfig {deliveries.config} masks it on every cluster")
    if deliveries.distributed < deliveries.desired:
        text = f"{deliveries.distributed} of {deliveries.desired} clusters have it"
        if deliveries.problem:
            reason = "DistributionRefused" if deliveries.is_refused else _DISTRIBUTING
            return Statement("False", reason, f"{text}; {deliveries.problem}")
        if not deliveries.is_counted:
            return None
        return Statement("False", _DISTRIBUTING, text)
    return Statement("True", "Distributed", f"all {deliveries.desired} clusters that want it have it")


def judge_scoring(
    plan: ScorerPlan,
    deliveries: DeliveryCounts,
    cycles: CycleOutcomes,
    pauses: Pauses = Pauses(),  # noqa: B008
) -> Statement:
    """Return condition Scoring: True if no cluster fails and at least one has a score.

    The message always mentions manual pauses. If all clusters are paused, the reason is `Paused`.
    """
    if not pauses.clusters or deliveries.desired == 0 or plan.is_suspended:
        return _judge_cycles(plan, deliveries, cycles)
    text = _describe_pause(pauses)
    if pauses.clusters >= deliveries.desired:
        return Statement("False", "Paused", text)
    statement = _judge_cycles(plan, deliveries, cycles)
    message = (
        f"{statement.message}; {pauses.clusters} of {deliveries.desired} clusters are paused, {pauses.cluster}: {text}"
    )
    return statement._replace(message=message)


def _describe_pause(pauses: Pauses) -> str:
    override = pauses.override or ScheduleOverride()
    end_text = (
        f" until {format_rfc3339(datetime.fromtimestamp(override.paused_until, UTC))}" if override.paused_until else ""
    )
    return f"paused by {override.by or 'somebody'}{end_text}{': ' if override.note else ''}{override.note}"


def _judge_cycles(plan: ScorerPlan, deliveries: DeliveryCounts, cycles: CycleOutcomes) -> Statement:
    if deliveries.desired == 0:
        return Statement("False", NOT_DISTRIBUTED, "it runs on no cluster; see the other conditions")
    if plan.is_suspended:
        if plan.suspended_until is None:
            return Statement("False", "Suspended", "spec.execution.suspend is true")
        pause_end = format_rfc3339(datetime.fromtimestamp(plan.suspended_until, UTC))
        return Statement("False", "Suspended", f"paused until {pause_end} by its annotation")
    if cycles.failing > 0:
        reason = _ALL_FAIL if cycles.failing >= deliveries.desired else _SOME_FAIL
        text = f"{cycles.failing} of {deliveries.desired} clusters fail"
        if cycles.failures:
            newest_failure = cycles.failures[0]
            failure_text = (
                f"{newest_failure.cluster}, {newest_failure.stage}" if newest_failure.stage else newest_failure.cluster
            )
            text += f"; newest: {failure_text}, {newest_failure.reason}: {newest_failure.message}"
        return Statement("False", reason, text)
    if cycles.unwritten > 0:
        text = f"{cycles.unwritten} of {deliveries.desired} scores cannot be written; {cycles.refusal}"
        return Statement("False", cycles.unwritten_reason, text)
    if cycles.skips is not None:
        # Omit the number of ticks, because the text would change with every tick.
        skips = cycles.skips
        text = f"{cycles.idle} of {deliveries.desired} clusters have no score, for they are sent no ticks; longest: "
        text += f"{skips.cluster}, {skips.reason}: {skips.explain(plan.scorer.spec.execution.rate_limit)}"
        return Statement("False", "TicksSkipped", text)
    return _judge_results(deliveries, cycles)


def _judge_results(deliveries: DeliveryCounts, cycles: CycleOutcomes) -> Statement:
    """Return the statement about the results of cycles if no cycle fails."""
    remark = f"; {cycles.remark}" if cycles.remark else ""
    empty_text = (
        f"the scoring API answers without usable results on {cycles.empty} of {deliveries.desired} clusters{remark}"
    )
    if cycles.succeeding == 0:
        if cycles.empty:
            return Statement("False", NO_ITEMS, f"no cluster has a score: {empty_text}")
        if cycles.expired:
            text = f"{cycles.expired} of {deliveries.desired} scores have expired, and no newer cycle has ended"
            return Statement("False", "ScoresExpired", text)
        return Statement("Unknown", _NO_CYCLES, "no cycle has ended yet")
    text = f"{cycles.succeeding} of {deliveries.desired} clusters have a score"
    if cycles.empty:
        return Statement("True", "CyclesSucceed", f"{text}; {empty_text}")
    if cycles.remark:
        remark_summary = (
            "some results replace each other" if cycles.remark_reason == ITEMS_REPLACED else "some results are refused"
        )
        return Statement("True", cycles.remark_reason, f"{text}; {remark_summary} on {cycles.remarked}{remark}")
    return Statement("True", "CyclesSucceed", text)


def _make_no_clusters_statement(without_addon: int) -> Statement:
    text = "no ManagedCluster is accepted"
    if without_addon:
        text = f"none of {without_addon} accepted clusters has the ManagedClusterAddOn {ADDON_NAME} yet"
    return Statement("False", _NO_CLUSTERS, text)


def make_config_status(
    config: DynamicScoringConfig,
    *,
    clusters: int,
    distributed: int,
    scorers: int,
    masked: int,
    now: datetime,
    agents: Mapping[str, str] | None = None,
    without_addon: int = 0,
    without_room: Sequence[str] = (),
) -> DynamicScoringConfigStatus:
    """Return the status of the effective configuration.

    `clusters` is the number of accepted clusters, and `distributed` the number of those that are up to date. `agents`
    describes the problem of each cluster whose agent is too old or too new; None if that is currently unknown.
    `without_addon` is the number of accepted clusters without the add-on. `without_room` are the scorers that do not
    fit into the ManifestWork of some cluster.
    """
    if clusters == 0:
        statement = _make_no_clusters_statement(without_addon)
    elif distributed < clusters:
        statement = Statement("False", _DISTRIBUTING, f"{distributed} of {clusters} clusters are up to date")
    elif without_room:
        statement = Statement(
            "False",
            str(ResolveReason.NoRoom),
            f"{len(without_room)} scorers have no room in the ManifestWork of some clusters, and do not run there; "
            f"condition Distributed of {min(without_room)} says what to do; all others are up to date",
        )
    else:
        statement = Statement("True", "Distributed", f"all {clusters} accepted clusters are up to date")
    statements: dict[str, Statement | None] = {"Distributed": statement}
    previous_conditions = [old for old in config.status.conditions if old.type != IGNORED]
    if agents or (agents is not None and any(old.type == AGENTS_SUPPORTED for old in previous_conditions)):
        statements[AGENTS_SUPPORTED] = _make_agents_statement(agents)
    conditions = _apply_statements(previous_conditions, statements, config.metadata.generation, now)
    unsupported_conditions = [
        condition for condition in conditions if condition.type == AGENTS_SUPPORTED and condition.status == "False"
    ]
    if statement.reason in _TEMPORARY_REASONS:
        statement = statement._replace(status="Unknown")
    elif unsupported_conditions and statement.status == "True":
        statement = Statement("False", unsupported_conditions[0].reason, unsupported_conditions[0].message)
    conditions = _apply_statements(conditions, {ConditionType.Ready: statement}, config.metadata.generation, now)
    return DynamicScoringConfigStatus(
        observed_generation=config.metadata.generation,
        conditions=conditions,
        clusters=clusters,
        scorers=scorers,
        masked=masked,
    )


def _make_agents_statement(problems: Mapping[str, str]) -> Statement:
    if not problems:
        return Statement("True", "AgentsSupported", "the agents of all clusters speak with this hub")
    problem_lines = [f"{cluster}: {problem}" for cluster, problem in sorted(problems.items())[:MAX_FAILURES]]
    omitted_count = len(problems) - len(problem_lines)
    text = "; ".join([*problem_lines, *([f"and {omitted_count} more"] if omitted_count else [])])
    return Statement("False", "AgentVersionNotSupported", text)


def make_terminating_config_status(config: DynamicScoringConfig, *, now: datetime) -> DynamicScoringConfigStatus:
    """Return the status of a deleted configuration that finalizers keep."""
    metadata = config.metadata
    statement = Statement("False", TERMINATING, f"{describe_deletion(metadata)}; its masks do not count")
    statements: dict[str, Statement | None] = {"Distributed": statement, ConditionType.Ready: statement}
    previous_conditions = [condition for condition in config.status.conditions if condition.type in statements]
    conditions = _apply_statements(previous_conditions, statements, metadata.generation, now)
    return DynamicScoringConfigStatus(observed_generation=metadata.generation, conditions=conditions)


def make_ignored_config_status(
    config: DynamicScoringConfig, namespace: str, *, now: datetime, stops_scorers: bool = False
) -> DynamicScoringConfigStatus:
    """Return the status of a configuration other than the effective one, which is in `namespace`.

    `stops_scorers` is True if this configuration stops the DynamicScorers in its own namespace.
    """
    reason = "OtherName" if config.metadata.name != CONFIG_NAME else OTHER_NAMESPACE
    text = f"only the DynamicScoringConfig {CONFIG_NAME} in namespace {namespace} counts"
    if stops_scorers and reason == OTHER_NAMESPACE:
        text += (
            f": add these masks to that one, and delete this one; until then no DynamicScorer of namespace "
            f"{config.metadata.namespace} runs"
        )
    statements = {
        IGNORED: Statement("True", reason, text),
        ConditionType.Ready: Statement("False", reason, text),
    }
    previous_conditions = [condition for condition in config.status.conditions if condition.type in statements]
    conditions = _apply_statements(previous_conditions, statements, config.metadata.generation, now)
    return DynamicScoringConfigStatus(observed_generation=config.metadata.generation, conditions=conditions)
