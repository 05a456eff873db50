"""Validity of scores where the clock of the person's machine is wrong: that of the hub counts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from kubernetes import client

from dsf.kube.resources import ADDON_PLACEMENT_SCORES, MANAGED_CLUSTERS, PLACEMENTS
from dsf.kube.session import Session
from dsf.optimizer.backend import ManifestClient
from dsf.optimizer.scores import Scores
from dsf.placements.reader import PlacementReader
from tests.support.httpserver import ScriptedServer, answer, with_clock_offset

_SPEC = {
    "prioritizerPolicy": {
        "mode": "Exact",
        "configurations": [
            {"weight": 1, "scoreCoordinate": {"type": "AddOn", "addOn": {"resourceName": "r", "scoreName": "x"}}}
        ],
    }
}
_SETS = "/apis/cluster.open-cluster-management.io/v1beta2"


def _hub(ahead: float) -> ScriptedServer:
    """Return an API server whose clock is this many seconds ahead, with a score that is valid for an hour by our
    clock.
    """
    valid_until = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    score = {
        "metadata": {"name": "r", "namespace": "c1"},
        "status": {"scores": [{"name": "x", "value": 5}], "validUntil": valid_until},
    }
    cluster = {
        "metadata": {"name": "c1", "labels": {"cluster.open-cluster-management.io/clusterset": "edge"}},
        "spec": {"hubAcceptsClient": True},
    }
    binding = {"metadata": {"name": "edge", "namespace": "n"}, "spec": {"clusterSet": "edge"}}
    objects: dict[str, Any] = {
        PLACEMENTS.path("n", "p"): {"metadata": {"name": "p", "namespace": "n"}, "spec": _SPEC},
        MANAGED_CLUSTERS.path(): {"items": [cluster]},
        ADDON_PLACEMENT_SCORES.path(): {"items": [score]},
        f"{_SETS}/namespaces/n/managedclustersetbindings": {"items": [binding]},
        f"{_SETS}/managedclustersets": {"items": [{"metadata": {"name": "edge"}, "spec": {}}]},
    }
    server = ScriptedServer(with_clock_offset(ahead, answer({"items": []})))
    for path, body in objects.items():
        server.script(with_clock_offset(ahead, answer(body)), path=path)
    return server


def _explained(session: Session) -> bool:
    view = PlacementReader(session).explain("n", "p")
    return view.ranking[0].cells[0].standing == "expired"


def _make_plan(session: Session) -> bool:
    backend = ManifestClient(session)
    return Scores(backend).read(None, backend.read_clock()).items[0].freshness.expired


@pytest.mark.parametrize("is_expired", [_explained, _make_plan])
@pytest.mark.parametrize(("ahead", "expected"), [(7200.0, True), (-7200.0, False), (0.0, False)])
def test_expiry_is_judged_on_the_clock_of_the_hub(
    is_expired: Callable[[Session], bool], ahead: float, expected: bool
) -> None:
    configuration = client.Configuration()
    with _hub(ahead) as server:
        configuration.host = server.url
        with closing(Session(configuration)) as session:
            assert is_expired(session) is expected
