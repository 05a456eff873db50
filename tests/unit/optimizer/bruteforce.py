"""The best plan of a small problem by trying everything, and random problems. Knows nothing of how `solve` works."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
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
Counts = dict[tuple[str, str, str], int]
Key = tuple[Fraction, int, int, tuple[int, ...]]


def score(problem: PlanInput, workload: Workload, cluster: Cluster, configuration: Configuration) -> Fraction | None:
    """The weighted sum of one replica; None when the option is forbidden."""
    total = Fraction(0)
    for preference in problem.preferences:
        table = next((table for table in cluster.scores if table.score == preference.score), None)
        if table is None or (problem.now and table.valid_until and table.valid_until <= problem.now):
            return None
        item = preference.dimension_format.replace("${app}", workload.app).replace("${device}", configuration.device)
        item = item.replace("${cluster}", cluster.name)
        if item not in table.items:
            return None
        total += Fraction(str(preference.weight)) * table.items[item]
    return total


def best(problem: PlanInput) -> tuple[Key, Counts]:
    """The best plan in the documented order: sum, replicas placed, replicas that stay, names."""
    workloads = sorted(problem.workloads, key=lambda one: one.name)
    clusters = sorted(problem.clusters, key=lambda one: one.name)
    options = [(one.name, conf.name) for one in clusters for conf in sorted(one.configurations, key=lambda c: c.name)]
    winner: tuple[Key, Counts] | None = None
    for chosen in itertools.product(*[(None, *one.configurations) for one in clusters]):
        pairs = [(cluster, one) for cluster, one in zip(clusters, chosen, strict=True) if one is not None]
        for counts in _fill(problem, workloads, pairs, {}, [dict(one.supply) for _, one in pairs]):
            key = _key(problem, workloads, options, counts)
            if winner is None or key > winner[0]:
                winner = key, counts
    assert winner is not None
    return winner


def _fill(
    problem: PlanInput,
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
    scores = [score(problem, workload, *pair) for pair in pairs]
    ranges = [range(most + 1) if one is not None else range(1) for one in scores]
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
        more = {
            (workload.name, pair[0].name, pair[1].name): number
            for number, pair in zip(numbers, pairs, strict=True)
            if number
        }
        yield from _fill(problem, others, pairs, {**counts, **more}, left)


def _key(problem: PlanInput, workloads: list[Workload], options: list[tuple[str, str]], counts: Counts) -> Key:
    by_name = {one.name: one for one in workloads}
    clusters = {one.name: one for one in problem.clusters}
    total, stays = Fraction(0), 0
    for (name, cluster, configuration), count in counts.items():
        conf = next(one for one in clusters[cluster].configurations if one.name == configuration)
        value = score(problem, by_name[name], clusters[cluster], conf)
        assert value is not None
        total += value * count
        for place in by_name[name].current:
            if place.cluster == cluster and place.device in (None, conf.device):
                stays += min(place.replicas, count)
    total += Fraction(str(problem.keep_current)) * stays
    vector = tuple(counts.get((workload.name, *option), 0) for workload in workloads for option in options)
    return total, sum(counts.values()), stays, vector


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
