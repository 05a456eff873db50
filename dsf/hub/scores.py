"""Foreign changes to AddOnPlacementScores, and orphaned ones.

The results worker's writer owns the scores. The hub watches them, has the writer check again, and removes those unknown
to the writer: Redis lost their records, or they were created manually with the hub's label.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import dsf.log
from dsf.api.naming import label_value, sanitize_resource_name
from dsf.api.types import SCORER_NAME_LABEL
from dsf.backends.protocol import Backend, Kind, Manifest, ObjectKey
from dsf.errors import BackendError
from dsf.hub.desiredstate import DesiredState
from dsf.hub.registrar import Registrar
from dsf.hub.scorerplan import ScorerPlan
from dsf.hub.summaries import FleetPlan

log = dsf.log.get(__name__)


@dataclass(frozen=True)
class ScoreReconciler:
    """Reconciles an AddOnPlacementScore by key: edited, deleted, or possibly orphaned."""

    backend: Backend
    registrar: Registrar
    desired: DesiredState

    def __call__(self, key: ObjectKey) -> float | None:
        """Raises BackendError and redis.RedisError."""
        plan = self.desired.plan
        manifest = self.backend.get(*key)
        owner = _Owners(plan).of(key, manifest)
        if owner is not None:
            self.registrar.rewrite_score(key.namespace, owner.name)
        elif manifest is None or _is_going(manifest):
            return None
        elif self.desired.has_no_config or not self._is_writers(key, manifest):
            # Without a configuration also what the writer will remove: it may be away.
            log.info("removing a score that belongs to no scorer", cluster=key.namespace, score=key.name)
            self.backend.delete_score(key.namespace, key.name)
        return None

    def orphans(self, plan: FleetPlan) -> Iterator[ObjectKey]:
        """Scores without a scorer in the plan; the writer may still be about to remove them."""
        owners = _Owners(plan)
        for key in self.backend.keys(Kind.SCORE):
            # Most are recognised by name: only the others are read.
            if owners.of(key, None) is None:
                try:
                    manifest = self.backend.get(*key)
                except BackendError as error:
                    log.warning("a score is left out", cluster=key.namespace, score=key.name, error=str(error))
                    continue
                if manifest is not None and not _is_going(manifest) and owners.of(key, manifest) is None:
                    yield key

    def _is_writers(self, key: ObjectKey, manifest: Manifest) -> bool:
        """Whether the writer knows this score, and so will remove it."""
        scorer = _label(manifest, SCORER_NAME_LABEL)
        return bool(scorer) and self.registrar.written_score(key.namespace, scorer) == key.name


class _Owners:
    """Finds a score's scorer by label or, if that is missing, by name."""

    def __init__(self, plan: FleetPlan) -> None:
        self._plan = plan
        candidates = [scorer for scorer in plan.scorers.values() if not scorer.has_no_name]
        self._by_label = {label_value(scorer.name): scorer for scorer in candidates}
        self._by_name = {
            sanitize_resource_name(scorer.resolved.score_name): scorer
            for scorer in candidates
            if scorer.resolved is not None
        }

    def of(self, key: ObjectKey, manifest: Manifest | None) -> ScorerPlan | None:
        """The scorer; None if no scorer has such a score on this cluster.

        A scorer that cannot run at the moment keeps its scores until they expire. One that no longer selects this
        cluster has none there.
        """
        if not self._plan.is_enabled or key.namespace not in self._plan.clusters:
            return None
        scorer = self._by_name.get(key.name)
        if scorer is None and manifest is not None:
            # An unresolved scorer has no score name.
            labelled = self._by_label.get(_label(manifest, SCORER_NAME_LABEL))
            return labelled if labelled is not None and labelled.resolved is None else None
        if scorer is None or scorer.resolved is None:
            return None
        if key.namespace in scorer.variants and scorer.variants[key.namespace] is None:
            return None
        return None if self._plan.masks.hides(key.namespace, scorer.resolved.score_name) else scorer


def _label(manifest: Manifest, name: str) -> str:
    labels = manifest["metadata"].get("labels") or {}
    return str(labels.get(name, ""))


def _is_going(manifest: Manifest) -> bool:
    return bool(manifest["metadata"].get("deletionTimestamp"))
