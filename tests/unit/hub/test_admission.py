"""Scorers whose names others have claimed, and the state stored under such a name."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import structlog

from dsf import keys
from dsf.api.nameclaims import RESERVATION_SECONDS
from dsf.api.naming import AllowedNames
from dsf.api.scorer import DynamicScorer
from dsf.backends.protocol import Kind
from dsf.errors import BackendError, ObjectConflictError, SettingsError
from dsf.hub.admission import NameRules
from dsf.hub.desiredstate import DesiredState
from dsf.hub.plan import FleetPlan, make_plan
from dsf.hub.registrar import Registrar
from dsf.process.outage import Outage
from dsf.settings import Settings
from dsf.store.registry import ClusterRecord
from dsf.store.schedule import ScheduleStore
from tests.support.memorystore import memory_client
from tests.unit.hub.builders import NOW, cluster, config, refusal, scorer
from tests.unit.hub.objects import Objects

OLDER = "2025-01-01T00:00:00Z"


def make_team_scorer(name: str, **spec: Any) -> DynamicScorer:
    return scorer(name, metadata={"namespace": "team"}, created=OLDER, **spec)


def plan_of(*scorers: DynamicScorer, after: FleetPlan | None = None, seconds: float = 0, **rules: Any) -> FleetPlan:
    if after is not None:
        rules["claims"] = after.claims
    moment = NOW + timedelta(seconds=seconds)
    return make_plan(scorers, config(), [cluster("c")], moment, names=NameRules(home="hub", **rules))


@pytest.mark.parametrize(
    "attacker",
    [scorer("attacker", created=OLDER), make_team_scorer("attacker")],
    ids=lambda dynamic_scorer: dynamic_scorer.key,
)
@pytest.mark.parametrize("score", ["cpu", "CPU", "-cpu-"])
def test_older_scorer_does_not_take_over_a_running_score(attacker: DynamicScorer, score: str) -> None:
    victim = scorer("victim", score="cpu")
    before = plan_of(victim, attacker)
    synced = attacker.model_copy(update={"spec": scorer(score=score).spec})
    plan = plan_of(victim, synced, after=before, seconds=10)
    assert [running_scorer.name for running_scorer in plan.list_running_scorers("c")] == ["victim"]
    assert refusal(plan, attacker.key)[0] == "ScoreNameConflict"
    assert plan.make_entries("c", before.make_entries("c", {})).keys() == {"victim"}
    # A holder whose edited manifest cannot run keeps its name.
    broken = scorer("victim", score="cpu", source={"type": "Prometheus"})
    plan = plan_of(broken, synced, after=plan, seconds=20)
    assert plan.list_running_scorers("c") == []
    assert refusal(plan, attacker.key)[0] == "ScoreNameConflict"
    # An unreadable holder keeps its name too.
    plan = plan_of(synced, after=plan, seconds=10 * RESERVATION_SECONDS, unreadable=frozenset({"hub/victim"}))
    assert plan.list_running_scorers("c") == []


def test_scorer_named_by_its_config_is_not_treated_as_renamed() -> None:
    victim = scorer("victim", score="cpu")
    before = plan_of(victim)
    at = NOW + timedelta(seconds=2)
    synced = {"lastSyncedConfig": {"scoring": {"params": {"name": "cpu"}}}}
    other = scorer("other", score="mem", mode="Full", created=at.isoformat(), status=synced)
    plan = plan_of(other, after=plan_of(after=before, seconds=1), seconds=2)
    assert refusal(plan, "hub/other")[0] == "ScoreNameConflict"
    plan = plan_of(other, victim, after=plan, seconds=4)
    assert [running_scorer.name for running_scorer in plan.list_running_scorers("c")] == ["victim"]
    # The same scoring API under another object name.
    before = plan_of(scorer("old", score="mem", mode="Full", status=synced))
    plan = plan_of(other, after=plan_of(after=before, seconds=1), seconds=2)
    assert [running_scorer.name for running_scorer in plan.list_running_scorers("c")] == ["other"]


def test_score_names_of_other_namespaces_must_be_allowed() -> None:
    allowed = AllowedNames({"team": ["team-*", "gpu"]})
    names = {"team-a": "", "gpu": "", "GPU": "ScoreNameNotAllowed", "cpu": "ScoreNameNotAllowed"}
    names |= {"team-": "ScoreNameNotAllowed", "team": "ScoreNameNotAllowed", "Team-a": "ScoreNameNotAllowed"}
    for name, reason in names.items():
        plan = plan_of(make_team_scorer("s", score=name), allowed=allowed)
        assert refusal(plan, "team/s")[0] == reason
        assert bool(plan.list_running_scorers("c")) != bool(reason)
    assert refusal(plan_of(scorer("s", score="cpu"), allowed=allowed), "hub/s")[0] == ""
    # A new list of names withdraws the name immediately.
    before = plan_of(make_team_scorer("s", score="cpu"), scorer("t", score="mem"))
    plan = plan_of(make_team_scorer("s", score="cpu"), scorer("t", score="cpu"), after=before, allowed=allowed)
    assert [running_scorer.name for running_scorer in plan.list_running_scorers("c")] == ["t"]
    assert plan.make_records(before.make_records({})).keys() == {"t"}


@pytest.mark.parametrize("entry", ["", "a*b", "**"])
def test_wrong_lists_of_names(entry: str, settings_factory: Callable[..., Settings]) -> None:
    for lists in ({"team": [entry]}, {"other": ["x"]}):
        settings = settings_factory(namespace="hub", scorer_namespaces=["team"], score_names=lists)
        with pytest.raises(SettingsError, match=r"DSF_SCORE_NAMES: (team|other): "):
            DesiredState(Objects().backend, settings, Outage("Redis"), lambda _: None, lambda *_: None)


def test_name_conflict_refuses_the_second_scorer() -> None:
    hub_scorer, foreign = (
        scorer("cpu", score="x"),
        make_team_scorer("cpu", score="y", clusterSelector={"matchLabels": {"a": "b"}}),
    )
    plan = plan_of(hub_scorer, foreign)
    assert refusal(plan, "team/cpu")[0] == "ScoreNameConflict"
    assert plan.find_owner_key("cpu") == "hub/cpu"
    # The refused scorer does not select the cluster, so the cluster gets no notice.
    assert plan.make_notice("c").absent == {}
    # An unresolved scorer holds no name either.
    unresolved = make_team_scorer("cpu", source={"type": "Prometheus"})
    plan = plan_of(hub_scorer, unresolved)
    assert refusal(plan, "team/cpu")[0] == "ScoreNameConflict"


def test_books_and_overrides_do_not_go_to_another_namespace() -> None:
    client = memory_client()
    registrar = Registrar(client, Outage("Redis"))

    def run(plan: FleetPlan) -> None:
        entries = plan.make_entries("c", registrar.get_entries("c"))
        registrar.remove_other_entries("c", entries)
        registrar.sync_scorers(plan)
        registrar.put_entries("c", entries)

    registrar.put_cluster(ClusterRecord(name="c"))
    hub_scorer, foreign = scorer("cpu", score="x"), make_team_scorer("cpu", score="y")
    before = plan_of(hub_scorer)
    run(before)
    schedule = ScheduleStore(client)
    schedule.set_override("*/cpu", paused=True)
    schedule.set_override("c/cpu", interval=7)
    [old] = schedule.read_entries()
    assert (old.namespace, old.score_name) == ("hub", "x")
    # The name stays unassigned until its claim expires.
    plan_without_hub_scorer = plan_of(foreign, after=before, seconds=1)
    run(plan_without_hub_scorer)
    assert schedule.read_entries() == []
    assert schedule.read_overrides() == {}
    run(plan_of(foreign, after=plan_without_hub_scorer, seconds=1 + RESERVATION_SECONDS))
    assert [(entry.namespace, entry.score_name) for entry in schedule.read_entries()] == [("team", "y")]
    # A hub that was down for long sees both changes in one plan.
    schedule.set_override("*/cpu", paused=True)
    run(plan_of(hub_scorer))
    assert [(entry.namespace, entry.score_name) for entry in schedule.read_entries()] == [("hub", "x")]
    assert schedule.read_overrides() == {}
    assert registrar.sync_scorers(plan_of(hub_scorer)) == {}


def test_redis_refusal_is_logged_once_on_one_line() -> None:
    client = memory_client()
    registrar = Registrar(client, Outage("Redis"))
    assert registrar.list_known_clusters() == frozenset()
    client.set(keys.SCORERS, "spoilt")
    with structlog.testing.capture_logs() as lines:
        problems = registrar.sync_scorers(plan_of(scorer("cpu")))
        # The second sync logs nothing.
        registrar.sync_scorers(plan_of(scorer("cpu")))
    assert "WRONGTYPE" in str(problems["cpu"])
    [line] = [line for line in lines if line["log_level"] == "error"]
    assert "WRONGTYPE" in line["error"]
    assert not line.get("exc_info")


def objects_with(*scorers: DynamicScorer) -> Objects:
    manifests = (dynamic_scorer.to_manifest() for dynamic_scorer in scorers)
    return Objects(cluster("c").to_manifest(), config().to_manifest(), *manifests)


def make_desired_state(store: Objects, settings_factory: Callable[..., Settings]) -> DesiredState:
    settings = settings_factory(namespace="hub", addon_mode=False)
    return DesiredState(store.backend, settings, Outage("Redis"), lambda key: None, lambda differences, changed: None)


def list_running_scorers(state: DesiredState) -> list[str]:
    return [running_scorer.name for running_scorer in state.update().list_running_scorers("c")]


def test_claims_outlive_the_hub(settings_factory: Callable[..., Settings]) -> None:
    store = objects_with(scorer("victim", score="cpu"))
    assert list_running_scorers(make_desired_state(store, settings_factory)) == ["victim"]
    store.put(scorer("attacker", score="cpu", created=OLDER).to_manifest())
    # A new leader sees both for the first time.
    assert list_running_scorers(make_desired_state(store, settings_factory)) == ["victim"]
    store.delete(Kind.SCORER, "hub", "victim")
    assert list_running_scorers(make_desired_state(store, settings_factory)) == []
    store.put(scorer("victim", score="cpu").to_manifest())
    assert list_running_scorers(make_desired_state(store, settings_factory)) == ["victim"]


def test_name_claim_takes_effect_when_stored(settings_factory: Callable[..., Settings]) -> None:
    store = objects_with(scorer("mine", score="cpu"))
    state = make_desired_state(store, settings_factory)
    store.failure = BackendError("no space")
    with pytest.raises(BackendError, match="no space"):
        state.update()
    assert state.plan.scorers == {}
    # Another process stores its claim first.
    store.failure = ObjectConflictError("changed")
    claim = ["other", 1, 1, 0, "", ""]
    store.claims["hub"] = json.dumps({"scores": {"cpu": [claim]}, "scorers": {"other": [claim]}})
    with pytest.raises(ObjectConflictError):
        state.update()
    store.failure = None
    store.put(scorer("other", score="cpu").to_manifest())
    assert list_running_scorers(state) == ["other"]


def test_unreadable_claims_are_recreated(settings_factory: Callable[..., Settings]) -> None:
    store = objects_with(scorer("mine", score="cpu"))
    store.claims["hub"] = "edited"
    assert list_running_scorers(make_desired_state(store, settings_factory)) == ["mine"]
    assert '"mine"' in store.claims["hub"]
