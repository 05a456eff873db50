"""The rights that the hub controller needs, and no others: those of the chart's role."""

from __future__ import annotations

from dsf.api.types import GROUP

_CLUSTER = "cluster.open-cluster-management.io"

Rule = dict[str, list[str]]


def rule(group: str, resources: str, verbs: str) -> Rule:
    """Return a rule of a ClusterRole."""
    return {"apiGroups": [group], "resources": resources.split(), "verbs": verbs.split()}


HUB = {
    "ours": rule(GROUP, "dynamicscorers dynamicscoringconfigs", "list watch"),
    "finalizers": rule(GROUP, "dynamicscoringconfigs", "patch"),
    "authentications": rule(GROUP, "scoringauthentications", "list watch"),
    "statuses": rule(GROUP, "dynamicscorers/status dynamicscoringconfigs/status", "patch"),
    "clusters": rule(_CLUSTER, "managedclusters managedclustersets", "get list watch"),
    "scores": rule(_CLUSTER, "addonplacementscores", "get list watch create patch delete"),
    "score statuses": rule(_CLUSTER, "addonplacementscores/status", "patch"),
    "works": rule("work.open-cluster-management.io", "manifestworks", "get list watch create patch delete"),
    "events": rule("events.k8s.io", "events", "create"),
    "names": rule("", "configmaps", "get create update"),
    "leases": rule("coordination.k8s.io", "leases", "get create update"),
}


def without(rules: dict[str, Rule], name: str, *, verbs: str = "") -> list[Rule]:
    """Return all rules without the named one, or with `verbs` instead of its verbs."""
    reduced_rule = rules[name]
    kept_rules = [rule for key, rule in rules.items() if key != name]
    return [*kept_rules, {**reduced_rule, "verbs": verbs.split()}] if verbs else kept_rules
