"""One DynamicScoringConfig: its status, and the end of everything when the one that counts is deleted.

The end takes away ManifestWorks, schedule entries and scores. The agents' credentials stay while their clusters are
accepted: they say who an agent is, and the next configuration finds agents that are ready.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

import redis

from dsf.api.scoringconfig import DynamicScoringConfig
from dsf.api.types import CELL_LABEL, GROUP, MANIFESTWORK_NAME
from dsf.backends.protocol import Backend, Kind, ObjectKey
from dsf.hub.clusters import ClusterReconciler
from dsf.hub.conditions import config_status, ignored_config_status
from dsf.hub.desiredstate import DesiredState
from dsf.hub.registrar import Registrar
from dsf.hub.scores import ScoreReconciler
from dsf.hub.statuses import write_status

#: Keeps the object until what was distributed is removed, where objects can be kept. Cells have one each:
#: `<this>-<cell>`.
FINALIZER: Final = f"{GROUP}/cleanup"
#: Seconds between two looks at whether everything is removed.
CLEANUP_LOOK: Final = 0.5


class ConfigReconciler:
    """Called with the key of a DynamicScoringConfig. Removing what was distributed is the clusters' affair."""

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
        own = desired.cells.own
        self._finalizer = f"{FINALIZER}-{own}" if own else FINALIZER

    def __call__(self, key: ObjectKey) -> float | None:
        """Raises BackendError and redis.RedisError."""
        plan = self._desired.update()
        config = self._desired.config(key)
        if config is None:
            return None
        counts = key == self._desired.config_key
        if config.metadata.deletion_timestamp is not None:
            return self._end(key, config, counts=counts)
        now = datetime.now(UTC)
        if not counts:
            status = ignored_config_status(config, self._desired.config_key.namespace, now=now)
        else:
            if self._finalizer not in config.metadata.finalizers:
                self._backend.add_finalizer(*key, self._finalizer)
            if config.status.conditions and not self._clusters.have_looked_at(plan.clusters):
                # After a start: what was true before is not yet known to be different. The last look comes back here.
                return None
            status = config_status(
                config,
                clusters=len(self._clusters.kept(plan.clusters)),
                distributed=self._clusters.up_to_date(),
                scorers=sum(bool(plan.clusters_of(scorer)) for scorer in plan.scorers.values()),
                masked=plan.masked_pairs(),
                agents=self._agent_problems(),
                without_addon=plan.without_addon,
                now=now,
            )
        write_status(self._backend, key, config.status.conditions, status)
        return None

    def _agent_problems(self) -> Mapping[str, str] | None:
        try:
            return self._registrar.agent_problems()
        except redis.RedisError:
            # What is known stays.
            return None

    def _end(self, key: ObjectKey, config: DynamicScoringConfig, *, counts: bool) -> float | None:
        """It is being deleted: let it go once everything that was made because of it is removed."""
        ours = self._finalizers(config)
        if not ours:
            return None
        if counts and not self._is_clean():
            return CLEANUP_LOOK
        for finalizer in ours:
            self._backend.remove_finalizer(*key, finalizer)
        return None

    def _finalizers(self, config: DynamicScoringConfig) -> list[str]:
        """Those of the object that are for this hub to take off: its own, and for the first of several cells also those
        of a hub without cells and of cells that are not there any more."""
        others = {f"{FINALIZER}-{name}" for name in self._desired.cells.names if name != self._desired.cells.own}
        found = [one for one in config.metadata.finalizers if one.startswith(FINALIZER) and one not in others]
        return found if self._desired.cells.is_first else [one for one in found if one == self._finalizer]

    def _is_clean(self) -> bool:
        # A work that is being deleted waits for its cluster, which may be away for a long time.
        works = (
            work
            for work in self._backend.list(Kind.WORK)
            if work["metadata"]["name"] == MANIFESTWORK_NAME
            and not work["metadata"].get("deletionTimestamp")
            and work["metadata"]["namespace"] not in self._desired.plan.elsewhere
            and not self._desired.cells.is_other((work["metadata"].get("labels") or {}).get(CELL_LABEL, ""))
        )
        if next(works, None) is not None or self._registrar.has_entries():
            return False
        # The writer removes what it wrote; what it does not know of, or while it is away, is removed here.
        return not self._scores.remove_all()
