"""Rows grouped by state, worked out again only where a row has changed or time has brought another state."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Final

from dsf.fleet.overviews import ReasonGroup
from dsf.fleet.snapshot import Rows, SnapshotRow
from dsf.fleet.verdict import Verdict
from dsf.store.pairs import PairFailure
from dsf.store.registry import ScorerRecord

#: What a pair adds to how bad its cluster is: one that fails outweighs all that do not.
_WEIGHT: Final = {Verdict.FAILING: 1e8, Verdict.EXPIRED: 1e4, Verdict.SKIPPED: 1e4, Verdict.NEVER: 1.0}


class Groups:
    """The rows of one scorer by state."""

    def __init__(self, rows: Mapping[str, SnapshotRow], now: float) -> None:
        """`rows` by cluster, judged at `now` (unix seconds)."""
        self.rows = rows
        states: dict[Verdict, list[SnapshotRow]] = {state: [] for state in Verdict}
        until = float("inf")
        for row in rows.values():
            state, end = row.judged(now)
            states[state].append(row)
            until = min(until, end)
        #: Worst first; a state without rows is left out.
        self.states = {state: some for state, some in states.items() if some}
        self._since, self._until = now, until

    def holds(self, rows: Mapping[str, SnapshotRow], now: float) -> bool:
        """Whether it is right for these rows at `now`."""
        return self.rows is rows and self._since <= now < self._until

    @cached_property
    def reasons(self) -> list[tuple[Verdict, SnapshotRow, PairFailure]]:
        """The rows that lack a new score, or have not all results in it, and why."""
        return [
            (state, row, why)
            for state, some in self.states.items()
            for row in some
            if (why := row.why(state)) is not None
        ]

    @cached_property
    def successes(self) -> list[float]:
        """Unix seconds of each row's newest successful cycle, newest first."""
        return sorted((row.last_success for row in self.rows.values() if row.last_success is not None), reverse=True)


class FleetGroups:
    """The rows of all scorers by state. Does not change."""

    def __init__(self, scorers: Mapping[str, Groups]) -> None:
        self.scorers = scorers

    def at(self, rows: Rows, now: float) -> FleetGroups:
        """The groups of these rows at `now` (unix seconds); these, if they are right."""
        groups: dict[str, Groups] = {}
        for scorer, own in rows.items():
            known = self.scorers.get(scorer)
            groups[scorer] = known if known is not None and known.holds(own, now) else Groups(own, now)
        return FleetGroups(groups) if groups != self.scorers else self

    @cached_property
    def clusters(self) -> dict[str, dict[str, Verdict]]:
        """Cluster -> scorer -> state."""
        by_cluster: dict[str, dict[str, Verdict]] = {}
        for scorer, groups in self.scorers.items():
            for state, some in groups.states.items():
                for row in some:
                    by_cluster.setdefault(row.cluster, {})[scorer] = state
        return by_cluster

    @cached_property
    def badness(self) -> dict[str, float]:
        """How bad each cluster is."""
        return {
            name: sum(_WEIGHT.get(state, 0.0) for state in states.values()) for name, states in self.clusters.items()
        }


def reason_groups(record: ScorerRecord, groups: Groups) -> list[ReasonGroup]:
    """The groups of a scorer's pairs by reason; most clusters first."""
    sizes: dict[tuple[Verdict, str, str], int] = {}
    newest: dict[tuple[Verdict, str, str], tuple[SnapshotRow, PairFailure]] = {}
    # Of those at the same time, the first by name.
    for state, row, why in sorted(groups.reasons, key=lambda found: (-found[2].at, found[1].cluster)):
        group = (state, why.stage, why.reason)
        sizes[group] = sizes.get(group, 0) + 1
        newest.setdefault(group, (row, why))
    reasons = [_group(record, group[0], *newest[group], size) for group, size in sizes.items()]
    return sorted(reasons, key=lambda reason: (-reason.clusters, reason.reason, reason.stage))


def _group(record: ScorerRecord, state: Verdict, row: SnapshotRow, newest: PairFailure, size: int) -> ReasonGroup:
    # Of failing pairs the failure is the reason.
    skips = row.skips if state in (Verdict.SKIPPED, Verdict.EXPIRED, Verdict.NEVER) else None
    return ReasonGroup(
        scorer=record.name,
        state=state,
        stage=newest.stage,
        reason=newest.reason,
        clusters=size,
        cluster=row.cluster,
        run_id=newest.run,
        at=newest.at or None,
        since=skips.since if skips else None,
        message=skips.why(record.rate_limit, record.problem) if skips else newest.message,
    )
