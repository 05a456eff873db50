"""Optimisation problems of any size. Clusters and workloads differ, and `load` says how scarce the capacity is."""

from __future__ import annotations

import random

from dsf.optimizer.model import Cluster, Configuration, PlanInput, Preference, ScoreTable, Workload


def make_sized_problem(size: str) -> PlanInput:
    """Return the problem of a size such as `100x50x3`, or `mixed-100x50x3` with several kinds, replicas and weights."""
    mixed, _, numbers = size.rpartition("-")
    workloads, clusters, configurations = (int(number) for number in numbers.split("x"))
    if mixed:
        weights = {"s": 1.0, "t": 0.5, "u": -0.3}
        return make_problem(workloads, clusters, configurations, kinds=3, replicas=3, weights=weights)
    return make_problem(workloads, clusters, configurations)


def make_problem(
    workloads: int,
    clusters: int,
    configurations: int,
    *,
    seed: int = 0,
    load: float = 0.7,
    kinds: int = 1,
    replicas: int = 1,
    weights: dict[str, float] | None = None,
) -> PlanInput:
    """Return a problem. `load` is the sum of all requests as a share of the supplies of average configurations.

    Half of the workloads have one replica, the others up to `replicas`. A workload requests one or more of the
    `kinds`.
    """
    rng = random.Random(seed)
    preferences = ["gpu", *(f"kind{number}" for number in range(1, kinds))]
    requests = [
        {
            kind: rng.choice([1, 1, 2, 2, 3, 4])
            for kind in (rng.sample(preferences, rng.randint(1, kinds)) if kinds > 1 else preferences)
        }
        for _ in range(workloads)
    ]
    replica_counts = [rng.choice([1, rng.randint(1, replicas)]) if replicas > 1 else 1 for _ in range(workloads)]
    devices = [f"device{number}" for number in range(configurations)]
    apps = [f"app{number:04}" for number in range(workloads)]
    names = [f"{app};{device}" for app in apps for device in devices]
    mean = {
        kind: sum(request.get(kind, 0) * count for request, count in zip(requests, replica_counts, strict=True))
        / clusters
        / load
        for kind in preferences
    }

    def cluster(number: int) -> Cluster:
        supplies = [{kind: max(1, round(mean[kind] * rng.uniform(0.6, 1.4))) for kind in preferences} for _ in devices]
        tables = []
        for score in weights or {"s": 1.0}:
            base = rng.randint(0, 40)
            tables.append(ScoreTable(score, {name: base + rng.randint(0, 60) for name in names}))
        return Cluster(
            f"cluster{number:04}",
            tuple(
                Configuration(f"policy-{device}", device, supply)
                for device, supply in zip(devices, supplies, strict=True)
            ),
            tuple(tables),
        )

    return PlanInput(
        tuple(
            Workload(f"workload{number:04}", apps[number], request, count, per_cluster=1 if replicas > 1 else None)
            for number, (request, count) in enumerate(zip(requests, replica_counts, strict=True))
        ),
        tuple(cluster(number) for number in range(clusters)),
        tuple(Preference(score, weight) for score, weight in (weights or {"s": 1.0}).items()),
    )
