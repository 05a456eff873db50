"""The optimisation problem as frozen data, without input or output.

A *workload* requests amounts of resources, once per *replica*. A *cluster* can get one of its *configurations* (a
Policy), which supplies amounts of resources of one *device* type. An *option* is one configuration of one cluster for
one workload; its score is the weighted sum of the preferred scores. A *plan* chooses at most one configuration per
cluster and at most one option per replica so that the sum of scores is greatest.

Amounts are whole numbers in the unit of the resource kind. A configuration has amount 0 of a kind that it does not
supply.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Final

from dsf.errors import ManifestError

#: The item of an AddOnPlacementScore that scores an app on a device.
DEFAULT_DIMENSION_FORMAT: Final = "${app};${device}"
#: Decimals of weights. The limit makes sums of scores, and so ties, exact.
WEIGHT_DECIMALS: Final = 4
#: Maximum weight of a score, and of staying.
MAX_WEIGHT: Final = 1000
#: Maximum amount of a resource, and maximum replicas.
MAX_AMOUNT: Final = 10**9
MAX_REPLICAS: Final = 10_000

_PLACEHOLDER_PATTERN: Final = re.compile(r"\$\{[^}]*\}?")
_PLACEHOLDERS: Final = frozenset({"${app}", "${cluster}", "${device}", "${scoreName}"})


@dataclass(frozen=True, slots=True)
class CurrentAssignment:
    """A workload's replicas on a cluster, now. A replica stays if it is planned for the same cluster and device."""

    cluster: str
    #: The device, or None if it is unknown; then any device of the cluster counts as staying.
    device: str | None = None
    replicas: int = 1


@dataclass(frozen=True, slots=True)
class Workload:
    """A workload to place.

    Replicas are placed one by one: they may spread over clusters, and some may stay unplaced. Raises ManifestError for
    a value that is out of range.
    """

    name: str
    #: The `app` of score items.
    app: str
    #: Resource kind and amount that one replica needs.
    request: Mapping[str, int]
    replicas: int = 1
    #: Maximum replicas on one cluster, or None for as many as fit. The workload of a Placement has 1, because a
    #: Placement selects a cluster once.
    per_cluster: int | None = None
    current: tuple[CurrentAssignment, ...] = ()

    def __post_init__(self) -> None:
        _check_amounts(f"workload {self.name}", self.request)
        if not 1 <= self.replicas <= MAX_REPLICAS:
            raise ManifestError(f"workload {self.name}: {self.replicas} replicas; allowed are 1 to {MAX_REPLICAS}")
        if self.per_cluster is not None and self.per_cluster < 1:
            raise ManifestError(f"workload {self.name}: at most {self.per_cluster} per cluster; allowed is 1 or more")
        _check_unique(f"current cluster of workload {self.name}", (assignment.cluster for assignment in self.current))


@dataclass(frozen=True, slots=True)
class Configuration:
    """A configuration of a cluster and its supplies. Raises ManifestError for invalid amounts."""

    #: Name of the Policy.
    name: str
    device: str
    #: Resource kind and amount.
    supply: Mapping[str, int]

    def __post_init__(self) -> None:
        _check_amounts(f"configuration {self.name}", self.supply)


@dataclass(frozen=True, slots=True)
class ScoreTable:
    """An AddOnPlacementScore of a cluster."""

    #: Name of the object.
    score: str
    items: Mapping[str, int]
    #: Expiry time, or None if the score does not expire.
    valid_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster with its possible configurations and scores."""

    name: str
    configurations: tuple[Configuration, ...] = ()
    scores: tuple[ScoreTable, ...] = ()

    def __post_init__(self) -> None:
        _check_unique(
            f"configuration of cluster {self.name}", (configuration.name for configuration in self.configurations)
        )
        _check_unique(f"score of cluster {self.name}", (table.score for table in self.scores))


@dataclass(frozen=True, slots=True)
class Preference:
    """A score with its weight. Raises ManifestError for an invalid weight or format."""

    #: Name of the AddOnPlacementScore.
    score: str
    #: A negative weight prefers lower scores.
    weight: float = 1.0
    dimension_format: str = DEFAULT_DIMENSION_FORMAT
    #: Value of `${scoreName}` in the format: the scorer's name for the score, from which the object's name is derived.
    #: An empty string stands for the object's name.
    score_name: str = ""

    @property
    def needs_score_name(self) -> bool:
        """True if items cannot be found because the score name is not known yet."""
        return not self.score_name and "${scoreName}" in self.dimension_format

    def __post_init__(self) -> None:
        label = f"weight {self.weight} of score {self.score}"
        if to_weight_units(self.weight, label) == 0:
            raise ManifestError(f"{label} is zero to {WEIGHT_DECIMALS} decimals; leave the score out instead")
        name = self.score_name or self.score
        if "${" in name:
            raise ManifestError(
                f"score {name!r} has a placeholder; a score has the same name on every cluster, and placeholders are "
                "for its dimension format"
            )
        unknown_placeholders = sorted({*_PLACEHOLDER_PATTERN.findall(self.dimension_format)} - _PLACEHOLDERS)
        if unknown_placeholders:
            raise ManifestError(
                f"dimension format {self.dimension_format!r} of score {self.score} has "
                f"{', '.join(unknown_placeholders)}, which an app on a cluster does not have; allowed are "
                f"{', '.join(sorted(_PLACEHOLDERS))}. Use a scorer whose items are named by these alone"
            )


@dataclass(frozen=True, slots=True)
class PlanInput:
    """All inputs of a plan; the order of its parts has no effect. Raises ManifestError for duplicate names."""

    workloads: tuple[Workload, ...]
    clusters: tuple[Cluster, ...]
    preferences: tuple[Preference, ...]
    #: Scores that expire at or before this time are not used. None uses all scores.
    now: datetime | None = None
    #: Bonus in the sum of scores for every replica that stays where it is. With 0, staying only breaks ties.
    keep_current: float = 0.0

    def __post_init__(self) -> None:
        _check_unique("workload", (workload.name for workload in self.workloads))
        _check_unique("cluster", (cluster.name for cluster in self.clusters))
        _check_unique("preferred score", (preference.score for preference in self.preferences))
        if not self.preferences:
            raise ManifestError("no score is preferred; name at least one AddOnPlacementScore")
        if to_weight_units(self.keep_current, f"keepCurrent {self.keep_current}") < 0:
            raise ManifestError(f"keepCurrent {self.keep_current}; allowed is 0 to {MAX_WEIGHT}")


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """Limits of the search: time, and accuracy. Raises ManifestError for a value out of range."""

    #: Wall clock seconds for the whole search.
    time_limit: float = 30.0
    #: The search stops when the plan is proven to be within this share of the best one. 0 searches for the best one.
    mip_gap: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.time_limit) and self.time_limit > 0):
            raise ManifestError(f"time limit {self.time_limit}; allowed is a number of seconds above 0")
        if not 0 <= self.mip_gap <= 1:
            raise ManifestError(f"gap {self.mip_gap}; allowed is 0 to 1")


def raise_all(errors: Sequence[str]) -> None:
    """Raise a ManifestError with all error texts, if there are any."""
    if errors:
        raise ManifestError("; ".join(errors))


def to_weight_units(weight: float, label: str) -> int:
    """Return `weight` in whole units of the last of WEIGHT_DECIMALS decimals.

    Raises ManifestError, which begins with `label`, for an invalid weight.
    """
    if not (math.isfinite(weight) and abs(weight) <= MAX_WEIGHT):
        raise ManifestError(f"{label} is not allowed; allowed are numbers from -{MAX_WEIGHT} to {MAX_WEIGHT}")
    return int(round(Decimal(repr(float(weight))), WEIGHT_DECIMALS).scaleb(WEIGHT_DECIMALS))


def _check_amounts(label: str, amounts: Mapping[str, int]) -> None:
    for kind, amount in amounts.items():
        if not 0 <= amount <= MAX_AMOUNT:
            raise ManifestError(f"{label}: {amount} of {kind}; allowed is a whole number from 0 to {MAX_AMOUNT}")


def _check_unique(label: str, names: Iterable[str]) -> None:
    duplicate_names = sorted(name for name, count in Counter(names).items() if count > 1)
    if duplicate_names:
        raise ManifestError(f"{label} named more than once: {', '.join(duplicate_names)}; each is allowed once")
