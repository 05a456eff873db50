"""Which scores belong to a scorer, and which to nobody."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

import pytest

from dsf.api.types import SCORER_NAME_LABEL
from dsf.backends.protocol import Backend, Kind, Manifest, ObjectKey
from dsf.errors import BackendError
from dsf.hub.desiredstate import DesiredState
from dsf.hub.registrar import Registrar
from dsf.hub.scores import ScoreReconciler
from dsf.hub.summaries import FleetPlan, make_plan
from tests.unit.hub.builders import cluster, config, scorer

NOW = datetime(2026, 11, 21, tzinfo=UTC)


class Place:
    """Backend, registrar and view in one."""

    def __init__(self, plan: FleetPlan, *scores: Manifest) -> None:
        self.plan = plan
        self.scores = {_key(score): score for score in scores}
        self.rewritten: list[tuple[str, str]] = []
        self.written: dict[tuple[str, str], str] = {}
        self.has_no_config = False

    def keys(self, kind: Kind) -> list[ObjectKey]:
        return [*self.scores]

    def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        return self.scores.get(ObjectKey(kind, namespace, name))

    def delete_score(self, namespace: str, name: str) -> None:
        del self.scores[ObjectKey(Kind.SCORE, namespace, name)]

    def rewrite_score(self, cluster: str, scorer: str) -> None:
        self.rewritten.append((cluster, scorer))

    def written_score(self, cluster: str, scorer: str) -> str | None:
        return self.written.get((cluster, scorer))

    def reconciler(self) -> ScoreReconciler:
        return ScoreReconciler(cast("Backend", self), cast("Registrar", self), cast("DesiredState", self))


def _score(namespace: str, name: str, label: str = "", **metadata: Any) -> Manifest:
    labels = {SCORER_NAME_LABEL: label} if label else {}
    return {"metadata": {"namespace": namespace, "name": name, "labels": labels, **metadata}}


def _key(score: Manifest) -> ObjectKey:
    return ObjectKey(Kind.SCORE, score["metadata"]["namespace"], score["metadata"]["name"])


def _plan(*masks: tuple[str, str], **scorers: Any) -> FleetPlan:
    made = [scorer("one", score="Score One", **scorers)]
    return make_plan(made, config(*masks), [cluster("a"), cluster("b", accepted=False)], NOW)


def test_a_scorers_score_is_written_again_also_when_it_is_gone() -> None:
    place = Place(_plan(), _score("a", "score-one", "one"))
    reconcile = place.reconciler()
    assert list(reconcile.orphans(place.plan)) == []
    reconcile(ObjectKey(Kind.SCORE, "a", "score-one"))
    place.scores.clear()
    reconcile(ObjectKey(Kind.SCORE, "a", "score-one"))
    assert place.rewritten == [("a", "one"), ("a", "one")]


def test_scores_of_nobody_are_removed_unless_the_writer_will() -> None:
    orphans = [_score("a", "other", "one"), _score("a", "score-two", "two"), _score("b", "score-one", "one")]
    going = _score("a", "going", deletionTimestamp="2026-11-21T00:00:00Z")
    place = Place(_plan(), *orphans, going)
    reconcile = place.reconciler()
    place.written["a", "two"] = "score-two"
    found = list(reconcile.orphans(place.plan))
    assert found == [_key(score) for score in orphans]
    for key in found:
        reconcile(key)
    assert [key.name for key in place.scores] == ["score-two", "going"]
    assert place.rewritten == []


def test_a_masked_score_is_nobodys() -> None:
    place = Place(_plan(("a", "Score One")), _score("a", "score-one", "one"))
    assert len(list(place.reconciler().orphans(place.plan))) == 1


def test_a_scorer_that_cannot_run_keeps_its_scores() -> None:
    inactive = Place(_plan(health="Inactive"), _score("a", "score-one", "one"))
    assert list(inactive.reconciler().orphans(inactive.plan)) == []
    unresolved = Place(_plan(scoring={}), _score("a", "score-one", "one"))
    assert [found.resolved for found in unresolved.plan.scorers.values()] == [None]
    assert list(unresolved.reconciler().orphans(unresolved.plan)) == []


def test_without_a_configuration_all_are_removed_also_what_the_writer_knows() -> None:
    plan = make_plan([scorer("one", score="Score One")], None, [cluster("a")], NOW)
    place = Place(plan, _score("a", "score-one", "one"))
    place.written["a", "one"] = "score-one"
    reconcile = place.reconciler()
    (key,) = reconcile.orphans(plan)
    reconcile(key)
    assert place.scores, "one that cannot be read is not gone"
    place.has_no_config = True
    reconcile(key)
    assert not place.scores


def test_a_score_where_its_scorer_is_not_selected_is_nobodys() -> None:
    place = Place(_plan(clusterSelector={"matchLabels": {"env": "prod"}}), _score("a", "score-one", "one"))
    assert len(list(place.reconciler().orphans(place.plan))) == 1


def test_a_score_where_its_scorer_cannot_run_is_kept() -> None:
    params = {"query": 'up{r="${label:region}"}', "range": 60, "step": 15}
    source = {"type": "Prometheus", "host": "http://prometheus.example", "params": params}
    clusters = [cluster("a"), cluster("b", labels={"region": "eu"})]
    plan = make_plan([scorer("one", score="Score One", source=source)], config(), clusters, NOW)
    assert plan.scorers["hub/one"].obstacles.keys() == {"a"}
    place = Place(plan, _score("a", "score-one", "one"))
    assert list(place.reconciler().orphans(plan)) == []


def test_a_score_that_cannot_be_read_keeps_no_other_from_being_found(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(_plan(), _score("a", "broken"), _score("a", "other"))
    get = place.get

    def refuse(kind: Kind, namespace: str, name: str) -> Manifest | None:
        if name == "broken":
            raise BackendError("broken.yaml: no YAML")
        return get(kind, namespace, name)

    monkeypatch.setattr(place, "get", refuse)
    assert [key.name for key in place.reconciler().orphans(place.plan)] == ["other"]
