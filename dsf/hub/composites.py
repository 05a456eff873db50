"""Checks the inputs of scorers that combine scores: each must be a scorer of the same namespace, without a circle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dsf.api.types import NAME_CONFLICT, ResolveReason
from dsf.hub.scorerplan import Obstacle, ScorerPlan


def input_obstacles(plans: Mapping[str, ScorerPlan]) -> dict[str, Obstacle]:
    """Return, by key (`namespace/name`), why scorers cannot combine their inputs."""
    inputs = {
        key: [f"{plan.namespace}/{score.scorer}" for score in plan.scorer.spec.source.scores]
        for key, plan in plans.items()
        if plan.scorer.spec.source.scores
    }
    problems = {key: _circle(key, inputs) or _missing(plans[key], plans) for key in inputs}
    return {key: Obstacle(str(ResolveReason.InputInvalid), text) for key, text in problems.items() if text}


def _circle(start: str, inputs: Mapping[str, list[str]]) -> str:
    """Describe a circle through this scorer; empty if there is none."""
    paths = [[start]]
    reached: set[str] = set()
    while paths:
        path = paths.pop()
        for key in inputs.get(path[-1], ()):
            if key == start:
                names = " -> ".join(key.partition("/")[2] for key in (*path, start))
                return f"spec.source.scores: a circle: {names}"
            if key not in reached:
                reached.add(key)
                paths.append([*path, key])
    return ""


def _missing(plan: ScorerPlan, plans: Mapping[str, ScorerPlan]) -> str:
    """Name the inputs without a default that are no scorers of the namespace; empty if there are none."""
    return "; ".join(_problems(plan, plans))


def _problems(plan: ScorerPlan, plans: Mapping[str, ScorerPlan]) -> Iterator[str]:
    for score in plan.scorer.spec.source.scores or ():
        scorer = plans.get(f"{plan.namespace}/{score.scorer}")
        if score.default is not None or (
            scorer is not None and (scorer.obstacle is None or scorer.obstacle.reason != NAME_CONFLICT)
        ):
            continue
        problem = f"there is no DynamicScorer {score.scorer!r} in namespace {plan.namespace!r}"
        if scorer is not None:
            problem = f"DynamicScorer {score.scorer!r} does not run: another one has its name"
        elif elsewhere := sorted(other.namespace for other in plans.values() if other.name == score.scorer):
            problem += f"; the one in namespace {elsewhere[0]!r} does not count"
        yield f"spec.source.scores[as={score.name}]: {problem}"
