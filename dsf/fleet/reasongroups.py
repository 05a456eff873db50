"""Groups of pairs without a new score by reason: `bad_query on 412 clusters`."""

from __future__ import annotations

from dsf.fleet.groups import Groups
from dsf.fleet.overviews import ReasonGroup
from dsf.fleet.snapshot import SnapshotRow
from dsf.fleet.verdict import Verdict
from dsf.store.pairs import PairFailure
from dsf.store.registry import ScorerRecord


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
