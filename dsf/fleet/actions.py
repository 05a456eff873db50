"""Executes users' actions on the fleet, and records each with its author (`dsf.fleet.changes`).

The command line and the page only act through this module, so that each change has an author.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import redis

from dsf import keys
from dsf.api.acts import ActRequest
from dsf.api.meta import format_rfc3339
from dsf.api.selector import ClusterSelector
from dsf.errors import UnknownClusterError
from dsf.fleet import rescore as rescoring
from dsf.fleet.changes import Action, Actor, UserAction, record_change
from dsf.fleet.rescore import RunView
from dsf.settings import Settings
from dsf.store.agents import AgentKeys, KeyRequest
from dsf.store.entries import make_scorer_target
from dsf.store.notices import Notices
from dsf.store.registry import Registry
from dsf.store.schedule import ScheduleStore


class Actions:
    """Executes the actions of one user.

    In all methods, None for `clusters` stands for all clusters. Methods raise UnknownScorerError and
    UnknownClusterError before any change, and redis.RedisError.
    """

    def __init__(self, client: redis.Redis, settings: Settings, actor: Actor) -> None:
        self._redis = client
        self._settings = settings
        self._actor = actor
        self._store = ScheduleStore(client)

    def rescore(self, scorer: str, clusters: Sequence[str] | None = None, *, note: str = "") -> list[RunView]:
        """Send one tick to each cluster (`dsf.fleet.rescore.send_ticks`), and return the runs."""
        runs: list[RunView] = []
        was_sent_to_all = False
        try:
            runs += rescoring.send_ticks(self._redis, self._settings, scorer, clusters)
            was_sent_to_all = not clusters
        finally:
            # Also record the action after an error, because some ticks may have been sent.
            if sent_runs := [run for run in runs if run.run_id]:
                unsent_count = len(runs) - len(sent_runs)
                self._record(
                    Action.RESCORE,
                    scorer,
                    [] if was_sent_to_all else [run.cluster for run in sent_runs],
                    cluster_count=len(sent_runs),
                    detail=f"{unsent_count} not sent" if unsent_count else "",
                    reference=sent_runs[0].run_id if len(sent_runs) == 1 else "",
                    note=note,
                )
        return runs

    def execute(self, scorer: str, request: ActRequest, *, pause_end: float | None = None) -> list[str]:
        """Execute a request for pause, resume, interval or reset. Raises ValueError for other requests.

        `pause_end` is in unix seconds. Returns the named or selected clusters, or an empty list for all.
        """
        clusters = list(request.clusters)
        if request.selector is not None:
            clusters = self.select_clusters(scorer, request.selector)
        match request.act:
            case "pause":
                self.pause(scorer, clusters, pause_end, note=request.note)
            case "resume":
                self.resume(scorer, clusters, note=request.note)
            case "interval":
                self.set_interval(scorer, clusters, request.interval, note=request.note)
            case "reset":
                self.reset(scorer, clusters, note=request.note)
            case _:
                raise ValueError(f"{request.act} changes no override")
        return clusters

    def set_interval(self, scorer: str, clusters: Sequence[str] | None, seconds: int, *, note: str = "") -> None:
        """Set the interval in seconds. Raises ValueError if it is not in 1..MAX_SECONDS (`dsf.api.types`)."""
        targets = self._check_targets(scorer, clusters)
        previous_override = self._store.read_overrides().get(targets[0]) if len(targets) == 1 else None
        for target in targets:
            self._store.set_override(target, interval=seconds, note=note, by=self._actor.name)
        suffix = (
            f", was {previous_override.interval} s"
            if previous_override is not None and previous_override.interval is not None
            else ""
        )
        self._record(Action.INTERVAL, scorer, clusters or (), detail=f"{seconds} s{suffix}", note=note)

    def pause(
        self, scorer: str, clusters: Sequence[str] | None, pause_end: float | None = None, *, note: str = ""
    ) -> None:
        """Pause a scorer until a time (unix seconds), or with None until it is resumed."""
        for target in self._check_targets(scorer, clusters):
            end = self._store.set_override(
                target, paused=True, paused_until=pause_end, note=note, by=self._actor.name
            ).paused_until
        detail = "without an end" if end is None else f"until {format_rfc3339(datetime.fromtimestamp(end, UTC))}"
        self._record(Action.PAUSE, scorer, clusters or (), detail=detail, note=note)

    def resume(self, scorer: str, clusters: Sequence[str] | None, *, note: str = "") -> None:
        """End a pause (`ScheduleStore.resume`)."""
        for target in self._check_targets(scorer, clusters):
            self._store.resume(target, note=note, by=self._actor.name)
        self._record(Action.RESUME, scorer, clusters or (), note=note)

    def reset(self, scorer: str, clusters: Sequence[str] | None, *, note: str = "") -> None:
        """Remove the overrides of a scorer on these clusters."""
        overridden_targets, targets = {*self._store.read_targets(scorer)}, make_targets(scorer, clusters)
        if not overridden_targets.issuperset(targets):
            # Skip the check of clusters with an override, because an override may outlive its cluster.
            self._check_targets(
                scorer, [name for name in clusters or () if keys.pair(name, scorer) not in overridden_targets]
            )
        if not clusters:
            # First remove the overrides of single clusters, so that an interrupted reset leaves a state that users
            # could have set.
            targets = [*sorted(overridden_targets - {make_scorer_target(scorer)}), *targets]
        for target in targets:
            self._store.reset(target)
        self._record(Action.RESET, scorer, clusters or (), note=note)

    def select_clusters(self, scorer: str, selector: ClusterSelector) -> list[str]:
        """Return the clusters on which a scorer runs and whose labels match the selector, sorted by name.

        Raises UnknownClusterError if no cluster matches.
        """
        Registry(self._redis).read_scorer(scorer)
        scorer_clusters = {entry.cluster for entry in self._store.read_entries_of(scorer)}
        notices = Notices(self._redis).read_clusters()
        selected_clusters = sorted(
            name for name in scorer_clusters if name in notices and selector.matches(notices[name].labels)
        )
        if not selected_clusters:
            raise UnknownClusterError(
                f"the selector matches none of the {len(scorer_clusters)} clusters on which scorer {scorer!r} runs"
            )
        return selected_clusters

    def _check_targets(self, scorer: str, clusters: Sequence[str] | None) -> list[str]:
        """Return the targets of overrides. Raises UnknownScorerError or UnknownClusterError for unregistered names."""
        registry = Registry(self._redis)
        registry.read_scorer(scorer)
        for cluster in clusters or ():
            registry.read_cluster(cluster)
        return make_targets(scorer, clusters)

    def record_backtest(self, scorer: str, cluster: str, seconds: int, step: int, *, note: str = "") -> None:
        """Record that a backtest was started over the last `seconds`, with a step of `step` seconds."""
        self._record(Action.BACKTEST, scorer, [cluster], detail=f"{seconds} s, every {step} s", note=note)

    def record_comparison(
        self, scorer: str, other: str, clusters: Sequence[str], seconds: int, step: int, *, note: str = ""
    ) -> None:
        """Record that a comparison with another scorer was started.

        `seconds` and `step` are those of `record_backtest`. If `step` is 0, the comparison is of the scores in force.
        """
        period = f"{seconds} s, every {step} s" if step else "scores in force"
        self._record(Action.COMPARE, scorer, clusters, detail=f"with {other}: {period}", note=note)

    def sync(self, scorer: str, *, note: str = "") -> str:
        """Request that the hub controller reads /config now, and return the id of the request (`dsf.store.notices`).

        Also raises NoPermissionError if the Redis user may not record changes.
        """
        if Notices(self._redis).read_scorer(scorer) is None:
            # Raise UnknownScorerError if there is no record either. A scorer that could not run yet has only a notice.
            Registry(self._redis).read_scorer(scorer)
        request = self._record(Action.SYNC, scorer, [], note=note)
        if not request:
            raise redis.exceptions.NoPermissionError("this user may not record changes, see docs/upgrade.md")
        return request

    def request_credentials(
        self, action: Literal["rotate", "revoke"], clusters: Sequence[str], *, note: str = ""
    ) -> dict[str, KeyRequest]:
        """Request new credentials for these clusters, and return the requests by cluster."""
        agent_keys = AgentKeys(self._redis)
        requests: dict[str, KeyRequest] = {}
        try:
            for name in clusters:
                requests[name] = agent_keys.request_credentials(name, action, by=self._actor.name)
        finally:
            # Also record the requests after an error, because only a later cluster may be unknown.
            if requests:
                self._record(Action(action), "", list(requests), note=note)
        return requests

    def _record(self, action: Action, scorer: str, clusters: Sequence[str], **details: Any) -> str:
        """Record an action with these fields of `UserAction`, and return its id."""
        return record_change(
            self._redis, self._actor, UserAction(action=action, scorer=scorer, clusters=list(clusters), **details)
        )


def make_targets(scorer: str, clusters: Sequence[str] | None) -> list[str]:
    """Return the targets of overrides: the scorer on each of the clusters, or on all clusters without a name."""
    return [keys.pair(cluster, scorer) for cluster in dict.fromkeys(clusters or ())] or [make_scorer_target(scorer)]
