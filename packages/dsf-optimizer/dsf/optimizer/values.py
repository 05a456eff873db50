"""Computes the value of every (app, cluster, configuration) as an exact whole number, and lists missing scores.

Values are in units. A unit is the greatest number of which every weight and `keep_current` is a multiple. Therefore
sums compare exactly, and the solver gets small whole numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Final

import numpy as np
import numpy.typing as npt

from dsf.api.score import DimensionFormat
from dsf.errors import ManifestError
from dsf.optimizer.model import (
    WEIGHT_DECIMALS,
    Cluster,
    Configuration,
    PlanInput,
    Preference,
    ScoreTable,
    to_weight_units,
)
from dsf.optimizer.views import Reason, ScoreGapView
from dsf.text import list_names

IntArray = npt.NDArray[np.int64]
CodeArray = npt.NDArray[np.uint8]

#: Codes of the state of a score.
KNOWN: Final = 0
MISSING: Final = 1
EXPIRED: Final = 2


@dataclass(frozen=True)
class Values:
    """The values, with a row for each of `apps` and a column for each configuration of all clusters."""

    apps: tuple[str, ...]
    #: Apps x columns: value in units, 0 if it is not known.
    value: IntArray
    #: Apps x columns: KNOWN, MISSING or EXPIRED.
    state: CodeArray
    #: Units of a score of 1.
    per_score: float
    #: Bonus of a replica that stays, in units.
    stay_bonus: int
    gaps: list[ScoreGapView]


def compute_values(
    problem: PlanInput, clusters: Sequence[Cluster], columns: Sequence[tuple[int, Configuration]]
) -> Values:
    """Return the values of all apps on `columns`, which has (index in `clusters`, configuration).

    Raises ManifestError for a score far outside of the range that OCM allows, and for weights that differ too much.
    """
    apps = tuple(sorted({workload.app for workload in problem.workloads}))
    weights = [
        to_weight_units(preference.weight, f"weight of score {preference.score}") for preference in problem.preferences
    ]
    stay_bonus = to_weight_units(problem.keep_current, "keepCurrent")
    unit = math.gcd(stay_bonus, *weights)
    value = np.zeros((len(apps), len(columns)), dtype=np.float64)
    state = np.zeros((len(apps), len(columns)), dtype=np.uint8)
    gaps: list[ScoreGapView] = []
    for weight, preference in sorted(zip(weights, problem.preferences, strict=True), key=lambda pair: pair[1].score):
        scores, states, preference_gaps = _compute_scores(problem, preference, apps, clusters, columns)
        value += scores * (weight // unit)
        # A missing score takes precedence over an expired one, because it must be fixed first.
        np.copyto(state, states, where=(states == MISSING) | (state == KNOWN))
        gaps += preference_gaps
    value[state != KNOWN] = 0
    # Refuse larger values, because the solver computes with floating-point numbers.
    if value.size and np.abs(value).max() > 10**10:
        raise ManifestError("the weights differ too much for exact sums; use weights of fewer digits")
    return Values(
        apps=apps,
        value=value.astype(np.int64),
        state=state,
        per_score=10**WEIGHT_DECIMALS / unit,
        stay_bonus=stay_bonus // unit,
        gaps=sorted(gaps, key=lambda gap: (gap.cluster, gap.score)),
    )


def _compute_scores(
    problem: PlanInput,
    preference: Preference,
    apps: tuple[str, ...],
    clusters: Sequence[Cluster],
    columns: Sequence[tuple[int, Configuration]],
) -> tuple[npt.NDArray[np.float64], CodeArray, list[ScoreGapView]]:
    """Return the scores of one preference and their states (both apps x columns), and the gaps."""
    values = np.zeros((len(apps), len(columns)), dtype=np.float64)
    state = np.zeros((len(apps), len(columns)), dtype=np.uint8)
    tables = [
        next((table for table in cluster.scores if table.score == preference.score), None) for cluster in clusters
    ]
    missing_items: dict[int, set[str]] = {}
    # (cluster if the format contains it, device) -> item name of each app.
    names: dict[tuple[str, str], list[str]] = {}
    for column, (index, configuration) in enumerate(columns):
        cluster, table = clusters[index], tables[index]
        if table is None:
            state[:, column] = MISSING
            missing_items.setdefault(index, set())
            continue
        if problem.now is not None and table.valid_until is not None and table.valid_until <= problem.now:
            state[:, column] = EXPIRED
            missing_items.setdefault(index, set())
            continue
        key = (cluster.name if "${cluster}" in preference.dimension_format else "", configuration.device)
        if key not in names:
            score_name = preference.score_name or preference.score
            dimension = DimensionFormat(preference.dimension_format, cluster.name, score_name)
            names[key] = [dimension.render({"app": app, "device": configuration.device}) for app in apps]
        scores = np.fromiter(map(table.items.get, names[key], repeat(math.nan)), np.float64, len(apps))
        missing_indexes = np.flatnonzero(np.isnan(scores))
        if len(missing_indexes):
            state[missing_indexes, column] = MISSING
            missing_items.setdefault(index, set()).update(names[key][row] for row in missing_indexes)
            scores[missing_indexes] = 0
        # Refuse far larger scores than OCM, which accepts -100 to 100, because sums would not be exact.
        if scores.size and np.abs(scores).max() > 1_000_000:
            raise ManifestError(
                f"score {preference.score} of cluster {cluster.name}: {scores[np.abs(scores).argmax()]:g} is not a "
                f"valid score; allowed are whole numbers from -100 to 100"
            )
        values[:, column] = scores
    gaps = [
        _make_gap(clusters[index], tables[index], preference.score, sorted(items))
        for index, items in missing_items.items()
    ]
    return values, state, gaps


def _make_gap(cluster: Cluster, table: ScoreTable | None, name: str, items: list[str]) -> ScoreGapView:
    reason = Reason.NO_SCORE
    if items:
        message = f"AddOnPlacementScore {name} of cluster {cluster.name} has no item {list_names(items, 10)}"
    elif table is None or table.valid_until is None:
        message = f"there is no AddOnPlacementScore {name} in namespace {cluster.name}"
    else:
        reason = Reason.EXPIRED
        message = f"AddOnPlacementScore {name} of cluster {cluster.name} expired at {table.valid_until.isoformat()}"
    return ScoreGapView(cluster=cluster.name, score=name, reason=reason, message=message)
