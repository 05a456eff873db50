"""Makes the predicates by which a Placement selects one cluster: by a label, by a claim, or by its name.

OCM gives ManagedClusters no label with their name. Therefore the selection is checked on the hub before a write: a
Placement that selects no cluster, or two, would fail later and elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from dsf.errors import SettingsError
from dsf.placements.scheduling import Manifest, read_claims

#: Claim and value by which a cluster reports that its configuration is in force.
COMPLIANCE_CLAIM: Final = "policy-watcher-claim"
COMPLIANT: Final = "compliant"

_KEY_PATTERN: Final = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")


@dataclass(frozen=True)
class Selection:
    """The values that select each cluster, and the problems of clusters that cannot be selected."""

    values: dict[str, str]
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class PlacementSelector:
    """A selector: `label:KEY`, `claim:NAME` or `name`. The value of a label or claim must be unique per cluster."""

    by: Literal["label", "claim", "name"]
    key: str = ""

    @classmethod
    def parse(cls, text: str) -> PlacementSelector:
        """Parse a selector. Raises SettingsError for invalid text."""
        by, _, key = text.partition(":")
        if text == "name":
            return cls("name")
        if _KEY_PATTERN.fullmatch(key):
            if by == "label":
                return cls("label", key)
            if by == "claim":
                return cls("claim", key)
        raise SettingsError(
            f"DSF_OPTIMIZER_CLUSTER_SELECTOR: {text!r} is not allowed; allowed are label:KEY (of ManagedClusters), "
            "claim:NAME (a ClusterClaim) and name (by the cluster's name in CEL, which OCM understands from 1.0 on)"
        )

    @property
    def labels(self) -> str:
        """Label selector for the ManagedClusters that can be selected."""
        return self.key if self.by == "label" else ""

    def select(self, cluster_names: Iterable[str], clusters: Sequence[Manifest]) -> Selection:
        """Return the values that select each of `cluster_names` among all `clusters` (manifests).

        A cluster that cannot be selected gets its name as value, and a problem.
        """
        value_by_cluster = {str(cluster["metadata"]["name"]): self._read_value(cluster) for cluster in clusters}
        holders: dict[str, list[str]] = {}
        for name, value in value_by_cluster.items():
            if value is not None:
                holders.setdefault(value, []).append(name)
        values: dict[str, str] = {}
        problems = []
        for name in sorted(set(cluster_names)):
            value = value_by_cluster.get(name)
            values[name] = name if value is None else value
            if value is None:
                problems.append(self._describe_missing(name))
            elif len(holders[value]) > 1:
                sharing = ", ".join(sorted(set(holders[value]) - {name})[:3])
                problems.append(
                    f"{self.by} {self.key} of ManagedCluster {name} is {value!r}, as it is of {sharing}: a Placement "
                    f"could select either; give each cluster a unique value"
                )
        return Selection(values, tuple(problems))

    def make_predicate(self, values: Sequence[str], *, compliant: bool = False) -> dict[str, Any]:
        """Return the `requiredClusterSelector` for these values.

        With `compliant`, it also requires that the configuration of the cluster is in force.
        """
        labels: list[dict[str, Any]] = []
        claims: list[dict[str, Any]] = []
        selector: dict[str, Any] = {}
        if self.by == "name":
            names = ", ".join(f'"{value}"' for value in sorted(values))
            selector["celSelector"] = {"celExpressions": [f"managedCluster.metadata.name in [{names}]"]}
        else:
            expression = {"key": self.key, "operator": "In", "values": sorted(values)}
            (labels if self.by == "label" else claims).append(expression)
        if compliant:
            claims.append({"key": COMPLIANCE_CLAIM, "operator": "In", "values": [COMPLIANT]})
        if labels:
            selector["labelSelector"] = {"matchExpressions": labels}
        if claims:
            selector["claimSelector"] = {"matchExpressions": claims}
        return selector

    def _read_value(self, cluster: Manifest) -> str | None:
        metadata = cluster["metadata"]
        if self.by == "name":
            return str(metadata["name"])
        labels = (metadata.get("labels") or {}) if self.by == "label" else read_claims(cluster)
        value = labels.get(self.key)
        return value if isinstance(value, str) and value else None

    def _describe_missing(self, name: str) -> str:
        advice = "make the ClusterClaim there"
        if self.by == "label":
            advice = f"set it with: kubectl label managedcluster {name} {self.key}={name}"
        return (
            f"ManagedCluster {name} has no {self.by} {self.key}, by which Placements select it; {advice}, or choose "
            "another one with DSF_OPTIMIZER_CLUSTER_SELECTOR"
        )
