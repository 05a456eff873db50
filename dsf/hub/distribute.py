"""The ManifestWork that brings a cluster's scorers to its agent. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

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
from dsf.hub.capacity import size_of

_WORK_API_VERSION = "work.open-cluster-management.io/v1"


#: The agents' Role for objects scorers reference, and its binding.
SCORERS_ROLE: Final = "dynamic-scoring-agent-scorers"


@dataclass(frozen=True)
class ScorerPart:
    """A scorer's part of a cluster's ManifestWork, without Secrets."""

    #: Its element of the ConfigMap's JSON array.
    text: str
    #: The Secrets and ConfigMaps that the agent must be allowed to read for it.
    references: frozenset[Reference]
    #: Whether it needs tokens of the agents' account for servers.
    uses_account: bool
    #: Bytes in the ManifestWork.
    size: int


def part_of(summary: ScorerSummary) -> ScorerPart:
    """A scorer's part."""
    text = dump_summaries([summary])[1:-1]
    # In the ConfigMap the text is escaped once more; the Role has the names.
    size = size_of(text) + sum(size_of(reference.name) + 1 for reference in summary.references)
    return ScorerPart(text, summary.references, summary.uses_account, size)


def manifest_work(
    cluster: str,
    agent_namespace: str,
    parts: Collection[ScorerPart],
    *,
    secrets: Iterable[Manifest] = (),
) -> Manifest:
    """The ManifestWork with the ConfigMap that the cluster's agent reads; `parts` are its scorers', sorted by name.

    A Role lets the agent read only the Secrets and ConfigMaps that these name. `secrets` are delivered with it.
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
            "workload": {"manifests": [config_map, *_rights(agent_namespace, references, uses_account), *secrets]}
        },
    }


def _rights(namespace: str, references: Iterable[Reference], uses_account: bool) -> list[Manifest]:
    rules: list[Manifest] = []
    for kind, plural in ((CaKind.Secret, "secrets"), (CaKind.ConfigMap, "configmaps")):
        if names := sorted(reference.name for reference in set(references) if reference.kind is kind):
            # Never without names: that would allow all of them.
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
    # Its tokens are sent to servers, which must not be able to do with them what the agent may.
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
    """Whether OCM's work agent has applied this generation on the managed cluster."""
    generation = work["metadata"].get("generation", 0)
    return any(
        condition.get("type") == "Applied"
        and condition.get("status") == "True"
        and condition.get("observedGeneration", 0) >= generation
        for condition in (work.get("status") or {}).get("conditions") or []
    )
