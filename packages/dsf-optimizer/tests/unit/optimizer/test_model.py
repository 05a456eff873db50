"""Input that the model refuses, and its errors."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest

from dsf.errors import ManifestError
from dsf.optimizer.model import (
    Cluster,
    Configuration,
    CurrentAssignment,
    PlanInput,
    Preference,
    ScoreTable,
    SearchLimits,
    Workload,
)

WORKLOAD = Workload("a", "a", {})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Workload("a", "a", {"gpu": -1}), "workload a: -1 of gpu; allowed is a whole number from 0"),
        (lambda: Workload("a", "a", {}, 0), "workload a: 0 replicas; allowed are 1 to 10000"),
        (lambda: Workload("a", "a", {}, 1, 0), "workload a: at most 0 per cluster; allowed is 1 or more"),
        (
            lambda: Workload("a", "a", {}, current=(CurrentAssignment("c", "x"), CurrentAssignment("c", "y"))),
            "current cluster of workload a named more than once: c",
        ),
        (lambda: Configuration("p", "all", {"gpu": 10**10}), "configuration p: 10000000000 of gpu"),
        (
            lambda: Cluster("c", scores=(ScoreTable("s", {}), ScoreTable("s", {}))),
            "score of cluster c named more than once: s; each is allowed once",
        ),
        (lambda: Preference("s", math.nan), "weight nan of score s is not allowed; allowed are numbers from -1000"),
        (lambda: Preference("s", 0.00001), "weight 1e-05 of score s is zero to 4 decimals; leave the score out"),
        (
            lambda: Preference("s", 1, "${node};${app}"),
            (
                "dimension format '${node};${app}' of score s has ${node}, which an app on a cluster does not have; "
                "allowed are ${app}, ${cluster}, ${device}, ${scoreName}"
            ),
        ),
        (lambda: Preference("s", 1, "${app};${cluster"), "score s has ${cluster, which an app on a cluster does not"),
        (
            lambda: Preference("s--cluster", 1, score_name="s-${cluster}"),
            "score 's-${cluster}' has a placeholder; a score has the same name on every cluster",
        ),
        (lambda: PlanInput((WORKLOAD, WORKLOAD), (), (Preference("s"),)), "workload named more than once: a"),
        (lambda: PlanInput((), (Cluster("c"), Cluster("c")), (Preference("s"),)), "cluster named more than once: c"),
        (lambda: PlanInput((), (), (Preference("s"), Preference("s", 2))), "preferred score named more than once: s"),
        (lambda: PlanInput((), (), ()), "no score is preferred"),
        (lambda: PlanInput((), (), (Preference("s"),), None, -1), "keepCurrent -1; allowed is 0 to 1000"),
        (lambda: SearchLimits(time_limit=0), "time limit 0; allowed is a number of seconds above 0"),
        (lambda: SearchLimits(mip_gap=2), "gap 2; allowed is 0 to 1"),
    ],
)
def test_values_out_of_range(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ManifestError, match=re.escape(message)):
        make()
