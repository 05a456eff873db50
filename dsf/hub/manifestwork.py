"""Builds the ManifestWork that delivers scorers to an agent, and decides which scorers fit into it. Pure functions.

All scorers of a cluster share one object. If it is too large, the API server rejects it, and no new scorer, removal or
rotated Secret reaches the cluster. Therefore scorers are excluded in an order that no namespace can exploit: scorers in
the hub's own namespace come first, each other namespace has an equal share of the rest (unused parts of shares go to
the other namespaces), and within a namespace older scorers come first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from dsf.api.authentication import CaKind, Reference
from dsf.api.summary import ScorerSummary, dump_summaries
from dsf.api.types import (
    AGENT_ACCOUNT,
    CONFIGMAP_NAME,
    MANAGED_BY,
    MANAGED_BY_LABEL,
    MANIFESTWORK_NAME,
    SUMMARIES_KEY,
    TOKEN_ACCOUNT,
)
from dsf.backends.protocol import Kind, Manifest

#: Maximum bytes of all manifests in one ManifestWork, lowered when the API server rejects one. A ConfigMap holds 1 MiB,
#: and etcd 1.5 MiB per object. OCM's webhook allows 500 KiB by default; its error message contains the limit.
MAX_BYTES: Final = 1024 * 1024
#: Bytes of the ManifestWork that do not belong to a scorer: the ConfigMap without summaries, Role and RoleBinding.
_FIXED_BYTES: Final = 4 * 1024
#: Match OCM's "the size of manifests is 1663352 bytes which exceeds the 512000 limit", and the "... too large" of the
#: API server and etcd.
_OCM_LIMIT_PATTERN: Final = re.compile(r"exceeds the (\d+) limit")
_TOO_LARGE_PATTERN: Final = re.compile(r"too large|larger than max", re.IGNORECASE)
#: Matches the characters that Go escapes in JSON and Python does not.
_GO_ESCAPED_CHARACTER_PATTERN: Final = re.compile(r"[<>&]")
#: Additional bytes of each such character.
_EXTRA_BYTES: Final = len(r"\u003c") - 1


@dataclass(frozen=True)
class Load:
    """The size of a scorer in the ManifestWork of a cluster."""

    #: `namespace/name` of the scorer.
    key: str
    #: Creation time of the scorer; None if it is not stored yet.
    created: datetime | None
    #: Bytes without Secrets.
    size: int
    #: Name of each Secret delivered with the scorer -> its bytes. Scorers may share Secrets.
    secrets: Mapping[str, int]

    @property
    def namespace(self) -> str:
        """The scorer's namespace."""
        return self.key.partition("/")[0]

    @property
    def total_size(self) -> int:
        """Size of the manifests in bytes, including all Secrets."""
        return self.size + sum(self.secrets.values())


def compute_size(manifest: Any) -> int:
    """Return an upper bound of the bytes that the API server counts for a manifest or a part of a manifest."""
    text = json.dumps(manifest, separators=(",", ":"))
    return len(text) + _EXTRA_BYTES * len(_GO_ESCAPED_CHARACTER_PATTERN.findall(text))


def all_fit(loads: Iterable[Load], limit: int) -> bool:
    """Return True if all these scorers fit into `limit` bytes, even if they share no Secrets."""
    return sum(load.total_size for load in loads) + _FIXED_BYTES <= limit


def find_excluded(loads: Iterable[Load], own_namespace: str, limit: int) -> Iterator[tuple[str, str]]:
    """Yield (key, reason) for each scorer that does not fit into the ManifestWork of one cluster.

    `loads` are the scorers of the cluster, `own_namespace` is the hub's, and `limit` is in bytes.
    """
    loads_by_namespace: dict[str, list[Load]] = {}
    for load in sorted(loads, key=lambda load: (load.created or _NOT_CREATED, load.key)):
        loads_by_namespace.setdefault(load.namespace, []).append(load)
    free_bytes = limit - _FIXED_BYTES
    home_loads = loads_by_namespace.pop(own_namespace, [])
    excluded_loads, used_bytes = _split_by_size(home_loads, free_bytes)
    # A namespace that needs less than its equal share leaves the rest to the other namespaces.
    namespace_sizes = {name: sum(load.total_size for load in loads) for name, loads in loads_by_namespace.items()}
    free_bytes -= used_bytes
    for position, name in enumerate(sorted(namespace_sizes, key=lambda name: (namespace_sizes[name], name))):
        share = min(namespace_sizes[name], free_bytes // (len(namespace_sizes) - position))
        namespace_excluded, _ = _split_by_size(loads_by_namespace[name], share)
        excluded_loads += namespace_excluded
        free_bytes -= share
    for load in excluded_loads:
        yield load.key, _describe_exclusion(load, own_namespace, limit)


def _split_by_size(loads: Iterable[Load], free_bytes: int) -> tuple[list[Load], int]:
    """Return the loads that do not fit, and the bytes of the loads that fit."""
    excluded_loads: list[Load] = []
    secret_names: set[str] = set()
    used_bytes = 0
    for load in loads:
        required_bytes = load.size + sum(size for name, size in load.secrets.items() if name not in secret_names)
        if used_bytes + required_bytes > free_bytes:
            excluded_loads.append(load)
            continue
        used_bytes += required_bytes
        secret_names |= load.secrets.keys()
    return excluded_loads, used_bytes


def _describe_exclusion(load: Load, own_namespace: str, limit: int) -> str:
    order = "older scorers come first"
    if load.namespace != own_namespace:
        order = f"those of namespace {own_namespace} come first, then each namespace has an equal share, {order}"
    return (
        f"no room: a cluster's ManifestWork holds {limit // 1024} KiB for all its scorers and their Secrets, this one "
        f"needs {load.total_size / 1024:.1f} KiB, and {order}; shorten queries, remove scorers, or let them run on "
        "fewer clusters (spec.clusterSelector, masks)"
    )


def lower_limit(limit: int, refusal: str) -> int | None:
    """Return a lower limit after the API server rejected a ManifestWork; None if its size was not the cause."""
    limit_match = _OCM_LIMIT_PATTERN.search(refusal)
    if limit_match is None and not _TOO_LARGE_PATTERN.search(refusal):
        return None
    # If the reported limit is not below ours, the server counts bytes differently, so reduce the limit by a quarter.
    new_limit = int(limit_match[1]) if limit_match is not None and int(limit_match[1]) < limit else limit * 3 // 4
    # Below this size another rule must have caused the rejection.
    return new_limit if new_limit >= 64 * 1024 else None


#: Sort key of a scorer without a creation time. It is not stored yet, so all stored scorers are older.
_NOT_CREATED: Final = datetime.max.replace(tzinfo=UTC)


_WORK_API_VERSION = "work.open-cluster-management.io/v1"

#: Name of the agents' Role for the objects that scorers reference, and of its RoleBinding.
SCORERS_ROLE: Final = "dynamic-scoring-agent-scorers"


@dataclass(frozen=True)
class ScorerPart:
    """The part of a scorer in the ManifestWork of a cluster, without Secrets."""

    #: Element in the JSON array of the ConfigMap.
    text: str
    #: The Secrets and ConfigMaps that the agent must be allowed to read for the scorer.
    references: frozenset[Reference]
    #: True if the scorer sends tokens of the agents' ServiceAccount to servers.
    uses_account: bool
    #: Bytes in the ManifestWork.
    size: int


def make_part(summary: ScorerSummary) -> ScorerPart:
    """Return the part of a scorer in a ManifestWork."""
    text = dump_summaries([summary])[1:-1]
    # The text is escaped once more in the ConfigMap, and the Role contains the names.
    size = compute_size(text) + sum(compute_size(reference.name) + 1 for reference in summary.references)
    return ScorerPart(text, summary.references, summary.uses_account, size)


def make_manifest_work(
    cluster: str,
    agent_namespace: str,
    parts: Collection[ScorerPart],
    *,
    secrets: Iterable[Manifest] = (),
) -> Manifest:
    """Return the ManifestWork with the ConfigMap for the agent of a cluster; `parts` are sorted by scorer name.

    A Role lets the agent read only the Secrets and ConfigMaps that `parts` reference. The ManifestWork also contains
    `secrets`.
    """
    summaries = f"[{','.join(part.text for part in parts)}]"
    references = frozenset().union(*(part.references for part in parts))
    uses_account = any(part.uses_account for part in parts)
    labels = {MANAGED_BY_LABEL: MANAGED_BY}
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": CONFIGMAP_NAME, "namespace": agent_namespace, "labels": labels},
        "data": {SUMMARIES_KEY: summaries},
    }
    return {
        "apiVersion": _WORK_API_VERSION,
        "kind": Kind.WORK.value,
        "metadata": {
            "name": MANIFESTWORK_NAME,
            "namespace": cluster,
            "labels": labels,
        },
        "spec": {
            "workload": {"manifests": [config_map, *_make_rights(agent_namespace, references, uses_account), *secrets]}
        },
    }


def _make_rights(namespace: str, references: Iterable[Reference], uses_account: bool) -> list[Manifest]:
    rules: list[Manifest] = []
    for kind, plural in ((CaKind.Secret, "secrets"), (CaKind.ConfigMap, "configmaps")):
        if names := sorted(reference.name for reference in set(references) if reference.kind is kind):
            # A rule without names would allow the agent to read all objects.
            rules.append(
                {"apiGroups": [""], "resources": [plural], "resourceNames": names, "verbs": ["get", "list", "watch"]}
            )
    if uses_account:
        rules.append(
            {
                "apiGroups": [""],
                "resources": ["serviceaccounts/token"],
                "resourceNames": [TOKEN_ACCOUNT],
                "verbs": ["create"],
            }
        )
    if not rules:
        return []
    group = "rbac.authorization.k8s.io"
    labels = {MANAGED_BY_LABEL: MANAGED_BY}
    metadata = {"name": SCORERS_ROLE, "namespace": namespace, "labels": labels}
    # Tokens of a separate ServiceAccount are sent to servers, so that servers do not get the rights of the agent.
    account: Manifest = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": TOKEN_ACCOUNT, "namespace": namespace, "labels": labels},
        "automountServiceAccountToken": False,
    }
    return [
        *([account] if uses_account else []),
        {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": metadata, "rules": rules},
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": SCORERS_ROLE},
            "subjects": [{"kind": "ServiceAccount", "name": AGENT_ACCOUNT, "namespace": namespace}],
        },
    ]


def is_applied(work: Manifest) -> bool:
    """Return True if OCM's work agent has applied this generation on the managed cluster."""
    generation = work["metadata"].get("generation", 0)
    return any(
        condition.get("type") == "Applied"
        and condition.get("status") == "True"
        and condition.get("observedGeneration", 0) >= generation
        for condition in (work.get("status") or {}).get("conditions") or []
    )
