"""Finds workloads that a plan would remove because scores are missing or have expired.

A failing scorer must not stop running workloads: neither those without a score, nor those that others would replace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from dsf.optimizer.plan import Plan, UnscoredAssignment
from dsf.optimizer.views import PlanView, Reason

#: Maximum assignments that a message names.
_MAX_NAMED_ASSIGNMENTS: Final = 3


def find_losses(plan: Plan, previous: PlanView) -> list[str]:
    """Return why a plan must not replace the previous one, one sentence per workload; empty if it may."""
    counts_before = Counter[str]()
    for assignment in previous.assignments:
        counts_before[assignment.workload] += assignment.replicas
    counts_after = Counter[str]()
    for new_assignment in plan.assignments:
        counts_after[new_assignment.workload] += new_assignment.replicas
    # Workload -> number of its options without a valid score.
    unknown_score_counts = {
        explanation.workload: explanation.options_without_score + explanation.options_with_expired_score
        for explanation in plan.explanation
    }
    reasons = []
    for unplaced in plan.unplaced:
        if counts_after[unplaced.workload] >= counts_before[unplaced.workload]:
            continue
        loss_text = f"workload {unplaced.workload} is placed now and would be removed, because {unplaced.message}"
        advice = "renew the scores, or reset the namespace first"
        if plan.unscored_assignments:
            reasons.append(
                f"{loss_text}, while the scores of {_format_assignments(plan.unscored_assignments)} are unknown; "
                f"{advice}"
            )
        elif unplaced.reason in (Reason.NO_SCORE, Reason.EXPIRED):
            reasons.append(f"{loss_text}; {advice}")
        elif number := unknown_score_counts.get(unplaced.workload):
            reasons.append(f"{loss_text}, while the scores of {number} other options of it are unknown; {advice}")
    return reasons


def _format_assignments(assignments: Sequence[UnscoredAssignment]) -> str:
    assignment_texts = [
        f"{assignment.workload} where it is now, {assignment.cluster} with {assignment.device}"
        for assignment in assignments[:_MAX_NAMED_ASSIGNMENTS]
    ]
    omitted_count = len(assignments) - _MAX_NAMED_ASSIGNMENTS
    return " and of ".join(assignment_texts) + (f" and of {omitted_count} more" if omitted_count > 0 else "")
