"""Scores and their scorers, as a hub has them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

from dsf.kube.resources import DYNAMIC_SCORERS
from dsf.optimizer.backend import ManifestClient
from dsf.optimizer.scores import Scores


class _Objects:
    """A hub with these objects."""

    def __init__(self, *scorers: dict[str, Any]) -> None:
        self._scorers = list(scorers)

    def objects(self, resource: object, *_: object, **__: object) -> list[dict[str, Any]]:
        return self._scorers if resource is DYNAMIC_SCORERS else []


def test_a_scorer_that_the_hub_ignores_stands_for_no_other_of_its_name() -> None:
    spec = {"description": "d", "configURL": "http://s.test/config", "configSyncMode": "Full"}
    refused = {
        "type": "Ready",
        "status": "False",
        "reason": "OtherNamespace",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    ignored = {"metadata": {"name": "s", "namespace": "a-team"}, "spec": spec, "status": {"conditions": [refused]}}
    in_force = {"metadata": {"name": "s", "namespace": "n"}, "spec": spec}
    scores = Scores(cast("ManifestClient", _Objects(ignored, in_force)))
    assert scores.explain("s", datetime.now(UTC)).namespace == "n"


def test_a_field_that_only_a_newer_crd_knows_hides_no_scorer() -> None:
    spec = {"description": "d", "configURL": "http://s.test/config", "configSyncMode": "Full", "later": True}
    scorer = {"metadata": {"name": "s", "namespace": "n"}, "spec": spec}
    broken = {"metadata": {"name": "t", "namespace": "n"}, "spec": {"description": 1}}
    scores = Scores(cast("ManifestClient", _Objects(scorer, broken)))
    assert scores.explain("s", datetime.now(UTC)).name == "s"
