"""Conditions of scorers and configurations."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from dsf.api.scorer import DynamicScorer, DynamicScorerStatus
from dsf.api.types import HealthStatus
from dsf.hub.conditions import DeliveryCounts, make_config_status, make_ignored_config_status, make_scorer_status
from dsf.hub.cycleoutcomes import CycleOutcomes
from dsf.hub.health import Health
from dsf.hub.plan import make_plan
from dsf.hub.scorerplan import Obstacle
from dsf.store.entries import Pace, Pauses, ScheduleOverride
from dsf.store.pairs import PairFailure, PairState, Unwritten, parse_row_fields
from dsf.store.ticks import Skips
from tests.unit.hub.builders import NOW, cluster, config, scorer

DOWN = Obstacle("Timeout", "no response")
ACTIVE = Health(HealthStatus.Active, is_checked=True, is_proven=True)
EVERYWHERE = DeliveryCounts(clusters=2, desired=2, distributed=2, config="hub/dynamic-scoring-config", is_enabled=True)


def status(
    dynamic_scorer: DynamicScorer | None = None,
    health: Health = ACTIVE,
    spread: DeliveryCounts = EVERYWHERE,
    cycles: CycleOutcomes | None = CycleOutcomes(),  # noqa: B008 (frozen)
    pace: Pace | None = None,
    previous: DynamicScorerStatus | None = None,
    seconds: int = 0,
) -> DynamicScorerStatus:
    present = dynamic_scorer or scorer()
    plan = make_plan([present], config(), [cluster("a"), cluster("b")], NOW)
    return make_scorer_status(
        plan.scorers[present.key],
        health,
        spread,
        cycles,
        pace,
        previous=previous or DynamicScorerStatus(),
        now=NOW + timedelta(seconds=seconds),
    )


def status_and_reason(scorer_status: DynamicScorerStatus, kind: str) -> tuple[str, str]:
    return next(
        (condition.status, condition.reason) for condition in scorer_status.conditions if condition.type == kind
    )


def message(scorer_status: DynamicScorerStatus, kind: str = "Scoring") -> str:
    return next(condition.message for condition in scorer_status.conditions if condition.type == kind)


def state(name: str, **fields: str) -> PairState:
    return PairState(name, "s", **parse_row_fields(name, json.dumps(fields)))


def failure(message: str, at: float) -> str:
    return PairFailure(run="r", stage="fetch", reason="timeout", message=message, at=at).model_dump_json()


def test_earlier_healthy_condition_stays_until_the_first_check() -> None:
    before = status()
    assert status_and_reason(status(health=Health(HealthStatus.Active), previous=before), "Healthy") == (
        "True",
        "HealthCheckPassed",
    )


def test_unreadable_configuration_is_not_reported_as_missing() -> None:
    broken = replace(EVERYWHERE, is_enabled=False, desired=0, config_error="spec.masks: not a list")
    assert message(status(spread=broken), "Distributed") == (
        "the DynamicScoringConfig hub/dynamic-scoring-config has a mistake, so nothing runs: spec.masks: not a list"
    )


def test_config_synced_says_first_what_keeps_it_from_running() -> None:
    full = scorer(mode="Full", scoring={})
    fresh = Health()
    assert status_and_reason(status(full, fresh), "ConfigSynced") == ("Unknown", "NotCheckedYet")
    assert status_and_reason(status(full, fresh), "Distributed") == ("Unknown", "NotCheckedYet")
    unread = Health(HealthStatus.Inactive, failure=DOWN, config_failure=Obstacle("ConfigInvalid", "x"), is_checked=True)
    assert status_and_reason(status(full, unread), "ConfigSynced") == ("False", "ConfigInvalid")
    assert status_and_reason(status(scorer(scoring={})), "ConfigSynced") == ("False", "MissingScoreName")


def test_scoring_counts_clusters_and_shows_the_newest_failures_first() -> None:
    states = [state("good", last_success="1", failing="0", valid_until="9"), state("new")]
    states += [state(f"bad-{n:02}", failing="1", failure=failure(f"m{n}", 100.0 + n)) for n in range(12)]
    cycles = CycleOutcomes.from_states(states, 0.0)
    assert (cycles.succeeding, cycles.failing) == (1, 12)
    assert [failed_cycle.message for failed_cycle in cycles.failures] == [f"m{n}" for n in range(11, 1, -1)]
    scorer_status = status(spread=replace(EVERYWHERE, desired=14), cycles=cycles)
    assert status_and_reason(scorer_status, "Scoring") == ("False", "SomeClustersFail")
    assert scorer_status.clusters.model_dump() == {"desired": 14, "succeeding": 1, "empty": 0, "failing": 12}


def test_scoring_says_why_it_runs_nowhere() -> None:
    nowhere = replace(EVERYWHERE, desired=0, distributed=0)
    assert status_and_reason(status(spread=nowhere), "Scoring") == ("False", "Masked")
    # All three have the same message, so kubectl's column does too.
    scorer_status = status(scorer(scoring={}), spread=nowhere)
    kinds = ("ConfigSynced", "Distributed", "Scoring")
    assert {status_and_reason(scorer_status, kind) for kind in kinds} == {("False", "MissingScoreName")}
    assert len({condition.message for condition in scorer_status.conditions if condition.type in kinds}) == 1


def test_cycles_that_only_expire_are_a_failure_with_a_reason() -> None:
    few = state("few", last_success="1", valid_until="9", expired="2", expired_at="5")
    many = state("many", last_success="1", valid_until="9", expired="3", expired_run="r", expired_at="5")
    cycles = CycleOutcomes.from_states([few, many], 0.0)
    assert (cycles.succeeding, cycles.failing) == (1, 1)
    (failed_cycle,) = cycles.failures
    assert (failed_cycle.cluster, failed_cycle.stage, failed_cycle.reason) == ("many", "", "expired")
    scorer_status = status(cycles=cycles)
    assert status_and_reason(scorer_status, "Scoring") == ("False", "SomeClustersFail")
    assert "many, expired: its cycles wait in the queue of many" in message(scorer_status)


def _unwritten(message: str) -> Unwritten:
    return Unwritten(reason="ScoresNotWritten", message=message, since=1.0)


def test_scores_that_cannot_be_written_are_reported() -> None:
    states = [
        PairState(name, "s", last_success=1, valid_until=9, unwritten_text=cause.model_dump_json())
        for name, cause in (("a", _unwritten("403: no")), ("b", _unwritten("403: other")))
    ]
    cycles = CycleOutcomes.from_states([state("good", last_success="1", valid_until="9"), *states], 0.0)
    scorer_status = status(spread=replace(EVERYWHERE, desired=3), cycles=cycles)
    assert status_and_reason(scorer_status, "Scoring") == ("False", "ScoresNotWritten")
    assert message(scorer_status) == "2 of 3 scores cannot be written; a: 403: no"
    assert status_and_reason(scorer_status, "Ready") == ("False", "ScoresNotWritten")
    assert (scorer_status.clusters.succeeding, scorer_status.clusters.desired) == (1, 3)


def test_no_items_is_not_a_score_and_an_expired_one_is_none_either() -> None:
    good = state("good", last_success="1", valid_until="9", items="2")
    empty = [state(name, last_success="1", valid_until="9", items="0") for name in "ab"]
    cycles = CycleOutcomes.from_states(empty, 1.0)
    assert (cycles.succeeding, cycles.empty) == (0, 2)
    scorer_status = status(cycles=cycles)
    assert status_and_reason(scorer_status, "Scoring") == ("False", "NoItems")
    assert (scorer_status.clusters.succeeding, scorer_status.clusters.empty) == (0, 2)
    assert message(scorer_status).startswith(
        "no cluster has a score: the scoring API answers without usable results on 2 of 2 clusters"
    )
    cycles = CycleOutcomes.from_states([good, empty[0]], 1.0)
    scorer_status = status(cycles=cycles)
    assert status_and_reason(scorer_status, "Scoring") == ("True", "CyclesSucceed")
    assert message(scorer_status) == (
        "1 of 2 clusters have a score; the scoring API answers without usable results on 1 of 2 clusters"
    )
    # Earlier versions did not record the number of items.
    assert CycleOutcomes.from_states([state("old", last_success="1", valid_until="9")], 1.0).succeeding == 1
    assert status_and_reason(status(cycles=CycleOutcomes.from_states([good], 9.0)), "Scoring") == (
        "False",
        "ScoresExpired",
    )


def skipping(name: str, reason: str, ticks: int, first_at: int, **fields: str) -> PairState:
    return replace(state(name, **fields), skips=Skips(name, reason, ticks, first_at, first_at + 9))


def test_clusters_without_score_and_ticks_are_reported() -> None:
    limited = scorer(execution={"rateLimit": "2/m"})
    states = [
        state("good", last_success="1", valid_until="200"),
        skipping("few", "rate_limit", 2, 10, last_success="1", valid_until="50"),
        skipping("valid", "rate_limit", 9, 5, last_success="1", valid_until="101"),
        skipping("expired", "rate_limit", 3, 50, last_success="1", valid_until="100"),
        skipping("new", "rate_limit", 9, 40),
        skipping("away", "queue_full", 9, 60),
    ]
    cycles = CycleOutcomes.from_states(states, 100.0)
    assert (cycles.idle, cycles.succeeding, cycles.expired, cycles.failing) == (3, 2, 1, 0)
    scorer_status = status(limited, spread=replace(EVERYWHERE, desired=6), cycles=cycles)
    assert status_and_reason(scorer_status, "Scoring") == ("False", "TicksSkipped")
    words = "3 of 6 clusters have no score, for they are sent no ticks; longest: new, rate_limit: "
    assert message(scorer_status).startswith(words)
    assert "2/m, applies to all clusters together" in message(scorer_status)
    # Failures take precedence.
    failing = CycleOutcomes.from_states([*states, state("bad", failing="1")], 100.0)
    assert status_and_reason(status(limited, cycles=failing), "Scoring")[1] == "SomeClustersFail"


def test_undeliverable_cluster_is_named_in_the_condition() -> None:
    waiting = replace(EVERYWHERE, distributed=1, problem="b: 404: no namespace")
    scorer_status = status(spread=waiting)
    assert status_and_reason(scorer_status, "Distributed") == ("False", "Distributing")
    assert message(scorer_status, "Distributed") == "1 of 2 clusters have it; b: 404: no namespace"
    refused_delivery = replace(waiting, is_refused=True)
    assert status_and_reason(status(spread=refused_delivery), "Distributed") == ("False", "DistributionRefused")
    assert status_and_reason(status(spread=replace(refused_delivery, distributed=2)), "Distributed") == (
        "True",
        "Distributed",
    )


def test_status_keeps_cycle_counts_while_they_are_unreadable() -> None:
    cycles = CycleOutcomes.from_states([state("bad", failing="1", failure=failure("m", 1.0))], 0.0)
    before = status(cycles=cycles)
    after = status(cycles=None, previous=before, seconds=60)
    assert after == before


def test_condition_transition_time_changes_only_with_its_status() -> None:
    first = status()
    assert status(previous=first, seconds=60) == first
    second = status(health=replace(ACTIVE, failures=1, failure=DOWN), previous=first, seconds=60)
    third = status(
        health=Health(HealthStatus.Inactive, failures=3, failure=DOWN, is_checked=True), previous=second, seconds=120
    )
    times = [
        next(condition.last_transition_time for condition in scorer_status.conditions if condition.type == "Healthy")
        for scorer_status in (second, third)
    ]
    assert times == [NOW, NOW + timedelta(seconds=120)]


def test_configurations() -> None:
    full_status = make_config_status(config(), clusters=3, distributed=2, scorers=1, masked=4, now=NOW)
    assert (full_status.clusters, full_status.scorers, full_status.masked) == (3, 1, 4)
    assert [(condition.type, condition.status, condition.reason) for condition in full_status.conditions] == [
        ("Distributed", "False", "Distributing"),
        ("Ready", "Unknown", "Distributing"),
    ]
    nobody = make_config_status(config(), clusters=0, distributed=0, scorers=1, masked=0, now=NOW)
    assert nobody.conditions[0].message == "no ManagedCluster is accepted"
    waiting = make_config_status(config(), clusters=0, distributed=0, scorers=1, masked=0, now=NOW, without_addon=2)
    assert waiting.conditions[0].reason == "NoClusters"
    assert waiting.conditions[0].message == (
        "none of 2 accepted clusters has the ManagedClusterAddOn dynamic-scoring-framework yet"
    )
    full = make_config_status(
        config(), clusters=2, distributed=2, scorers=9, masked=0, now=NOW, without_room=["team/b", "team/a"]
    )
    assert (full.conditions[0].status, full.conditions[0].reason) == ("False", "NoRoom")
    assert full.conditions[0].message.startswith("2 scorers have no room in the ManifestWork of some clusters")
    assert "team/a says what to do" in full.conditions[0].message
    other = make_ignored_config_status(config(name="mine"), "hub", now=NOW)
    assert [(condition.type, condition.status, condition.reason) for condition in other.conditions] == [
        ("Ignored", "True", "OtherName"),
        ("Ready", "False", "OtherName"),
    ]
    assert other.conditions[0].message == "only the DynamicScoringConfig dynamic-scoring-config in namespace hub counts"


def test_distributed_condition_stands_until_all_clusters_are_checked_after_a_start() -> None:
    before = status()
    starting = replace(EVERYWHERE, distributed=0, is_counted=False)
    after = status(spread=starting, previous=before, seconds=5)
    assert after.conditions == before.conditions
    assert status_and_reason(status(spread=starting), "Distributed") == ("Unknown", "NotCheckedYet")
    looked = status(spread=replace(starting, is_counted=True), previous=after, seconds=6)
    assert status_and_reason(looked, "Distributed") == ("False", "Distributing")


def test_status_shows_the_resolved_name_and_interval() -> None:
    scorer_status = status(scorer(score="Score One", interval=7))
    assert (scorer_status.score_name, scorer_status.interval) == ("Score One", 7)
    unresolved = status(scorer(scoring={}))
    assert (unresolved.score_name, unresolved.interval, unresolved.declared_interval) == ("", None, None)


def test_effective_interval_is_kept_while_redis_is_unreadable() -> None:
    before = status(pace=Pace(5, 1))
    assert (before.interval, before.declared_interval, before.clusters_with_other_interval) == (5, 30, 1)
    after = status(cycles=None, previous=before)
    assert (after.interval, after.declared_interval, after.clusters_with_other_interval) == (5, 30, 1)
    changed = status(cycles=None, previous=before.model_copy(update={"declared_interval": 60}))
    assert (changed.interval, changed.declared_interval) == (30, 30)


def test_manual_pause_is_reported_beside_failures_and_as_reason_if_all_pause() -> None:
    override = ScheduleOverride(paused=True, paused_until=1_900_000_000.0, note="release", by="ann")
    partly_paused, fully_paused = (Pauses(number, "a", override, 1_900_000_000.0) for number in (1, 2))
    text = "paused by ann until 2030-03-17T17:46:40Z: release"

    def scoring_condition(pauses: Pauses, cycles: CycleOutcomes, **spec: Any) -> tuple[str, str, str]:
        scorer_status = status(scorer(**spec), cycles=cycles, pace=Pace(30, 0, pauses))
        return next(
            (condition.status, condition.reason, condition.message)
            for condition in scorer_status.conditions
            if condition.type == "Scoring"
        )

    failing = scoring_condition(partly_paused, CycleOutcomes(failing=1))
    assert failing[:2] == ("False", "SomeClustersFail")
    assert failing[2].endswith(f"; 1 of 2 clusters are paused, a: {text}")
    assert scoring_condition(fully_paused, CycleOutcomes(succeeding=2)) == ("False", "Paused", text)
    assert scoring_condition(fully_paused, CycleOutcomes(), execution={"suspend": True})[1] == "Suspended"


WORKING = CycleOutcomes(succeeding=2)
NOWHERE = replace(EVERYWHERE, desired=0, distributed=0)
DISABLED = replace(EVERYWHERE, is_enabled=False, desired=0)
REFUSED = replace(EVERYWHERE, distributed=1, problem="b: 403", is_refused=True)
FAILING = replace(ACTIVE, failures=2, failure=DOWN)
INACTIVE = Health(HealthStatus.Inactive, failures=2, failure=DOWN, is_checked=True)


def test_missing_configuration_is_named() -> None:
    assert message(status(spread=DISABLED), "Distributed") == (
        "there is no DynamicScoringConfig hub/dynamic-scoring-config; scoring starts when it is created"
    )


@pytest.mark.parametrize(
    ("arguments", "kind", "status_", "reason", "ready"),
    [
        ({}, "Healthy", "True", "HealthCheckPassed", "True"),
        ({"health": Health()}, "Healthy", "Unknown", "NotCheckedYet", "Unknown"),
        ({"health": FAILING}, "Healthy", "True", "HealthCheckFailing", "True"),
        ({"health": INACTIVE}, "Healthy", "False", "Timeout", "Unknown"),
        ({"health": replace(INACTIVE, failures=3)}, "Healthy", "False", "Timeout", "False"),
        ({}, "Distributed", "True", "Distributed", "True"),
        ({"spread": replace(EVERYWHERE, distributed=1)}, "Distributed", "False", "Distributing", "Unknown"),
        ({"spread": NOWHERE}, "Distributed", "False", "Masked", "False"),
        ({"spread": replace(NOWHERE, clusters=0)}, "Distributed", "False", "NoClusters", "Unknown"),
        ({"spread": DISABLED}, "Distributed", "False", "NoScoringConfig", "Unknown"),
        ({"spread": replace(DISABLED, config_error="x")}, "Distributed", "False", "NoScoringConfig", "False"),
        ({"spread": REFUSED}, "Distributed", "False", "DistributionRefused", "False"),
        ({"dynamic_scorer": scorer(scoring={})}, "ConfigSynced", "False", "MissingScoreName", "False"),
        ({"dynamic_scorer": scorer(execution={"suspend": True})}, "Scoring", "False", "Suspended", "False"),
        ({"cycles": CycleOutcomes()}, "Scoring", "Unknown", "NoCyclesYet", "Unknown"),
        ({}, "Scoring", "True", "CyclesSucceed", "True"),
        ({"cycles": CycleOutcomes(failing=2)}, "Scoring", "False", "AllClustersFail", "Unknown"),
        ({"cycles": CycleOutcomes(1, failing=1)}, "Scoring", "False", "SomeClustersFail", "Unknown"),
        ({"cycles": CycleOutcomes(1, 1, failing_without_score=1)}, "Scoring", "False", "SomeClustersFail", "False"),
        ({"cycles": CycleOutcomes(expired=2)}, "Scoring", "False", "ScoresExpired", "False"),
    ],
)
def test_each_condition_and_ready_which_is_false_for_what_needs_a_person_and_unknown_for_what_passes(
    arguments: dict[str, Any], kind: str, status_: str, reason: str, ready: str
) -> None:
    scorer_status = status(**{"cycles": WORKING, **arguments})
    assert status_and_reason(scorer_status, kind) == (status_, reason)
    assert status_and_reason(scorer_status, "Ready") == (ready, "CyclesSucceed" if ready == "True" else reason)


def test_failed_config_read_is_unknown_while_the_last_config_applies() -> None:
    config_read = {"name": "s", "scoring": {"params": {"name": "a", "interval": 30}}}
    full = scorer(mode="Full", status={"lastSyncedConfig": config_read})
    health = replace(ACTIVE, config=full.status.last_synced_config, config_failure=DOWN)
    scorer_status = status(full, health, cycles=WORKING)
    assert status_and_reason(scorer_status, "ConfigSynced") == ("False", "Timeout")
    assert status_and_reason(scorer_status, "Ready") == ("Unknown", "Timeout")


def test_failing_cycles_are_a_failure_once_the_score_of_an_earlier_one_has_expired() -> None:
    states = [state("a", last_success="1", valid_until="9", failing="1", failure=failure("m", 5.0))]
    spread = replace(EVERYWHERE, clusters=1, desired=1, distributed=1)
    before, after = (status(spread=spread, cycles=CycleOutcomes.from_states(states, now)) for now in (8.0, 9.0))
    assert [status_and_reason(scorer_status, "Scoring") for scorer_status in (before, after)] == [
        ("False", "AllClustersFail")
    ] * 2
    assert [status_and_reason(scorer_status, "Ready")[0] for scorer_status in (before, after)] == ["Unknown", "False"]


def test_ready_is_stable_across_a_restart_of_the_hub() -> None:
    bad = Health(HealthStatus.Inactive, failures=3, failure=DOWN, is_checked=True)
    before = status(health=bad, cycles=WORKING)
    again = status(health=replace(bad, failures=1), cycles=WORKING, previous=before)
    assert status_and_reason(again, "Ready") == ("False", "Timeout")


def test_ready_of_a_configuration_summarizes_its_conditions() -> None:
    def ready_condition(**changed_numbers: Any) -> tuple[str, str]:
        numbers = {"clusters": 2, "distributed": 2, "scorers": 1, "masked": 0, **changed_numbers}
        configuration_status = make_config_status(config(), now=NOW, **numbers)
        return next(
            (condition.status, condition.reason)
            for condition in configuration_status.conditions
            if condition.type == "Ready"
        )

    assert ready_condition() == ("True", "Distributed")
    assert ready_condition(distributed=1) == ("Unknown", "Distributing")
    assert ready_condition(clusters=0, distributed=0) == ("Unknown", "NoClusters")
    assert ready_condition(without_room=["a/b"]) == ("False", "NoRoom")
    assert ready_condition(agents={"a": "too old"}) == ("False", "AgentVersionNotSupported")
