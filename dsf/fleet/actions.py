"""Actions of users on the fleet, each recorded with its author (`dsf.fleet.changes`).

The command line and the page only act through this module, so that every change has an author.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import redis

from dsf import keys
from dsf.api.meta import rfc3339
from dsf.fleet import rescore as rescoring
from dsf.fleet.changes import Action, Actor, UserAction, record
from dsf.fleet.rescore import RunView
from dsf.settings import Settings
from dsf.store.agents import AgentKeys, KeyRequest
from dsf.store.entries import ScheduleOverride, scorer_target
from dsf.store.notices import Notices
from dsf.store.registry import Registry
from dsf.store.schedule import ScheduleStore


class Actions:
    """Acts in one user's name. Methods raise redis.RedisError, and UnknownScorerError and UnknownClusterError before
    any change. `cluster` None means all.
    """

    def __init__(self, client: redis.Redis, settings: Settings, actor: Actor) -> None:
        self._redis = client
        self._settings = settings
        self._actor = actor
        self._store = ScheduleStore(client)

    def rescore(self, scorer: str, clusters: Sequence[str] | None = None, *, note: str = "") -> list[RunView]:
        """Send one tick to each cluster; see `dsf.fleet.rescore.send`."""
        runs: list[RunView] = []
        is_all = False
        try:
            runs += rescoring.send(self._redis, self._settings, scorer, clusters)
            is_all = not clusters
        finally:
            # An error may come after earlier ticks were sent.
            if sent_runs := [run for run in runs if run.run_id]:
                unsent_count = len(runs) - len(sent_runs)
                self._record(
                    Action.RESCORE,
                    scorer,
                    [] if is_all else [run.cluster for run in sent_runs],
                    cluster_count=len(sent_runs),
                    detail=f"{unsent_count} not sent" if unsent_count else "",
                    reference=sent_runs[0].run_id if len(sent_runs) == 1 else "",
                    note=note,
                )
        return runs

    def set_interval(self, scorer: str, cluster: str | None, seconds: int, *, note: str = "") -> ScheduleOverride:
        """Set the interval. Raises ValueError for one that is not 1..MAX_SECONDS (`dsf.api.types`)."""
        target = target_of(scorer, cluster)
        before = self._store.overrides().get(target)
        override = self._store.set_override(target, interval=seconds, note=note, by=self._actor.name)
        was = f", was {before.interval} s" if before is not None and before.interval is not None else ""
        self._record(Action.INTERVAL, scorer, _named(cluster), detail=f"{seconds} s{was}", note=note)
        return override

    def pause(
        self, scorer: str, cluster: str | None, until: float | None = None, *, note: str = ""
    ) -> ScheduleOverride:
        """Send no ticks until a moment (unix seconds), or until resumed."""
        override = self._store.set_override(
            target_of(scorer, cluster), paused=True, paused_until=until, note=note, by=self._actor.name
        )
        end = override.paused_until
        detail = "without an end" if end is None else f"until {rfc3339(datetime.fromtimestamp(end, UTC))}"
        self._record(Action.PAUSE, scorer, _named(cluster), detail=detail, note=note)
        return override

    def resume(self, scorer: str, cluster: str | None, *, note: str = "") -> ScheduleOverride:
        """End a pause; see `ScheduleStore.resume`."""
        override = self._store.resume(target_of(scorer, cluster), note=note, by=self._actor.name)
        self._record(Action.RESUME, scorer, _named(cluster), note=note)
        return override

    def reset(self, scorer: str, cluster: str | None, *, note: str = "") -> None:
        """Remove overrides of a scorer on one cluster, or on all."""
        if cluster is None:
            # Per cluster first: an interrupted reset leaves only overrides that users set.
            for target in sorted({*self._store.targets(scorer)} - {scorer_target(scorer)}):
                self._store.reset(target)
        self._store.reset(target_of(scorer, cluster))
        self._record(Action.RESET, scorer, _named(cluster), note=note)

    def backtest(self, scorer: str, cluster: str, since: int, every: int, *, note: str = "") -> None:
        """Note that a backtest is started, of so many seconds, with a moment each `every` seconds."""
        self._record(Action.BACKTEST, scorer, [cluster], detail=f"{since} s, every {every} s", note=note)

    def compare(
        self, scorer: str, other: str, clusters: Sequence[str], since: int, every: int, *, note: str = ""
    ) -> None:
        """Note that a comparison with another scorer is started: over the past as in `backtest`, or without `every` of
        the scores in force."""
        over = f"{since} s, every {every} s" if every else "scores in force"
        self._record(Action.COMPARE, scorer, clusters, detail=f"with {other}: {over}", note=note)

    def sync(self, scorer: str, *, note: str = "") -> str:
        """Ask the hub controller to read /config now; returns the id of the request, see `dsf.store.notices`."""
        if Notices(self._redis).scorer(scorer) is None:
            # Raises UnknownScorerError. A scorer that could not run yet has a notice.
            Registry(self._redis).scorer(scorer)
        request = self._record(Action.SYNC, scorer, [], note=note)
        if not request:
            raise redis.exceptions.NoPermissionError("this user may not record changes, see docs/upgrade.md")
        return request

    def request_credentials(
        self, action: Literal["rotate", "revoke"], clusters: Sequence[str], *, note: str = ""
    ) -> dict[str, KeyRequest]:
        """Request new credentials for these clusters. Returns the requests by cluster."""
        agent_keys = AgentKeys(self._redis)
        requests: dict[str, KeyRequest] = {}
        try:
            for name in clusters:
                requests[name] = agent_keys.ask(name, action, by=self._actor.name)
        finally:
            # An unknown cluster may come after earlier requests were made.
            if requests:
                self._record(Action(action), "", list(requests), note=note)
        return requests

    def _record(self, action: Action, scorer: str, clusters: Sequence[str], **details: Any) -> str:
        """Record it with these fields of `UserAction`; returns its id."""
        return record(
            self._redis, self._actor, UserAction(action=action, scorer=scorer, clusters=list(clusters), **details)
        )


def _named(cluster: str | None) -> list[str]:
    return [] if cluster is None else [cluster]


def target_of(scorer: str, cluster: str | None) -> str:
    """Target of an override: the scorer on one cluster, or on all (None)."""
    return scorer_target(scorer) if cluster is None else keys.pair(cluster, scorer)
