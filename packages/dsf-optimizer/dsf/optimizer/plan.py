"""The result of the solver. Its parts are defined in `views`, because responses contain them unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dsf.optimizer.views import (
    AssignmentView,
    ConfigurationView,
    Coverage,
    ExplanationView,
    PlanView,
    ScoreGapView,
    Status,
    UnplacedView,
)


@dataclass(frozen=True, slots=True)
class UnscoredAssignment:
    """A current assignment of a workload whose score there is missing or has expired."""

    workload: str
    cluster: str
    device: str


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan. Two plans are equal if all but their search times are equal."""

    status: Status
    coverage: Coverage
    placed: PlanView
    unplaced: list[UnplacedView]
    #: The maximised sum: `score_sum` plus `keep_current` for every replica that stays.
    objective: float
    score_sum: float
    #: Upper bound of the objective of all plans.
    bound: float
    #: (bound - objective) / bound; 0 for the best plan.
    gap: float
    #: True if all ties were broken (see `dsf.optimizer.ties`), False if the time ran out before.
    ties_exact: bool
    explanation: list[ExplanationView]
    score_gaps: list[ScoreGapView]
    #: Current assignments without a valid score, by workload and cluster.
    unscored_assignments: tuple[UnscoredAssignment, ...]
    #: All available clusters, used or not, and the request of one replica of each workload.
    clusters: tuple[str, ...]
    requests: Mapping[str, Mapping[str, int]]
    seconds: float = field(default=0.0, compare=False)

    @property
    def assignments(self) -> list[AssignmentView]:
        """Assignments of workloads to clusters."""
        return self.placed.assignments

    @property
    def configurations(self) -> list[ConfigurationView]:
        """Configurations of clusters."""
        return self.placed.configurations
