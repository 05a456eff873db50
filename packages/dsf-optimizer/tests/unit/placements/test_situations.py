"""Situations of several Placements from one reading of the hub."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dsf.kube.resources import ADDON_PLACEMENT_SCORES, MANAGED_CLUSTER_SETS, MANAGED_CLUSTERS, PLACEMENTS, Resource
from dsf.kube.session import Session
from dsf.placements import reader
from dsf.placements.kinds import MANAGED_CLUSTER_SET_BINDINGS
from dsf.placements.pages import _parse_scores
from dsf.placements.reader import PlacementReader
from dsf.placements.situations import read_situations_from_hub

NOW = datetime(2026, 6, 1, tzinfo=UTC)
# Item names may contain slashes, object names may not.
_SCORE = {"resourceName": "r", "scoreName": "ns/pod"}
_PRIORITIZER = {"scoreCoordinate": {"type": "AddOn", "addOn": _SCORE}, "weight": 1}


def _placement(name: str) -> dict[str, Any]:
    policy = {"mode": "Exact", "configurations": [_PRIORITIZER]}
    return {"metadata": {"name": name, "namespace": "n"}, "spec": {"prioritizerPolicy": policy}}


def test_placements_share_one_look_at_the_fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    placements = {name: _placement(name) for name in ("p", "q", "r")}
    hub: dict[Resource, list[dict[str, Any]]] = {
        PLACEMENTS: [*placements.values()],
        MANAGED_CLUSTERS: [{"metadata": {"name": "c1"}}],
        MANAGED_CLUSTER_SET_BINDINGS: [{"metadata": {"name": "set", "namespace": "n"}}],
        MANAGED_CLUSTER_SETS: [{"metadata": {"name": "set"}}],
        ADDON_PLACEMENT_SCORES: [{"metadata": {"name": "r", "namespace": "c1"}}],
    }
    listed_resources: list[Resource] = []

    def objects(_: object, resource: Resource, *__: object, **___: object) -> list[dict[str, Any]]:
        listed_resources.append(resource)
        return hub.get(resource, [])

    monkeypatch.setattr(reader, "list_objects", objects)
    monkeypatch.setattr(reader, "request_with_retry", lambda *about: placements[about[-1].rpartition("/")[2]])
    session = cast("Session", SimpleNamespace(read_clock=lambda: NOW))
    situations, problems = read_situations_from_hub(PlacementReader(session), {"r"}, [])
    assert problems == []
    assert [situation.placement["metadata"]["name"] for situation in situations] == ["p", "q", "r"]
    assert sorted(map(str, listed_resources)) == sorted(map(str, set(listed_resources)))
    assert len({id(situation.clusters["c1"]) for situation in situations}) == 1
    assert len({id(situation.scores["c1", "r"]) for situation in situations}) == 1


def test_hypothetical_score_of_the_page_is_parsed() -> None:
    [hypothetical_score] = _parse_scores({"cluster": "c", "score": "r/ns/pod", "value": "5"})
    assert (hypothetical_score.resource, hypothetical_score.score, hypothetical_score.value) == ("r", "ns/pod", 5)
