"""Reads the objects of a request from the hub, and builds the optimisation problem."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from dsf.api.naming import MAX_LABEL_VALUE_LENGTH
from dsf.errors import ManifestError
from dsf.kube.resources import ADDON_PLACEMENT_SCORES, Resource
from dsf.optimizer.backend import Manifest, ManifestClient
from dsf.optimizer.clusters import Clusters
from dsf.optimizer.labels import get_placement_name, read_problem
from dsf.optimizer.manifests import find_current_assignments
from dsf.optimizer.model import PlanInput, Preference, raise_all
from dsf.optimizer.params import OptimizeParams
from dsf.optimizer.scores import Scores
from dsf.optimizer.selector import PlacementSelector
from dsf.optimizer.views import PlanView
from dsf.placements.kinds import MANIFEST_WORK_REPLICA_SETS, POLICIES


@dataclass(frozen=True)
class PlanRequest:
    """A request with its objects from the hub."""

    problem: PlanInput
    #: Workload -> name of its Placement.
    placements: dict[str, str]
    clusters: Clusters


def read_request(
    backend: ManifestClient, selector: PlacementSelector, params: OptimizeParams, previous: PlanView, *, now: datetime
) -> PlanRequest:
    """Return a request with its objects.

    Scores that have expired at `now` are not used; `previous` has the current assignments. Raises ManifestError with
    all errors, such as missing objects, and BackendError.
    """
    preferences: Sequence[Preference] = params.make_preferences()
    names = [cluster.name for cluster in params.clusters]
    clusters = Clusters(backend, selector, names)
    errors = clusters.list_missing(names)
    workload_names = [workload.name for workload in params.target_workloads]
    workloads = _fetch_named(backend, MANIFEST_WORK_REPLICA_SETS, params.namespace, workload_names, errors)
    available = {cluster.name: [policy.name for policy in cluster.available_policies] for cluster in params.clusters}
    policy_names = sorted({name for policy_list in available.values() for name in policy_list})
    policies = _fetch_named(backend, POLICIES, params.namespace, policy_names, errors)
    raise_all(errors)
    scores = [
        score
        for name in sorted({preference.score for preference in preferences})
        for score in backend.list_objects(ADDON_PLACEMENT_SCORES, name=name)
    ]
    if any(preference.needs_score_name for preference in preferences):
        names_by_score = Scores(backend).read_score_names(scores)
        preferences = [
            replace(preference, score_name=preference.score_name or names_by_score.get(preference.score, ""))
            for preference in preferences
        ]
    problem = read_problem(
        [workloads[name] for name in workload_names],
        {cluster: [policies[name] for name in policy_list] for cluster, policy_list in available.items()},
        scores,
        preferences,
        now=now,
        keep_current=params.keep_current,
        current=find_current_assignments(previous),
    )
    if len(available) != len(params.clusters):
        raise ManifestError("a cluster is named more than once; each is allowed once")
    return PlanRequest(problem, _find_placements(workloads), clusters)


def _fetch_named(
    backend: ManifestClient, resource: Resource, namespace: str, names: Sequence[str], errors: list[str]
) -> dict[str, Manifest]:
    manifests = backend.fetch_objects(resource, namespace, names)
    missing_names = sorted(set(names) - manifests.keys())
    errors += [f"{resource.kind} {namespace}/{name} does not exist" for name in missing_names]
    return manifests


def _find_placements(workloads: dict[str, Manifest]) -> dict[str, str]:
    """Return the Placement of each workload. Raises ManifestError for one that cannot be written."""
    placements = {name: get_placement_name(manifest) for name, manifest in workloads.items()}
    errors = []
    owners: dict[str, list[str]] = {}
    for name, placement in sorted(placements.items()):
        owners.setdefault(placement, []).append(name)
        if len(placement) > MAX_LABEL_VALUE_LENGTH:
            errors.append(
                f"the Placement {placement!r} of workload {name} has a name of {len(placement)} characters; OCM takes "
                f"at most {MAX_LABEL_VALUE_LENGTH}, because it labels decisions with it"
            )
    errors += [
        f"workloads {', '.join(names)} name the same Placement {placement}; each needs its own"
        for placement, names in owners.items()
        if len(names) > 1
    ]
    raise_all(errors)
    return placements
