"""Scores of every (app, cluster, configuration) as exact whole numbers, and what scores are missing.

A value is counted in units: the greatest number of which every weight and `keep_current` is a multiple. So sums compare
exactly and the solver sees small whole numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Final

import numpy as np
import numpy.typing as npt

from dsf.api.dimension import DimensionFormat
from dsf.errors import ManifestError
from dsf.optimizer.model import WEIGHT_DECIMALS, Cluster, Configuration, Preference, Problem, weight_units
from dsf.optimizer.plan import Reason, ScoreGap

IntArray = npt.NDArray[np.int64]
CodeArray = npt.NDArray[np.uint8]

#: Codes of the state of a score.
KNOWN: Final = 0
MISSING: Final = 1
EXPIRED: Final = 2

#: OCM takes scores from -100 to 100; what is far beyond that would cost exactness.
MAX_SCORE: Final = 1_000_000
#: Most names of missing items that are listed per cluster and score.
_LISTED: Final = 10
#: The greatest value of an option in units: the solver works in floating point.
_MAX_VALUE: Final = 10**10


@dataclass(frozen=True)
class Values:
    """Values in units: rows are `apps`, columns the configurations of all clusters in order."""

    apps: tuple[str, ...]
    value: IntArray
    #: KNOWN, MISSING or EXPIRED; a value that is not known is 0.
    state: CodeArray
    #: Units of a score of 1.
    per_score: float
    #: Units that a replica is worth which stays.
    keep: int
    gaps: tuple[ScoreGap, ...]


def score_values(problem: Problem, clusters: Sequence[Cluster], columns: Sequence[tuple[int, Configuration]]) -> Values:
    """The values of all apps on `columns`: index of the cluster in `clusters`, and one of its configurations.

    Raises ManifestError for a score far outside of what OCM allows.
    """
    apps = tuple(sorted({workload.app for workload in problem.workloads}))
    weights = [weight_units(one.weight, f"weight of score {one.score}") for one in problem.preferences]
    keep = weight_units(problem.keep_current, "keepCurrent")
    unit = math.gcd(keep, *weights)
    value = np.zeros((len(apps), len(columns)), dtype=np.float64)
    state = np.zeros((len(apps), len(columns)), dtype=np.uint8)
    gaps: list[ScoreGap] = []
    for weight, preference in sorted(zip(weights, problem.preferences, strict=True), key=lambda pair: pair[1].score):
        one, one_state, one_gaps = _scores(problem, preference, apps, clusters, columns)
        value += one * (weight // unit)
        # Missing in one score and expired in another: the one that is missing has to be mended first.
        np.copyto(state, one_state, where=(one_state == MISSING) | (state == KNOWN))
        gaps += one_gaps
    value[state != KNOWN] = 0
    if value.size and np.abs(value).max() > _MAX_VALUE:
        raise ManifestError("the weights differ too much for exact sums; use weights of fewer digits")
    return Values(
        apps=apps,
        value=value.astype(np.int64),
        state=state,
        per_score=10**WEIGHT_DECIMALS / unit,
        keep=keep // unit,
        gaps=tuple(sorted(gaps, key=lambda gap: (gap.cluster, gap.score))),
    )


def _scores(
    problem: Problem,
    preference: Preference,
    apps: tuple[str, ...],
    clusters: Sequence[Cluster],
    columns: Sequence[tuple[int, Configuration]],
) -> tuple[npt.NDArray[np.float64], CodeArray, list[ScoreGap]]:
    """Scores of one preference, their states, and what is missing."""
    found = np.zeros((len(apps), len(columns)), dtype=np.float64)
    state = np.zeros((len(apps), len(columns)), dtype=np.uint8)
    names = _Names(preference, apps)
    gaps = []
    missing: dict[int, dict[str, None]] = {}
    for column, (index, configuration) in enumerate(columns):
        cluster = clusters[index]
        table = next((table for table in cluster.scores if table.score == preference.score), None)
        if table is None:
            state[:, column] = MISSING
            missing.setdefault(index, {})
            continue
        if problem.now is not None and table.valid_until is not None and table.valid_until <= problem.now:
            state[:, column] = EXPIRED
            missing.setdefault(index, {})
            continue
        wanted = names.of(cluster.name, configuration.device)
        scores = np.fromiter(map(table.items.get, wanted, repeat(math.nan)), np.float64, len(wanted))
        absent = np.isnan(scores)
        if absent.any():
            state[absent, column] = MISSING
            missing.setdefault(index, {}).update(dict.fromkeys(wanted[row] for row in np.flatnonzero(absent)))
            scores[absent] = 0
        if scores.size and np.abs(scores).max() > MAX_SCORE:
            raise ManifestError(
                f"score {preference.score} of cluster {cluster.name}: {scores[np.abs(scores).argmax()]:g} is no score; "
                f"allowed are whole numbers from -100 to 100"
            )
        found[:, column] = scores
    for index, items in missing.items():
        gaps.append(_gap(clusters[index], preference, tuple(sorted(items))))
    return found, state, gaps


class _Names:
    """Item names of all apps for a device, made once where the format does not name the cluster."""

    def __init__(self, preference: Preference, apps: tuple[str, ...]) -> None:
        self._preference = preference
        self._apps = apps
        self._per_cluster = "${cluster}" in preference.dimension_format
        self._made: dict[tuple[str, str], list[str]] = {}

    def of(self, cluster: str, device: str) -> list[str]:
        key = (cluster if self._per_cluster else "", device)
        if key not in self._made:
            preference = self._preference
            dimension = DimensionFormat(preference.dimension_format, cluster, preference.score_name or preference.score)
            self._made[key] = [dimension.render({"app": app, "device": device}) for app in self._apps]
        return self._made[key]


def _gap(cluster: Cluster, preference: Preference, items: tuple[str, ...]) -> ScoreGap:
    name = preference.score
    if items:
        listed = ", ".join(items[:_LISTED]) + (f" and {len(items) - _LISTED} more" if len(items) > _LISTED else "")
        message = f"AddOnPlacementScore {name} of cluster {cluster.name} has no item {listed}"
        return ScoreGap(cluster.name, name, Reason.NO_SCORE, message, items[:_LISTED], len(items))
    table = next((table for table in cluster.scores if table.score == name), None)
    if table is None or table.valid_until is None:
        message = f"there is no AddOnPlacementScore {name} in namespace {cluster.name}"
        return ScoreGap(cluster.name, name, Reason.NO_SCORE, message)
    message = f"AddOnPlacementScore {name} of cluster {cluster.name} expired at {table.valid_until.isoformat()}"
    return ScoreGap(cluster.name, name, Reason.EXPIRED, message)
