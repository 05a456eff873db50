"""Instances of any size: clusters differ in how good they are, workloads in size; capacity is scarce as `load` says."""

from __future__ import annotations

import random

from dsf.optimizer.model import Cluster, Configuration, Preference, Problem, ScoreTable, Workload


def instance(workloads: int, clusters: int, configurations: int, *, seed: int = 0, load: float = 0.7) -> Problem:
    """`load` is the sum of all requests as a share of what the average configurations supply."""
    rng = random.Random(seed)
    sizes = [rng.choice([1, 1, 2, 2, 3, 4]) for _ in range(workloads)]
    devices = [f"device{number}" for number in range(configurations)]
    apps = [f"app{number:04}" for number in range(workloads)]
    names = [f"{app};{device}" for app in apps for device in devices]
    mean = sum(sizes) / clusters / load

    def cluster(number: int) -> Cluster:
        supplies = [{"gpu": max(1, round(mean * rng.uniform(0.6, 1.4)))} for _ in devices]
        base = rng.randint(0, 40)
        return Cluster(
            f"cluster{number:04}",
            tuple(
                Configuration(f"policy-{device}", device, supply)
                for device, supply in zip(devices, supplies, strict=True)
            ),
            (ScoreTable("s", {name: base + rng.randint(0, 60) for name in names}),),
        )

    return Problem(
        tuple(Workload(f"workload{number:04}", apps[number], {"gpu": size}) for number, size in enumerate(sizes)),
        tuple(cluster(number) for number in range(clusters)),
        (Preference("s"),),
    )
