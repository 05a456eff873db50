"""One DynamicScoringConfig: its status, and the removal of scores when the effective one is deleted.

The cluster reconcilers remove ManifestWorks and schedule entries then. Agents keep their credentials while their
clusters are accepted: these are their identity, and the next configuration finds agents that are ready.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import redis

from dsf.backends.protocol import Backend, ObjectKey
from dsf.hub.clusters import ClusterReconciler
from dsf.hub.conditions import config_status, ignored_config_status
from dsf.hub.desiredstate import DesiredState
from dsf.hub.registrar import Registrar
from dsf.hub.scores import ScoreReconciler
from dsf.hub.statuses import write_status


@dataclass(frozen=True)
class ConfigReconciler:
    """Reconciles a DynamicScoringConfig by key, existing or not."""

    backend: Backend
    registrar: Registrar
    desired: DesiredState
    clusters: ClusterReconciler
    scores: ScoreReconciler
    #: Gets the scores that are to be reconciled because there is no configuration any more.
    on_orphan: Callable[[ObjectKey], None]

    def __call__(self, key: ObjectKey) -> float | None:
        """Raises BackendError and redis.RedisError."""
        plan = self.desired.plan
        config = self.desired.config(key)
        counts = key == self.desired.config_key
        if counts and self.desired.has_no_config:
            for score in self.scores.orphans(plan):
                self.on_orphan(score)
            return None
        if config is None or config.metadata.deletion_timestamp is not None:
            return None
        now = datetime.now(UTC)
        if not counts:
            status = ignored_config_status(config, self.desired.config_key.namespace, now=now)
        else:
            if config.status.conditions and not self.clusters.have_looked_at(plan.clusters):
                # After a start: the counts are not yet complete. The last cluster's run triggers this again.
                return None
            status = config_status(
                config,
                clusters=len(plan.clusters),
                distributed=self.clusters.up_to_date(),
                scorers=sum(bool(plan.clusters_of(scorer)) for scorer in plan.scorers.values()),
                masked=plan.masked_pairs(),
                agents=self._agent_problems(),
                without_addon=plan.without_addon,
                without_room=[scorer.scorer.key for scorer in plan.without_room()],
                now=now,
            )
        write_status(self.backend, key, config.status.conditions, status)
        return None

    def _agent_problems(self) -> Mapping[str, str] | None:
        try:
            return self.registrar.agent_problems()
        except redis.RedisError:
            # Keep the known status.
            return None
