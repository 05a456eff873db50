"""Result of the solver; `views` has its parts, which answers contain unchanged."""

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
class UnknownPlace:
    """Where a workload is now, while its score there is missing or has expired."""

    workload: str
    cluster: str
    device: str


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan. Two plans are equal when they say the same, however long it took to find them."""

    status: Status
    coverage: Coverage
    placed: PlanView
    unplaced: list[UnplacedView]
    #: The sum that was made greatest: `score_sum` and `keep_current` for every replica that stays.
    objective: float
    score_sum: float
    #: No plan has a greater objective.
    bound: float
    #: (bound - objective) / bound; 0 when the plan is the best.
    gap: float
    #: Whether ties were broken by the full order: more placed, more staying, names. False: time ran out before that.
    ties_exact: bool
    explanation: list[ExplanationView]
    score_gaps: list[ScoreGapView]
    #: Current places of workloads that are unknown, by workload and cluster.
    unknown_places: tuple[UnknownPlace, ...]
    #: All clusters that were to be had, used or not; and what one replica of each workload needs.
    clusters: tuple[str, ...]
    requests: Mapping[str, Mapping[str, int]]
    seconds: float = field(default=0.0, compare=False)

    @property
    def assignments(self) -> list[AssignmentView]:
        """Which workload goes where."""
        return self.placed.assignments

    @property
    def configurations(self) -> list[ConfigurationView]:
        """How clusters are set up for it."""
        return self.placed.configurations
