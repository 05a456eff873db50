"""What becomes of scorers whose names others hold, and of what is stored under such a name."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import structlog

from dsf import keys
from dsf.api.allowednames import AllowedNames
from dsf.api.nameclaims import KEPT
from dsf.api.scorer import DynamicScorer
from dsf.backends.protocol import Kind
from dsf.errors import BackendError, ObjectConflictError, SettingsError
from dsf.hub.desiredstate import DesiredState
from dsf.hub.names import NameRules
from dsf.hub.outage import Outage
from dsf.hub.registrar import Registrar
from dsf.hub.summaries import FleetPlan, make_plan
from dsf.settings import Settings
from dsf.store.registry import ClusterRecord
from dsf.store.schedule import ScheduleStore
from tests.support.memorystore import memory_client
from tests.unit.hub.builders import NOW, cluster, config, refusal, scorer
from tests.unit.hub.objects import Objects

OLDER = "2025-01-01T00:00:00Z"


def team(name: str, **more: Any) -> DynamicScorer:
    return scorer(name, metadata={"namespace": "team"}, created=OLDER, **more)


def planned(*scorers: DynamicScorer, after: FleetPlan | None = None, seconds: float = 0, **rules: Any) -> FleetPlan:
    if after is not None:
        rules["claims"] = after.claims
    moment = NOW + timedelta(seconds=seconds)
    return make_plan(scorers, config(), [cluster("c")], moment, names=NameRules(home="hub", **rules))


@pytest.mark.parametrize("attacker", [scorer("attacker", created=OLDER), team("attacker")], ids=lambda one: one.key)
@pytest.mark.parametrize("wanted", ["cpu", "CPU", "-cpu-"])
def test_an_older_scorer_does_not_take_over_a_running_score(attacker: DynamicScorer, wanted: str) -> None:
    victim = scorer("victim", score="cpu")
    before = planned(victim, attacker)
    synced = attacker.model_copy(update={"spec": scorer(score=wanted).spec})
    plan = planned(victim, synced, after=before, seconds=10)
    assert [one.name for one in plan.running("c")] == ["victim"]
    assert refusal(plan, attacker.key)[0] == "ScoreNameConflict"
    assert plan.entries("c", before.entries("c", {})).keys() == {"victim"}
    # The holder edits its manifest into one that cannot run: its name stays its own.
    broken = scorer("victim", score="cpu", source={"type": "Prometheus"})
    plan = planned(broken, synced, after=plan, seconds=20)
    assert plan.running("c") == []
    assert refusal(plan, attacker.key)[0] == "ScoreNameConflict"
    # An unreadable one as well.
    plan = planned(synced, after=plan, seconds=10 * KEPT, unreadable=frozenset({"hub/victim"}))
    assert plan.running("c") == []


def test_scorer_named_by_its_config_is_not_treated_as_renamed() -> None:
    victim = scorer("victim", score="cpu")
    before = planned(victim)
    at = NOW + timedelta(seconds=2)
    synced = {"lastSyncedConfig": {"scoring": {"params": {"name": "cpu"}}}}
    other = scorer("other", score="mem", mode="Full", created=at.isoformat(), status=synced)
    plan = planned(other, after=planned(after=before, seconds=1), seconds=2)
    assert refusal(plan, "hub/other")[0] == "ScoreNameConflict"
    plan = planned(other, victim, after=plan, seconds=4)
    assert [one.name for one in plan.running("c")] == ["victim"]
    # The same scoring API under another name of the object.
    before = planned(scorer("old", score="mem", mode="Full", status=synced))
    plan = planned(other, after=planned(after=before, seconds=1), seconds=2)
    assert [one.name for one in plan.running("c")] == ["other"]


def test_score_names_of_other_namespaces_must_be_allowed() -> None:
    allowed = AllowedNames({"team": ["team-*", "gpu"]})
    names = {"team-a": "", "gpu": "", "GPU": "ScoreNameNotAllowed", "cpu": "ScoreNameNotAllowed"}
    names |= {"team-": "ScoreNameNotAllowed", "team": "ScoreNameNotAllowed", "Team-a": "ScoreNameNotAllowed"}
    for name, reason in names.items():
        plan = planned(team("s", score=name), allowed=allowed)
        assert refusal(plan, "team/s")[0] == reason
        assert bool(plan.running("c")) != bool(reason)
    assert refusal(planned(scorer("s", score="cpu"), allowed=allowed), "hub/s")[0] == ""
    # A list that is new takes the name away at once.
    before = planned(team("s", score="cpu"), scorer("t", score="mem"))
    plan = planned(team("s", score="cpu"), scorer("t", score="cpu"), after=before, allowed=allowed)
    assert [one.name for one in plan.running("c")] == ["t"]
    assert plan.records(before.records({})).keys() == {"t"}


@pytest.mark.parametrize("entry", ["", "a*b", "**"])
def test_wrong_lists_of_names(entry: str, settings_factory: Callable[..., Settings]) -> None:
    for lists in ({"team": [entry]}, {"other": ["x"]}):
        chosen = settings_factory(namespace="hub", scorer_namespaces=["team"], score_names=lists)
        with pytest.raises(SettingsError, match=r"DSF_SCORE_NAMES: (team|other): "):
            DesiredState(Objects().backend, chosen, Outage("Redis"), lambda _: None, lambda *_: None)


def test_name_conflict_refuses_the_second_scorer() -> None:
    own, foreign = scorer("cpu", score="x"), team("cpu", score="y", clusterSelector={"matchLabels": {"a": "b"}})
    plan = planned(own, foreign)
    assert refusal(plan, "team/cpu")[0] == "ScoreNameConflict"
    assert plan.called("cpu") == "hub/cpu"
    # It does not select the cluster: not to be said of the other.
    assert plan.notice("c").absent == {}
    # An unresolved one has nothing either.
    unresolved = team("cpu", source={"type": "Prometheus"})
    plan = planned(own, unresolved)
    assert refusal(plan, "team/cpu")[0] == "ScoreNameConflict"


def test_books_and_overrides_do_not_go_to_another_namespace() -> None:
    client = memory_client()
    registrar = Registrar(client, Outage("Redis"))

    def run(plan: FleetPlan) -> None:
        wanted = plan.entries("c", registrar.present("c"))
        registrar.remove_other_entries("c", wanted)
        registrar.sync_scorers(plan)
        registrar.put_entries("c", wanted)

    registrar.put_cluster(ClusterRecord(name="c"))
    own, foreign = scorer("cpu", score="x"), team("cpu", score="y")
    before = planned(own)
    run(before)
    schedule = ScheduleStore(client)
    schedule.set_override("*/cpu", paused=True)
    schedule.set_override("c/cpu", interval=7)
    [old] = schedule.entries()
    assert (old.namespace, old.score_name) == ("hub", "x")
    # Its name is free: in between it is nobody's.
    gone = planned(foreign, after=before, seconds=1)
    run(gone)
    assert schedule.entries() == []
    assert schedule.overrides() == {}
    run(planned(foreign, after=gone, seconds=1 + KEPT))
    assert [(one.namespace, one.score_name) for one in schedule.entries()] == [("team", "y")]
    # At once, as a hub that was away for long finds it.
    schedule.set_override("*/cpu", paused=True)
    run(planned(own))
    assert [(one.namespace, one.score_name) for one in schedule.entries()] == [("hub", "x")]
    assert schedule.overrides() == {}
    assert registrar.sync_scorers(planned(own)) == {}


def test_redis_refusal_is_logged_once_on_one_line() -> None:
    client = memory_client()
    registrar = Registrar(client, Outage("Redis"))
    assert registrar.known_clusters() == frozenset()
    client.set(keys.SCORERS, "spoilt")
    with structlog.testing.capture_logs() as lines:
        problems = registrar.sync_scorers(planned(scorer("cpu")))
        # Said once.
        registrar.sync_scorers(planned(scorer("cpu")))
    assert "WRONGTYPE" in str(problems["cpu"])
    [line] = [line for line in lines if line["log_level"] == "error"]
    assert "WRONGTYPE" in line["error"]
    assert not line.get("exc_info")


def stored(*scorers: DynamicScorer) -> Objects:
    manifests = (one.to_manifest() for one in scorers)
    return Objects(cluster("c").to_manifest(), config().to_manifest(), *manifests)


def desired(store: Objects, settings_factory: Callable[..., Settings]) -> DesiredState:
    chosen = settings_factory(namespace="hub", addon_mode=False)
    return DesiredState(store.backend, chosen, Outage("Redis"), lambda key: None, lambda news, changed: None)


def running(state: DesiredState) -> list[str]:
    return [one.name for one in state.update().running("c")]


def test_claims_outlive_the_hub(settings_factory: Callable[..., Settings]) -> None:
    store = stored(scorer("victim", score="cpu"))
    assert running(desired(store, settings_factory)) == ["victim"]
    store.put(scorer("attacker", score="cpu", created=OLDER).to_manifest())
    # A new leader that sees both for the first time.
    assert running(desired(store, settings_factory)) == ["victim"]
    store.delete(Kind.SCORER, "hub", "victim")
    assert running(desired(store, settings_factory)) == []
    store.put(scorer("victim", score="cpu").to_manifest())
    assert running(desired(store, settings_factory)) == ["victim"]


def test_name_claim_takes_effect_when_stored(settings_factory: Callable[..., Settings]) -> None:
    store = stored(scorer("mine", score="cpu"))
    state = desired(store, settings_factory)
    store.failure = BackendError("no space")
    with pytest.raises(BackendError, match="no space"):
        state.update()
    assert state.plan.scorers == {}
    # Another process was faster.
    store.failure = ObjectConflictError("changed")
    claim = ["other", 1, 1, 0, "", ""]
    store.claims["hub"] = json.dumps({"scores": {"cpu": [claim]}, "scorers": {"other": [claim]}})
    with pytest.raises(ObjectConflictError):
        state.update()
    store.failure = None
    store.put(scorer("other", score="cpu").to_manifest())
    assert running(state) == ["other"]


def test_claims_that_cannot_be_read_are_made_anew(settings_factory: Callable[..., Settings]) -> None:
    store = stored(scorer("mine", score="cpu"))
    store.claims["hub"] = "edited"
    assert running(desired(store, settings_factory)) == ["mine"]
    assert '"mine"' in store.claims["hub"]
