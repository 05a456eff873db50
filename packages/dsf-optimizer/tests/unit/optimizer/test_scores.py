"""Scores and their scorers on a hub."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

from dsf.kube.resources import DYNAMIC_SCORERS
from dsf.optimizer.backend import ManifestClient
from dsf.optimizer.scores import Scores
from tests.support.manifests import ignored, scorer


class _Objects:
    """A hub with these objects."""

    def __init__(self, *scorers: dict[str, Any]) -> None:
        self._scorers = list(scorers)

    def list_objects(self, resource: object, *_: object, **__: object) -> list[dict[str, Any]]:
        return self._scorers if resource is DYNAMIC_SCORERS else []


def test_ignored_scorer_hides_no_other_of_its_name() -> None:
    scores = Scores(cast("ManifestClient", _Objects(ignored(scorer("a-team", "s")), scorer("n", "s"))))
    assert scores.explain("s", datetime.now(UTC)).namespace == "n"


def test_unknown_field_of_a_newer_crd_hides_no_scorer() -> None:
    broken = scorer("n", "t", description=1)
    scores = Scores(cast("ManifestClient", _Objects(scorer("n", "s", later=True), broken)))
    assert scores.explain("s", datetime.now(UTC)).name == "s"


def test_long_description_is_cut() -> None:
    scores = Scores(cast("ManifestClient", _Objects(scorer("n", "s", description="x" * 1_000_000))))
    assert len(scores.explain("s", datetime.now(UTC)).description) == 1024
