"""Groups of pairs without a new score by reason: `bad_query on 412 clusters`."""

from __future__ import annotations

from dsf.fleet.groups import Groups
from dsf.fleet.overviews import ReasonGroup
from dsf.fleet.verdict import Verdict
from dsf.store.pairs import PairFailure
from dsf.store.registry import ScorerRecord
from dsf.store.ticks import Skips


def reason_groups(record: ScorerRecord, groups: Groups) -> list[ReasonGroup]:
    """The groups of a scorer's pairs by reason; most clusters first."""
    sizes: dict[tuple[Verdict, str, str], int] = {}
    newest: dict[tuple[Verdict, str, str], tuple[str, PairFailure]] = {}
    for state, row, why in groups.reasons:
        group = (state, why.stage, why.reason)
        sizes[group] = sizes.get(group, 0) + 1
        if group not in newest or why.at > newest[group][1].at:
            newest[group] = (row.cluster, why)
    reasons = [_group(record, group[0], *newest[group], size) for group, size in sizes.items()]
    return sorted(reasons, key=lambda reason: (-reason.clusters, reason.reason, reason.stage))


def _group(record: ScorerRecord, state: Verdict, cluster: str, newest: PairFailure, size: int) -> ReasonGroup:
    message = newest.message
    if state is Verdict.SKIPPED:
        message = Skips(cluster, newest.reason, 0, 0.0).why(record.rate_limit, record.problem)
    return ReasonGroup(
        scorer=record.name,
        state=state,
        stage=newest.stage,
        reason=newest.reason,
        clusters=size,
        cluster=cluster,
        run_id=newest.run,
        at=newest.at or None,
        message=message,
    )
