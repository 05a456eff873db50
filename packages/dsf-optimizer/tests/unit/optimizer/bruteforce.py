"""The best plan of a small problem by trying everything, and random problems. Knows nothing of how `solve` works."""

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
    Current,
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
    """The weighted sum of one replica in ten-thousandths; None when the option is forbidden."""
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
    """The best plan in the documented order: sum in ten-thousandths, replicas placed, replicas that stay, names."""
    workloads = sorted(problem.workloads, key=lambda one: one.name)
    clusters = sorted(problem.clusters, key=lambda one: one.name)
    configurations = [(one, conf) for one in clusters for conf in sorted(one.configurations, key=lambda c: c.name)]
    values = {
        (workload.name, cluster.name, configuration.name): score(problem, workload, cluster, configuration)
        for workload in workloads
        for cluster, configuration in configurations
    }
    staying = {
        (workload.name, cluster.name, configuration.name): place.replicas
        for workload in workloads
        for cluster, configuration in configurations
        for place in workload.current
        if place.cluster == cluster.name and place.device in (None, configuration.device)
    }
    keep = _exact(problem.keep_current)

    def key(counts: Counts) -> Key:
        stays = sum(min(staying.get(option, 0), count) for option, count in counts.items())
        total = sum((values[option] or 0) * count for option, count in counts.items()) + keep * stays
        return total, sum(counts.values()), stays, tuple(counts.get(option, 0) for option in values)

    winner: tuple[Key, Counts] | None = None
    for chosen in itertools.product(*[(None, *one.configurations) for one in clusters]):
        pairs = [(cluster, one) for cluster, one in zip(clusters, chosen, strict=True) if one is not None]
        for counts in _fill(values, workloads, pairs, {}, [dict(one.supply) for _, one in pairs]):
            found = key(counts)
            if winner is None or found > winner[0]:
                winner = found, counts
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
    workload, *others = workloads
    most = min(workload.replicas, workload.per_cluster or workload.replicas)
    options = [(workload.name, cluster.name, configuration.name) for cluster, configuration in pairs]
    ranges = [range(most + 1) if values[option] is not None else range(1) for option in options]
    for numbers in itertools.product(*ranges):
        if sum(numbers) > workload.replicas:
            continue
        left = [
            {
                kind: amounts.get(kind, 0) - number * workload.request.get(kind, 0)
                for kind in {*amounts, *workload.request}
            }
            for number, amounts in zip(numbers, free, strict=True)
        ]
        if any(amount < 0 for amounts in left for amount in amounts.values()):
            continue
        more = {option: number for option, number in zip(options, numbers, strict=True) if number}
        yield from _fill(values, others, pairs, {**counts, **more}, left)


def counts_of(plan: Plan) -> Counts:
    """The plan as the brute force writes one."""
    return {(one.workload, one.cluster, one.policy): one.replicas for one in plan.assignments}


def random_problem(seed: int) -> PlanInput:
    """A small problem with everything there is: kinds, replicas, bad scores, ties, weights, current places."""
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
            tuple(table(one) for one in preferences if rng.random() < 0.96),
        )
        for name in names
    ]
    workloads = []
    for number in range(rng.randint(1, 4)):
        replicas = rng.choice([1, 1, 1, 2, 3])
        current = [
            Current(name, rng.choice([None, *devices]), rng.randint(1, replicas))
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
    """The same problem in another order."""

    def mixed(parts: tuple[T, ...]) -> tuple[T, ...]:
        return tuple(rng.sample(parts, len(parts)))

    clusters = [
        Cluster(
            one.name,
            mixed(one.configurations),
            mixed(
                tuple(
                    ScoreTable(table.score, dict(mixed(tuple(table.items.items()))), table.valid_until)
                    for table in one.scores
                )
            ),
        )
        for one in problem.clusters
    ]
    workloads = [
        Workload(
            one.name,
            one.app,
            dict(mixed(tuple(one.request.items()))),
            one.replicas,
            one.per_cluster,
            mixed(one.current),
        )
        for one in problem.workloads
    ]
    return PlanInput(
        mixed(tuple(workloads)), mixed(tuple(clusters)), mixed(problem.preferences), problem.now, problem.keep_current
    )
