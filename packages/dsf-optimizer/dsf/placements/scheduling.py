"""The rules of OCM's placement controller, as pure functions of its input objects.

The rules follow pkg/placement of OCM 1.2. Eligible clusters are those in cluster sets that are bound to the namespace.
Two filters (predicates, taints) exclude clusters. Each cluster gets the sum of weight x score of each prioritizer. The
first N clusters by sum, and then by name, are chosen. Numbers are truncated as in Go.
`tests/e2e/test_placement_order.py` compares the result with the controller.

CEL expressions of predicates are not evaluated, but count as met (`SchedulingDecision.has_cel`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final, Literal, NamedTuple

from dsf.api.cluster import has_cluster
from dsf.api.quantity import parse_quantity
from dsf.api.selector import matches_selector

Manifest = dict[str, Any]

#: OCM's best score; the worst score is its negative.
MAX_SCORE: Final = 100
#: Prioritizers of each Placement, with their weights.
_DEFAULTS: Final = {"Balance": 1, "Steady": 1}
#: Prioritizer -> resource of clusters that it compares.
_RESOURCES: Final = {"ResourceAllocatableCPU": "cpu", "ResourceAllocatableMemory": "memory"}

#: Origin of a prioritizer's value. The value is 0 for missing, expired, no-item and unknown.
#:
#: counted   the cluster has a score
#: missing   there is no AddOnPlacementScore
#: expired   the AddOnPlacementScore has expired
#: no-item   the AddOnPlacementScore has no item of this name
#: unknown   the cluster does not report this resource
#: asked     the score is hypothetical
Standing = Literal["counted", "missing", "expired", "no-item", "unknown", "asked"]


class ScoreKey(NamedTuple):
    """One score of one cluster: item `score` of the AddOnPlacementScore `resource`."""

    cluster: str
    resource: str
    score: str


class PrioritizerScore(NamedTuple):
    """A prioritizer's value for a cluster."""

    score: int
    standing: Standing = "counted"
    valid_until: datetime | None = None


@dataclass(frozen=True)
class Prioritizer:
    """A prioritizer of a Placement. `resource` and `score` are set if it reads AddOnPlacementScores."""

    name: str
    weight: int
    resource: str = ""
    score: str = ""

    @property
    def is_addon(self) -> bool:
        """True if the prioritizer reads AddOnPlacementScores."""
        return bool(self.resource or self.score)


@dataclass(frozen=True)
class Situation:
    """The scheduler's input for one Placement."""

    placement: Manifest
    #: Clusters that the Placement currently selects.
    decided: frozenset[str]
    #: Cluster -> number of decisions of all other Placements that select it.
    other_decision_counts: Mapping[str, int]
    #: Name -> ManagedCluster.
    clusters: Mapping[str, Manifest]
    #: Name -> ManagedClusterSet, for the sets that are bound to the namespace.
    cluster_sets: Mapping[str, Manifest]
    #: (cluster, resource) -> AddOnPlacementScore.
    scores: Mapping[tuple[str, str], Manifest]
    now: datetime

    @property
    def spec(self) -> Mapping[str, Any]:
        """Spec of the Placement."""
        return self.placement.get("spec") or {}


@dataclass(frozen=True)
class SchedulerResult:
    """The response of OCM's own scheduler, for all clusters regardless of their sets."""

    #: Clusters that pass all filters.
    passed: frozenset[str]
    #: (name, weight) of a prioritizer -> cluster -> score.
    scores: Mapping[tuple[str, int], Mapping[str, int]]


@dataclass
class SchedulingDecision:
    """The scheduler's decision on a Placement."""

    #: Why no decision is possible; empty if a decision is possible.
    problem: str = ""
    #: True if the Placement has CEL expressions, which are not evaluated.
    has_cel: bool = False
    prioritizers: list[Prioritizer] = field(default_factory=list)
    #: Cluster -> (stage, reason), for clusters that cannot be selected.
    left_out: dict[str, tuple[str, str]] = field(default_factory=dict)
    #: Eligible clusters, best first.
    order: list[str] = field(default_factory=list)
    #: Cluster -> values of the prioritizers, in order.
    values: dict[str, list[PrioritizerScore]] = field(default_factory=dict)
    #: Cluster -> sum of weight x score.
    totals: dict[str, int] = field(default_factory=dict)
    #: Chosen clusters, best first.
    chosen: list[str] = field(default_factory=list)


def decide_placement(
    situation: Situation,
    *,
    hypothetical_scores: Mapping[ScoreKey, int | None] | None = None,
    scheduler_result: SchedulerResult | None = None,
) -> SchedulingDecision:
    """Return the decision by the stored scores, or by the values of OCM's scheduler in `scheduler_result`.

    `hypothetical_scores` replace stored scores; None stands for a missing score.
    """
    outcome = SchedulingDecision()
    clusters = _list_clusters_in_sets(situation, outcome)
    try:
        outcome.prioritizers = list(_read_prioritizers(situation.spec))
        if clusters:
            _check_predicates(situation.spec.get("predicates") or ())
        clusters = [name for name in clusters if _is_eligible(situation, name, outcome, scheduler_result)]
        _score_clusters(situation, clusters, outcome, hypothetical_scores or {}, scheduler_result)
    except _MisconfiguredError as error:
        outcome.problem = str(error)
        return outcome
    outcome.order = sorted(clusters, key=lambda name: (-outcome.totals[name], name))
    number = situation.spec.get("numberOfClusters")
    outcome.chosen = outcome.order if number is None else outcome.order[: max(0, int(number))]
    return outcome


class _MisconfiguredError(Exception):
    """The Placement is misconfigured, so OCM makes no decision. The message says why."""


# --- eligible clusters -----------------------------------------------------------------------------------------------


def _list_clusters_in_sets(situation: Situation, outcome: SchedulingDecision) -> list[str]:
    """Return the clusters in the cluster sets of the Placement, and record why the others are left out."""
    set_names = situation.spec.get("clusterSets") or ()
    sets = {
        name: cluster_set for name, cluster_set in situation.cluster_sets.items() if not set_names or name in set_names
    }
    bound_sets = ", ".join(sorted(sets)) or "none"
    names = []
    for name, cluster in situation.clusters.items():
        if not any(contains_cluster(cluster_set, cluster) for cluster_set in sets.values()):
            reason = f"in no cluster set that the Placement looks at (bound to its namespace: {bound_sets})"
            outcome.left_out[name] = ("cluster set", reason)
        elif cluster["metadata"].get("deletionTimestamp"):
            outcome.left_out[name] = ("cluster set", "it is being deleted")
        else:
            names.append(name)
    return names


def contains_cluster(cluster_set: Manifest, cluster: Manifest) -> bool:
    """Return True if a cluster belongs to a ManagedClusterSet."""
    return has_cluster(cluster_set, cluster["metadata"].get("labels") or {})


def _is_eligible(
    situation: Situation, name: str, outcome: SchedulingDecision, scheduler_result: SchedulerResult | None
) -> bool:
    """Return True if a cluster passes all filters; otherwise record the reason in `outcome`."""
    cluster, spec = situation.clusters[name], situation.spec
    if (predicates := spec.get("predicates") or ()) and not any(
        _matches_predicate(predicate, cluster, outcome) for predicate in predicates
    ):
        outcome.left_out[name] = ("predicate", "its labels and claims fit none of the predicates")
        return False
    tolerations = spec.get("tolerations") or ()
    _check_tolerations(tolerations)
    for taint in (cluster.get("spec") or {}).get("taints") or ():
        if not _is_tolerated(taint, tolerations, name in situation.decided, situation.now):
            value = f"={taint['value']}" if taint.get("value") else ""
            outcome.left_out[name] = ("taint", f"its taint {taint.get('key')}{value}:{taint.get('effect')}")
            return False
    if scheduler_result is not None and name not in scheduler_result.passed:
        outcome.left_out[name] = ("filter", "OCM's filters leave it out, as by a CEL expression of a predicate")
        return False
    return True


def _matches_predicate(predicate: Manifest, cluster: Manifest, outcome: SchedulingDecision) -> bool:
    selector = predicate.get("requiredClusterSelector") or {}
    if (selector.get("celSelector") or {}).get("celExpressions"):
        outcome.has_cel = True
    labels = cluster["metadata"].get("labels") or {}
    # Use only the expressions, because a selector of claims has no `matchLabels`.
    claim_selector = {"matchExpressions": (selector.get("claimSelector") or {}).get("matchExpressions")}
    return matches_selector(selector.get("labelSelector") or {}, labels) and matches_selector(
        claim_selector, read_claims(cluster)
    )


#: `managedCluster.scores("NAME")` of OCM's CEL library.
_CEL_SCORES_PATTERN: Final = re.compile(
    r"""\bscores\s*\(\s*(?:managedCluster\s*,\s*)?(?:"([^"\\]*)"|'([^'\\]*)')\s*\)"""
)


def find_cel_resources(spec: Mapping[str, Any]) -> list[str]:
    """Return the names of the AddOnPlacementScores that CEL expressions of the predicates read, sorted."""
    expressions = [
        str(expression)
        for predicate in spec.get("predicates") or ()
        for expression in ((predicate.get("requiredClusterSelector") or {}).get("celSelector") or {}).get(
            "celExpressions"
        )
        or ()
    ]
    return sorted({double or single for text in expressions for double, single in _CEL_SCORES_PATTERN.findall(text)})


def _check_predicates(predicates: Iterable[Manifest]) -> None:
    """Raise _MisconfiguredError for operators and values that OCM refuses, even if no cluster matches the predicate."""
    for predicate in predicates:
        selector = predicate.get("requiredClusterSelector") or {}
        for part in ("labelSelector", "claimSelector"):
            for requirement in (selector.get(part) or {}).get("matchExpressions") or ():
                operator, has_values = requirement.get("operator"), bool(requirement.get("values"))
                if operator not in ("In", "NotIn", "Exists", "DoesNotExist"):
                    raise _MisconfiguredError(f"a {part} has the operator {operator!r}, which there is not")
                if has_values != (operator in ("In", "NotIn")):
                    raise _MisconfiguredError(
                        f"a {part} has the operator {operator} {'with' if has_values else 'without'} values"
                    )


def read_claims(cluster: Manifest) -> dict[str, str]:
    """Return name -> value of the ClusterClaims of a ManagedCluster."""
    claims = (cluster.get("status") or {}).get("clusterClaims") or ()
    return {str(claim["name"]): str(claim.get("value") or "") for claim in claims}


def _check_tolerations(tolerations: Iterable[Manifest]) -> None:
    """Raise _MisconfiguredError for tolerations that OCM refuses."""
    for toleration in tolerations:
        if not toleration.get("key") and toleration.get("operator") != "Exists":
            raise _MisconfiguredError("a toleration without a key needs the operator Exists")
        if toleration.get("operator") == "Exists" and toleration.get("value"):
            raise _MisconfiguredError("a toleration with the operator Exists may have no value")


def _is_tolerated(taint: Manifest, tolerations: Iterable[Manifest], is_decided: bool, now: datetime) -> bool:
    effect = taint.get("effect")
    if effect == "PreferNoSelect" or (effect == "NoSelectIfNew" and is_decided):
        return True
    for toleration in tolerations:
        if (toleration.get("effect") or effect) != effect:
            continue
        if (toleration.get("key") or taint.get("key")) != taint.get("key"):
            continue
        if toleration.get("operator") != "Exists" and (toleration.get("value") or "") != (taint.get("value") or ""):
            continue
        seconds = toleration.get("tolerationSeconds")
        added_at = parse_moment(taint.get("timeAdded"))
        # Do not add the seconds to a time, because any number of seconds is legal.
        if seconds is None or (added_at is not None and (now - added_at).total_seconds() < int(seconds)):
            return True
    return False


# --- scores of clusters ----------------------------------------------------------------------------------------------


def _read_prioritizers(spec: Mapping[str, Any]) -> Iterator[Prioritizer]:
    """Yield the prioritizers of a Placement, without those of weight 0. Raises _MisconfiguredError."""
    policy = spec.get("prioritizerPolicy") or {}
    mode = policy.get("mode") or "Additive"
    if mode not in ("Additive", "Exact"):
        raise _MisconfiguredError(f"incorrect prioritizer policy mode: {mode}")
    builtin: dict[str, int] = dict(_DEFAULTS) if mode == "Additive" else {}
    addons = []
    for configuration in policy.get("configurations") or ():
        coordinate = configuration.get("scoreCoordinate")
        if not coordinate:
            raise _MisconfiguredError("scoreCoordinate field is required")
        weight = int(configuration.get("weight", 1))
        if coordinate.get("type", "BuiltIn") == "BuiltIn":
            # As in OCM, the last of several entries with the same name counts, but all AddOn entries with the same
            # score count.
            builtin[str(coordinate.get("builtIn") or "")] = weight
        elif not (addon := coordinate.get("addOn")):
            raise _MisconfiguredError("addOn should not be empty")
        else:
            resource, score = str(addon.get("resourceName", "")), str(addon.get("scoreName", ""))
            addons.append(Prioritizer(f"AddOn/{resource}/{score}", weight, resource, score))
    for name, weight in builtin.items():
        if weight and name not in (*_DEFAULTS, *_RESOURCES):
            raise _MisconfiguredError(f"incorrect builtin prioritizer: {name}")
        addons.append(Prioritizer(name, weight))
    yield from (prioritizer for prioritizer in addons if prioritizer.weight)


def _score_clusters(
    situation: Situation,
    clusters: list[str],
    outcome: SchedulingDecision,
    hypothetical_scores: Mapping[ScoreKey, int | None],
    scheduler_result: SchedulerResult | None,
) -> None:
    """Set the values and totals of the clusters in `outcome`."""
    outcome.values = {name: [] for name in clusters}
    outcome.totals = dict.fromkeys(clusters, 0)
    for prioritizer in outcome.prioritizers:
        values = _compute_values(situation, clusters, prioritizer, hypothetical_scores)
        scheduler_scores = (
            scheduler_result.scores.get((prioritizer.name, prioritizer.weight)) if scheduler_result else None
        ) or {}
        # Ignore the scheduler's values of a prioritizer that normalizes across clusters, because they are for all
        # clusters.
        if prioritizer.name in _RESOURCES and scheduler_result is not None and scheduler_result.passed != set(clusters):
            scheduler_scores = {}
        for name in clusters:
            value = values[name]
            if name in scheduler_scores and value.standing != "asked":
                value = value._replace(score=scheduler_scores[name])
            outcome.values[name].append(value)
            outcome.totals[name] += prioritizer.weight * value.score


def _compute_values(
    situation: Situation,
    clusters: list[str],
    prioritizer: Prioritizer,
    hypothetical_scores: Mapping[ScoreKey, int | None],
) -> dict[str, PrioritizerScore]:
    if prioritizer.is_addon:
        return {name: _read_addon_score(situation, name, prioritizer, hypothetical_scores) for name in clusters}
    if prioritizer.name == "Steady":
        return {name: PrioritizerScore(MAX_SCORE if name in situation.decided else 0) for name in clusters}
    if prioritizer.name == "Balance":
        return _rate_balance(situation.other_decision_counts, clusters)
    return _rate_allocatable(situation.clusters, clusters, _RESOURCES[prioritizer.name])


def _read_addon_score(
    situation: Situation, name: str, prioritizer: Prioritizer, hypothetical_scores: Mapping[ScoreKey, int | None]
) -> PrioritizerScore:
    key = ScoreKey(name, prioritizer.resource, prioritizer.score)
    if key in hypothetical_scores:
        return PrioritizerScore(hypothetical_scores[key] or 0, "asked")
    score_object = situation.scores.get((name, prioritizer.resource))
    if score_object is None:
        return PrioritizerScore(0, "missing")
    status = score_object.get("status") or {}
    valid_until = parse_moment(status.get("validUntil"))
    if valid_until is not None and situation.now > valid_until:
        return PrioritizerScore(0, "expired", valid_until)
    items = [item for item in status.get("scores") or () if item.get("name") == prioritizer.score]
    # The last of several items with the same name counts, as in OCM.
    if not items:
        return PrioritizerScore(0, "no-item", valid_until)
    return PrioritizerScore(int(items[-1].get("value", 0)), "counted", valid_until)


def _rate_balance(other_decisions: Mapping[str, int], clusters: Iterable[str]) -> dict[str, PrioritizerScore]:
    maximum = max(other_decisions.values(), default=0)
    return {
        name: PrioritizerScore(
            2 * int(MAX_SCORE * (0.5 - other_decisions[name] / maximum)) if other_decisions.get(name) else MAX_SCORE
        )
        for name in clusters
    }


def _rate_allocatable(
    manifest_by_cluster: Mapping[str, Manifest], clusters: Iterable[str], resource: str
) -> dict[str, PrioritizerScore]:
    amounts = {
        name: amount for name in clusters if (amount := _read_amount(manifest_by_cluster[name], resource)) is not None
    }
    low, high = min(amounts.values(), default=0.0), max(amounts.values(), default=0.0)

    def score(amount: float) -> int:
        return int(((amount - low) / (high - low) - 0.5) * 2.0 * MAX_SCORE) if high != low else MAX_SCORE

    unknown_score = PrioritizerScore(0, "unknown")
    return {name: PrioritizerScore(score(amounts[name])) if name in amounts else unknown_score for name in clusters}


def _read_amount(cluster: Manifest, resource: str) -> float | None:
    status = cluster.get("status") or {}
    texts = [(status.get(part) or {}).get(resource) for part in ("allocatable", "capacity")]
    if None in texts:
        return None
    try:
        return _round_as_quantity(parse_quantity(texts[0]))
    except ValueError:
        return None


def _round_as_quantity(exact: Decimal) -> float:
    """Return the float of a number as Go's Quantity computes it: digits times a power of ten, rounded at each step."""
    if exact == exact.to_integral_value():
        return float(int(exact))
    sign, digits, exponent = exact.normalize().as_tuple()
    signed_digits = int("".join(map(str, digits))) * (-1 if sign else 1)
    return float(signed_digits) * float(f"1e{exponent}")


def count_decisions(decisions: Iterable[Manifest]) -> Counter[str]:
    """Return the number of decisions per cluster in these PlacementDecisions."""
    return Counter(name for decision in decisions for name in list_decided_clusters(decision))


def list_decided_clusters(decision: Manifest) -> list[str]:
    """Return the clusters in one PlacementDecision."""
    return [str(entry.get("clusterName")) for entry in (decision.get("status") or {}).get("decisions") or ()]


def parse_moment(text: object) -> datetime | None:
    """Return the time of a Kubernetes timestamp, or None for any other value. A time without a zone is in UTC."""
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
