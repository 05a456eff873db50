"""The best plan of a small problem by exhaustive search, and random problems. Independent of `solve`."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import TypeVar

from dsf.optimizer.model import (
    Cluster,
    Configuration,
    CurrentAssignment,
    PlanInput,
    Preference,
    ScoreTable,
    Workload,
)
from dsf.optimizer.plan import Plan

NOW = datetime(2030, 1, 1, tzinfo=UTC)
T = TypeVar("T")
#: Workload, cluster and configuration.
Option = tuple[str, str, str]
Counts = dict[Option, int]
Key = tuple[int, int, int, tuple[int, ...]]
#: Weights have four decimals: sums are counted in whole ten-thousandths, and so exactly.
UNIT = 10_000


def score(problem: PlanInput, workload: Workload, cluster: Cluster, configuration: Configuration) -> int | None:
    """Return the weighted sum of one replica in ten-thousandths, or None if the option is forbidden."""
    total = 0
    for preference in problem.preferences:
        table = next((table for table in cluster.scores if table.score == preference.score), None)
        if table is None or (problem.now and table.valid_until and table.valid_until <= problem.now):
            return None
        item = preference.dimension_format.replace("${app}", workload.app).replace("${device}", configuration.device)
        item = item.replace("${cluster}", cluster.name)
        if item not in table.items:
            return None
        total += _exact(preference.weight) * table.items[item]
    return total


def _exact(value: float) -> int:
    exact = Fraction(str(value)) * UNIT
    assert exact.denominator == 1
    return int(exact)


def best(problem: PlanInput) -> tuple[Key, Counts]:
    """Return the best plan in the documented order: sum in ten-thousandths, placed and kept replicas, names."""
    workloads = sorted(problem.workloads, key=lambda workload: workload.name)
    clusters = sorted(problem.clusters, key=lambda cluster: cluster.name)
    configurations = [
        (cluster, conf) for cluster in clusters for conf in sorted(cluster.configurations, key=lambda c: c.name)
    ]
    values = {
        (workload.name, cluster.name, configuration.name): score(problem, workload, cluster, configuration)
        for workload in workloads
        for cluster, configuration in configurations
    }
    staying = {
        (workload.name, cluster.name, configuration.name): assignment.replicas
        for workload in workloads
        for cluster, configuration in configurations
        for assignment in workload.current
        if assignment.cluster == cluster.name and assignment.device in (None, configuration.device)
    }
    keep = _exact(problem.keep_current)

    def key(counts: Counts) -> Key:
        stays = sum(min(staying.get(option, 0), count) for option, count in counts.items())
        total = sum((values[option] or 0) * count for option, count in counts.items()) + keep * stays
        return total, sum(counts.values()), stays, tuple(counts.get(option, 0) for option in values)

    winner: tuple[Key, Counts] | None = None
    for choice in itertools.product(*[(None, *cluster.configurations) for cluster in clusters]):
        pairs = [
            (cluster, configuration)
            for cluster, configuration in zip(clusters, choice, strict=True)
            if configuration is not None
        ]
        for counts in _fill(values, workloads, pairs, {}, [dict(configuration.supply) for _, configuration in pairs]):
            candidate = key(counts)
            if winner is None or candidate > winner[0]:
                winner = candidate, counts
    assert winner is not None
    return winner


def _fill(
    values: Mapping[Option, int | None],
    workloads: list[Workload],
    pairs: list[tuple[Cluster, Configuration]],
    counts: Counts,
    free: list[dict[str, int]],
) -> Iterator[Counts]:
    if not workloads:
        yield dict(counts)
        return
    workload, *further_workloads = workloads
    max_replicas = min(workload.replicas, workload.per_cluster or workload.replicas)
    options = [(workload.name, cluster.name, configuration.name) for cluster, configuration in pairs]
    ranges = [range(max_replicas + 1) if values[option] is not None else range(1) for option in options]
    for numbers in itertools.product(*ranges):
        if sum(numbers) > workload.replicas:
            continue
        remaining = [
            {
                kind: amounts.get(kind, 0) - number * workload.request.get(kind, 0)
                for kind in {*amounts, *workload.request}
            }
            for number, amounts in zip(numbers, free, strict=True)
        ]
        if any(amount < 0 for amounts in remaining for amount in amounts.values()):
            continue
        placed_counts = {option: number for option, number in zip(options, numbers, strict=True) if number}
        yield from _fill(values, further_workloads, pairs, {**counts, **placed_counts}, remaining)


def counts_of(plan: Plan) -> Counts:
    """Return the counts of a plan as the brute force represents them."""
    return {
        (assignment.workload, assignment.cluster, assignment.policy): assignment.replicas
        for assignment in plan.assignments
    }


def random_problem(seed: int) -> PlanInput:
    """Return a small problem with every feature: kinds, replicas, bad scores, ties, weights, current places."""
    rng = random.Random(seed)
    kinds = rng.choice([["gpu"], ["gpu"], ["gpu", "cpu"]])
    devices = ["all", "2g", "3g"][: rng.randint(1, 3)]
    few_values = rng.random() < 0.5
    apps = [f"app{number}" for number in range(rng.randint(1, 4))]
    names = [f"cluster{number}" for number in range(rng.randint(1, 3))]
    preferences = [Preference("s1", rng.choice([1, 1, 2, 0.5, -1, 0.35]))]
    if rng.random() < 0.3:
        preferences.append(Preference("s2", rng.choice([1, 0.1, 3, 0.6667]), "${device}/${app}"))
    unit = rng.choice([1, 1, 1, 1_000_003])

    def table(preference: Preference) -> ScoreTable:
        fmt = preference.dimension_format
        items = {}
        for app, device in itertools.product(apps, devices):
            if rng.random() < 0.9:
                value = rng.choice([10, 10, 20, 0, -5]) if few_values else rng.randint(-30, 100)
                items[fmt.replace("${app}", app).replace("${device}", device)] = value
        valid = rng.choice([None, NOW + timedelta(seconds=1), NOW + timedelta(hours=1)])
        return ScoreTable(preference.score, items, NOW if rng.random() < 0.07 else valid)

    clusters = [
        Cluster(
            name,
            tuple(
                Configuration(
                    f"policy{number}",
                    rng.choice(devices),
                    {kind: unit * rng.randint(0, 5) for kind in kinds if rng.random() < 0.9},
                )
                for number in range(rng.randint(0, 3))
            ),
            tuple(table(preference) for preference in preferences if rng.random() < 0.96),
        )
        for name in names
    ]
    workloads = []
    for number in range(rng.randint(1, 4)):
        replicas = rng.choice([1, 1, 1, 2, 3])
        current = [
            CurrentAssignment(name, rng.choice([None, *devices]), rng.randint(1, replicas))
            for name in names
            if rng.random() < 0.4
        ]
        workloads.append(
            Workload(
                f"w{number}",
                rng.choice(apps),
                {kind: unit * rng.randint(0, 3) for kind in kinds if rng.random() < 0.9},
                replicas,
                rng.choice([None, None, 1, 2]),
                tuple(current),
            )
        )
    keep = rng.choice([0, 0, 0, 3, 5, 0.25])
    return shuffled(PlanInput(tuple(workloads), tuple(clusters), tuple(preferences), NOW, keep), rng)


def shuffled(problem: PlanInput, rng: random.Random) -> PlanInput:
    """Return the same problem in another order."""

    def mixed(parts: tuple[T, ...]) -> tuple[T, ...]:
        return tuple(rng.sample(parts, len(parts)))

    clusters = [
        Cluster(
            cluster.name,
            mixed(cluster.configurations),
            mixed(
                tuple(
                    ScoreTable(table.score, dict(mixed(tuple(table.items.items()))), table.valid_until)
                    for table in cluster.scores
                )
            ),
        )
        for cluster in problem.clusters
    ]
    workloads = [
        Workload(
            workload.name,
            workload.app,
            dict(mixed(tuple(workload.request.items()))),
            workload.replicas,
            workload.per_cluster,
            mixed(workload.current),
        )
        for workload in problem.workloads
    ]
    return PlanInput(
        mixed(tuple(workloads)), mixed(tuple(clusters)), mixed(problem.preferences), problem.now, problem.keep_current
    )
