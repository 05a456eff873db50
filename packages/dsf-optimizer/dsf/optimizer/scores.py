"""Reads scores from the hub, with the descriptions of their scorers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from pydantic import ValidationError

from dsf.api.manifest import read_known_fields
from dsf.api.naming import make_label_value, sanitize_resource_name
from dsf.api.resolve import resolve
from dsf.api.scorer import DynamicScorer
from dsf.api.types import GROUP, SCORE_CONDITION, SCORER_NAME_LABEL
from dsf.errors import ResolutionError, UnknownScorerError
from dsf.kube.resources import ADDON_PLACEMENT_SCORES, DYNAMIC_SCORERS
from dsf.optimizer.backend import Manifest, ManifestClient
from dsf.optimizer.views import ClusterScoreView, ConditionView, Freshness, ScoreList, ScoreObject, ScorerView
from dsf.placements.scheduling import parse_moment

DESCRIPTION: Final = f"{GROUP}/description"
DIMENSION_FORMAT: Final = f"{GROUP}/score-dimension-format"


class Scores:
    """Reads scores and scorers. Every method raises BackendError."""

    def __init__(self, backend: ManifestClient) -> None:
        self._backend = backend

    def read(self, namespace: str | None, now: datetime) -> ScoreList:
        """Return the scores of one namespace, or of all namespaces if it is None, with their freshness at `now`."""
        scorers = self._list_scorers()
        objects = self._backend.list_objects(ADDON_PLACEMENT_SCORES, namespace or "")
        items = [_make_score(manifest, _find_scorer(manifest, scorers), now) for manifest in objects]
        return ScoreList(items=sorted(items, key=lambda score: (score.metadata["name"], score.metadata["namespace"])))

    def explain(self, name: str, now: datetime) -> ScorerView:
        """Return the scorer with this name, or with scores of this name. Raises UnknownScorerError."""
        scorers = self._list_scorers()
        scorer = next((candidate for candidate in scorers if candidate.metadata.name == name), None)
        scorer = scorer or next(
            (candidate for candidate in scorers if get_score_object_name(candidate) == sanitize_resource_name(name)),
            None,
        )
        if scorer is None:
            known_names = ", ".join(sorted(candidate.metadata.name for candidate in scorers)) or "none"
            raise UnknownScorerError(
                f"no DynamicScorer is named {name!r}, and none writes such scores; there are: {known_names}"
            )
        target = get_score_object_name(scorer)
        objects = self._backend.list_objects(ADDON_PLACEMENT_SCORES, name=target) if target else []
        return _view_scorer(
            scorer, target, [manifest for manifest in objects if _find_scorer(manifest, scorers) is scorer], now
        )

    def read_score_names(self, objects: Iterable[Manifest]) -> dict[str, str]:
        """Return object name -> score name of the scorer that wrote it, for these AddOnPlacementScores."""
        scorers = self._list_scorers()
        owners = ((manifest["metadata"]["name"], _find_scorer(manifest, scorers)) for manifest in objects)
        return {name: get_score_name(owner) for name, owner in owners if owner is not None}

    def _list_scorers(self) -> list[DynamicScorer]:
        """Return all valid scorers, those in force first. The hub controller reports invalid ones."""
        scorers = []
        for manifest in self._backend.list_objects(DYNAMIC_SCORERS):
            try:
                scorers.append(read_known_fields(manifest, DynamicScorer))
            except ValidationError:
                continue
        return sorted(scorers, key=lambda scorer: scorer.is_refused)


def get_score_name(scorer: DynamicScorer) -> str:
    """Return the value of `${scoreName}` in the names of a scorer's items; empty if it is unknown."""
    if scorer.status.score_name:
        return scorer.status.score_name
    try:
        return resolve(scorer).score_name
    except ResolutionError:
        return ""


def get_score_object_name(scorer: DynamicScorer) -> str:
    """Return the name of the AddOnPlacementScores that a scorer writes; empty if it is unknown."""
    name = get_score_name(scorer)
    return sanitize_resource_name(name) if name else ""


def compute_freshness(manifest: Mapping[str, Any], now: datetime) -> Freshness:
    """Return the age and expiry of a score."""
    status = manifest.get("status") or {}
    valid_until = parse_moment(status.get("validUntil"))
    remaining_seconds = None if valid_until is None else (valid_until - now).total_seconds()
    conditions = [condition for condition in status.get("conditions") or () if condition.get("type") == SCORE_CONDITION]
    updated_at = parse_moment(conditions[0].get("lastTransitionTime")) if conditions else None
    return Freshness(
        updated_at=updated_at,
        valid_until=valid_until,
        expired=remaining_seconds is not None and remaining_seconds <= 0,
        seconds_left=None if remaining_seconds is None else math.floor(remaining_seconds * 10) / 10,
    )


def _find_scorer(manifest: Mapping[str, Any], scorers: Iterable[DynamicScorer]) -> DynamicScorer | None:
    """Return the scorer that wrote a score: the one in its label, or without a label the one with this score name."""
    metadata = manifest["metadata"]
    label = (metadata.get("labels") or {}).get(SCORER_NAME_LABEL)
    if label:
        return next((scorer for scorer in scorers if make_label_value(scorer.metadata.name) == label), None)
    return next((scorer for scorer in scorers if get_score_object_name(scorer) == metadata["name"]), None)


def _make_score(manifest: Manifest, scorer: DynamicScorer | None, now: datetime) -> ScoreObject:
    metadata = manifest["metadata"]
    annotations = dict(metadata.get("annotations") or {})
    if scorer is not None:
        annotations[DESCRIPTION] = scorer.spec.short_description
        annotations[DIMENSION_FORMAT] = scorer.spec.dimension_formats[0]
    return ScoreObject(
        apiVersion=manifest["apiVersion"],
        kind=manifest["kind"],
        metadata={
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "labels": metadata.get("labels") or {},
            "annotations": annotations,
        },
        status=manifest.get("status") or {},
        freshness=compute_freshness(manifest, now),
    )


def _view_scorer(scorer: DynamicScorer, target: str, objects: Iterable[Manifest], now: datetime) -> ScorerView:
    status = scorer.status
    return ScorerView(
        name=scorer.metadata.name,
        namespace=scorer.metadata.namespace,
        description=scorer.spec.short_description,
        config_url=scorer.spec.config_url,
        score_name=status.score_name,
        score_object=target,
        score_dimension_format=scorer.spec.dimension_formats[0],
        interval_seconds=status.interval or 0,
        health=status.health_status.value,
        conditions=[ConditionView.model_validate(condition, from_attributes=True) for condition in status.conditions],
        failures=[
            f"{failure.cluster}: {failure.stage} {failure.reason}: {failure.message}" for failure in status.failures[:3]
        ],
        scores=sorted((_make_cluster_score(manifest, now) for manifest in objects), key=lambda score: score.cluster),
    )


def _make_cluster_score(manifest: Manifest, now: datetime) -> ClusterScoreView:
    values = [item["value"] for item in (manifest.get("status") or {}).get("scores") or ()]
    return ClusterScoreView(
        cluster=manifest["metadata"]["namespace"],
        items=len(values),
        lowest=min(values, default=None),
        highest=max(values, default=None),
        freshness=compute_freshness(manifest, now),
    )
