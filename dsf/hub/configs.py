"""One DynamicScoringConfig: its status, and the cleanup when the effective one is deleted.

The cleanup removes ManifestWorks, schedule entries and scores. Agents keep their credentials while their clusters are
accepted: these are their identity, and the next configuration finds agents that are ready.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Final

import redis

from dsf.api.types import GROUP, MANIFESTWORK_NAME
from dsf.backends.protocol import Backend, Kind, ObjectKey
from dsf.hub.clusters import ClusterReconciler
from dsf.hub.conditions import config_status, ignored_config_status
from dsf.hub.desiredstate import DesiredState
from dsf.hub.registrar import Registrar
from dsf.hub.scores import ScoreReconciler
from dsf.hub.statuses import write_status

#: Keeps the object until everything distributed is removed, if the backend has finalizers.
FINALIZER: Final = f"{GROUP}/cleanup"


class ConfigReconciler:
    """Reconciles a DynamicScoringConfig by key. The cluster reconciler removes what was distributed."""

    def __init__(
        self,
        backend: Backend,
        registrar: Registrar,
        desired: DesiredState,
        clusters: ClusterReconciler,
        scores: ScoreReconciler,
    ) -> None:
        self._backend = backend
        self._registrar = registrar
        self._desired = desired
        self._clusters = clusters
        self._scores = scores

    def __call__(self, key: ObjectKey) -> float | None:
        """Raises BackendError and redis.RedisError."""
        plan = self._desired.plan
        config = self._desired.config(key)
        counts = key == self._desired.config_key
        # Also of one that cannot be read.
        metadata = (self._backend.get(*key) or {}).get("metadata", {})
        if metadata.get("deletionTimestamp"):
            return self._end(key, metadata.get("finalizers") or (), counts=counts)
        if config is None:
            return None
        now = datetime.now(UTC)
        if not counts:
            status = ignored_config_status(config, self._desired.config_key.namespace, now=now)
        else:
            if FINALIZER not in config.metadata.finalizers:
                self._backend.add_finalizer(*key, FINALIZER)
            if config.status.conditions and not self._clusters.have_looked_at(plan.clusters):
                # After a start: the counts are not yet complete. The last cluster's run triggers this again.
                return None
            status = config_status(
                config,
                clusters=len(plan.clusters),
                distributed=self._clusters.up_to_date(),
                scorers=sum(bool(plan.clusters_of(scorer)) for scorer in plan.scorers.values()),
                masked=plan.masked_pairs(),
                agents=self._agent_problems(),
                without_addon=plan.without_addon,
                without_room=[scorer.scorer.key for scorer in plan.without_room()],
                now=now,
            )
        write_status(self._backend, key, config.status.conditions, status)
        return None

    def _agent_problems(self) -> Mapping[str, str] | None:
        try:
            return self._registrar.agent_problems()
        except redis.RedisError:
            # Keep the known status.
            return None

    def _end(self, key: ObjectKey, finalizers: Collection[str], *, counts: bool) -> float | None:
        """Being deleted: release it once everything created for it is removed."""
        if FINALIZER not in finalizers:
            return None
        if counts and not self._is_clean():
            return 0.5
        self._backend.remove_finalizer(*key, FINALIZER)
        return None

    def _is_clean(self) -> bool:
        # A work in deletion waits for its cluster, which may be unreachable for long.
        works = (
            work
            for work in self._backend.list(Kind.WORK)
            if work["metadata"]["name"] == MANIFESTWORK_NAME and not work["metadata"].get("deletionTimestamp")
        )
        if next(works, None) is not None or self._registrar.has_entries():
            return False
        # The writer removes its scores; scores unknown to it, or while it is down, are removed here.
        return not self._scores.remove_all()
