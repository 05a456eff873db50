"""Checks the inputs of composite scorers: each must be a scorer in the same namespace, and there must be no circle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from dsf.api.types import NAME_CONFLICT, ResolveReason
from dsf.hub.scorerplan import Obstacle, ScorerPlan
from dsf.text import list_names

#: Maximum scorers of a circle that a message lists.
_MAX_LISTED: Final = 8


def find_input_obstacles(plans: Mapping[str, ScorerPlan]) -> dict[str, Obstacle]:
    """Return key (`namespace/name`) -> obstacle for the scorers that cannot combine their inputs."""
    inputs = {
        key: [f"{plan.namespace}/{score.scorer}" for score in plan.scorer.spec.source.scores]
        for key, plan in plans.items()
        if plan.scorer.spec.source.scores
    }
    if not inputs:
        return {}
    circles = _find_circles(inputs)
    # Scorer name -> the first namespace that has a scorer with this name.
    namespaces = {plan.name: plan.namespace for plan in sorted(plans.values(), key=_get_namespace, reverse=True)}
    problems = {key: circles.get(key, "") or _describe_missing_inputs(plans[key], plans, namespaces) for key in inputs}
    return {key: Obstacle(str(ResolveReason.InputInvalid), text) for key, text in problems.items() if text}


def _find_circles(inputs: Mapping[str, list[str]]) -> dict[str, str]:
    """Return key -> description of a circle, for each scorer that is part of one, in linear time."""
    circles: dict[str, str] = {}
    for component in _find_components(inputs):
        members = frozenset(component)
        if len(members) > _MAX_LISTED:
            names = list_names(sorted(key.partition("/")[2] for key in members), _MAX_LISTED)
            circles |= dict.fromkeys(members, f"spec.source.scores: a circle of {len(members)} scorers: {names}")
        elif len(members) > 1 or component[0] in inputs.get(component[0], ()):
            circles |= {key: _describe_circle(key, inputs, members) for key in members}
    return circles


def _find_components(inputs: Mapping[str, list[str]]) -> Iterator[list[str]]:
    """Yield the strongly connected components: sets of scorers that all read each other (Tarjan's algorithm)."""
    numbers: dict[str, int] = {}
    lowest_numbers: dict[str, int] = {}
    open_keys: list[str] = []
    open_key_set: set[str] = set()
    for root in inputs:
        if root in numbers:
            continue
        work = [(root, iter(inputs[root]))]
        numbers[root] = lowest_numbers[root] = len(numbers)
        open_keys.append(root)
        open_key_set.add(root)
        while work:
            key, remaining_inputs = work[-1]
            for input_key in remaining_inputs:
                if input_key not in inputs:
                    continue
                if input_key not in numbers:
                    numbers[input_key] = lowest_numbers[input_key] = len(numbers)
                    open_keys.append(input_key)
                    open_key_set.add(input_key)
                    work.append((input_key, iter(inputs[input_key])))
                    break
                if input_key in open_key_set:
                    lowest_numbers[key] = min(lowest_numbers[key], numbers[input_key])
            else:
                work.pop()
                if work:
                    parent = work[-1][0]
                    lowest_numbers[parent] = min(lowest_numbers[parent], lowest_numbers[key])
                if lowest_numbers[key] == numbers[key]:
                    component = [open_keys.pop()]
                    while component[-1] != key:
                        component.append(open_keys.pop())
                    open_key_set.difference_update(component)
                    yield component


def _describe_circle(start: str, inputs: Mapping[str, list[str]], members: frozenset[str]) -> str:
    """Return a description of a circle through `start` and further `members`, which the caller knows to exist."""
    paths = [[start]]
    visited_keys: set[str] = set()
    while paths:
        path = paths.pop()
        for key in inputs.get(path[-1], ()):
            if key == start:
                names = " -> ".join(key.partition("/")[2] for key in (*path, start))
                return f"spec.source.scores: a circle: {names}"
            if key in members and key not in visited_keys:
                visited_keys.add(key)
                paths.append([*path, key])
    return ""


def _get_namespace(plan: ScorerPlan) -> str:
    return plan.namespace


def _describe_missing_inputs(plan: ScorerPlan, plans: Mapping[str, ScorerPlan], namespaces: Mapping[str, str]) -> str:
    """Return a description of the inputs without a default that are not running scorers of the namespace, or empty."""
    return "; ".join(_find_input_problems(plan, plans, namespaces))


def _find_input_problems(
    plan: ScorerPlan, plans: Mapping[str, ScorerPlan], namespaces: Mapping[str, str]
) -> Iterator[str]:
    for score in plan.scorer.spec.source.scores or ():
        scorer = plans.get(f"{plan.namespace}/{score.scorer}")
        if score.default is not None or (
            scorer is not None and (scorer.obstacle is None or scorer.obstacle.reason != NAME_CONFLICT)
        ):
            continue
        problem = f"there is no DynamicScorer {score.scorer!r} in namespace {plan.namespace!r}"
        if scorer is not None:
            problem = f"DynamicScorer {score.scorer!r} does not run: another one has its name"
        elif other_namespace := namespaces.get(score.scorer):
            problem += f"; the one in namespace {other_namespace!r} does not count"
        yield f"spec.source.scores[as={score.name}]: {problem}"
