"""The optimiser's access to the hub's Redis: sends ticks, records actions, and stores plans for the page."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import redis

import dsf.log
from dsf.errors import DsfError
from dsf.fleet import changes
from dsf.fleet.actions import Actions
from dsf.fleet.changes import Actor, UserAction
from dsf.fleet.rescore import RunView
from dsf.optimizer import plans
from dsf.optimizer.plans import PlanComparison
from dsf.settings import Settings
from dsf.store.client import connect

log = dsf.log.get(__name__)


@dataclass(frozen=True)
class HubRedis:
    """The hub's Redis, with a connection per call, because calls are rare. Thread-safe."""

    settings: Settings

    @classmethod
    def of(cls, settings: Settings) -> HubRedis | None:
        """Return the hub's Redis; None if the settings have none."""
        return cls(settings) if "redis_url" in settings.model_fields_set else None

    def rescore(self, actor: Actor, scorer: str, cluster: str | None) -> list[RunView]:
        """Send a tick and record it; see `dsf.fleet.actions.Actions.rescore`."""
        with self._connect() as client:
            return Actions(client, self.settings, actor).rescore(scorer, [cluster] if cluster else None)

    def record(self, actor: Actor, action: UserAction) -> None:
        """Record a completed action. Failures are logged, because the action itself has succeeded."""
        with self._connect_or_log("the change cannot be recorded") as client:
            changes.record_change(client, actor, action)

    def store_plan(self, comparison: PlanComparison) -> None:
        """Store the newest plan of a namespace for the page. Failures are logged, because the plan is unaffected."""
        with self._connect_or_log("the plan cannot be stored for the page") as client:
            plans.store_comparison(client, comparison)

    def remove_plan(self, namespace: str) -> None:
        """Remove the plan of a namespace from the page. Failures are logged."""
        with self._connect_or_log("the plan cannot be removed from the page") as client:
            plans.remove_comparison(client, namespace)

    @contextlib.contextmanager
    def _connect(self) -> Iterator[redis.Redis]:
        with contextlib.closing(connect(self.settings, name="dsf-optimizer", retries=1)) as client:
            yield client

    @contextlib.contextmanager
    def _connect_or_log(self, problem: str) -> Iterator[redis.Redis]:
        try:
            # The settings may name a file that does not exist.
            with self._connect() as client:
                yield client
        except (redis.RedisError, DsfError) as error:
            log.error(problem, error=str(error))
