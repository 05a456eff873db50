"""What a plan says; plain frozen data that turns into JSON as it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Status(StrEnum):
    """What is known about a plan."""

    #: No other plan has a greater sum.
    OPTIMAL = "Optimal"
    #: A good plan; `gap` says how far from the best one it can be at most.
    FEASIBLE = "Feasible"
    #: There is something to place but nothing can or should be placed; `unplaced` has the reasons.
    NOTHING_PLACED = "NothingPlaced"
    #: There are no workloads.
    NOTHING_TO_PLACE = "NothingToPlace"


class Reason(StrEnum):
    """Why an option was not taken."""

    NO_CONFIGURATION = "no_configuration"
    NO_SCORE = "no_score"
    EXPIRED = "expired"
    TOO_LARGE = "too_large"
    NEGATIVE = "negative_score"
    #: The cluster has another configuration.
    CONFIGURATION = "configuration_conflict"
    #: Others take what it would need.
    CAPACITY = "capacity"
    #: What was chosen instead scores more.
    LOWER_SCORE = "lower_score"
    #: What was chosen scores the same and is where the workload is now, or comes first by name, or helps another.
    TIE = "tie"
    #: Moving is not worth what `keep_current` says it costs.
    KEPT = "kept"
    #: The search ended before this could be tried.
    NOT_PROVEN = "not_proven"


@dataclass(frozen=True, slots=True)
class Assignment:
    """Replicas of a workload that go to one cluster."""

    workload: str
    cluster: str
    configuration: str
    device: str
    #: Of one replica.
    score: float
    replicas: int
    #: How many of them are there already.
    kept: int
    #: What one replica needs.
    request: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Chosen:
    """The configuration a cluster is given. A cluster that gets no workload is given none."""

    cluster: str
    configuration: str
    device: str
    supply: Mapping[str, int]
    used: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Unplaced:
    """Replicas of a workload that go nowhere."""

    workload: str
    replicas: int
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class UnknownPlace:
    """Where a workload is now, and nobody knows how well it runs there: the score is missing or has expired."""

    workload: str
    cluster: str
    device: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a workload is where it is: its best option among those not taken, and why not that one."""

    workload: str
    #: Cluster, device and score of what was chosen, one per cluster.
    chosen: tuple[tuple[str, str, float], ...]
    #: The next best option; None when no other option has a score.
    alternative: tuple[str, str, float] | None
    reason: Reason
    message: str
    #: How many options there are without a score, and with an expired one.
    without_score: int = 0
    expired: int = 0


@dataclass(frozen=True, slots=True)
class ScoreGap:
    """Scores of one cluster that could not be used."""

    cluster: str
    score: str
    reason: Reason
    message: str
    #: Names of missing items, the first few; empty when the whole object is missing or expired.
    items: tuple[str, ...] = ()
    count: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan. Two plans are equal when they say the same, however long it took to find them."""

    status: Status
    assignments: tuple[Assignment, ...]
    configurations: tuple[Chosen, ...]
    unplaced: tuple[Unplaced, ...]
    #: The sum that was made greatest: `score_sum` and `keep_current` for every replica that stays.
    objective: float
    score_sum: float
    #: No plan has a greater objective.
    bound: float
    #: (bound - objective) / bound; 0 when the plan is the best.
    gap: float
    #: Whether ties were broken by the full order: more placed, more staying, names. False: time ran out before that.
    ties_exact: bool
    explanation: tuple[Explanation, ...] = ()
    score_gaps: tuple[ScoreGap, ...] = ()
    #: Of the places where workloads are now, by workload and cluster.
    unknown_places: tuple[UnknownPlace, ...] = ()
    #: All clusters that were to be had, used or not.
    clusters: tuple[str, ...] = ()
    seconds: float = field(default=0.0, compare=False)
