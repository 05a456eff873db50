"""Selects the Secrets in the hub's own namespace that are delivered to clusters, and copies them. Pure functions.

A Secret is delivered if a ScoringAuthentication requests it and the Secret's label allows it, so both owners agree.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from dsf.api.authentication import CaKind
from dsf.api.resolve import ResolvedScorer
from dsf.api.scoringauthentication import ClusterFacts, DeliveredSecret, ScoringAuthentication
from dsf.api.summary import ScorerSummary
from dsf.api.types import DELIVER_LABEL, MANAGED_BY, MANAGED_BY_LABEL, USABLE_FOR, ResolveReason
from dsf.backends.protocol import Manifest
from dsf.errors import ResolutionError
from dsf.hub import manifestwork

#: Maximum base64 characters of all values in one Secret, which shares a ManifestWork with the scorers of a cluster.
MAX_SIZE: Final = 32 * 1024


class SecretCopy(NamedTuple):
    """A Secret that is delivered to a cluster."""

    #: Name on the hub.
    name: str
    #: Bytes of the copy in the ManifestWork.
    size: int


@dataclass(frozen=True)
class DeliverableSecrets:
    """The Secrets that the hub may deliver."""

    #: The hub's own namespace.
    namespace: str = ""
    #: Name of each labelled Secret -> (reason why it is not delivered, empty if it is; bytes of the copy). None if
    #: delivery is off.
    secrets: Mapping[str, tuple[str, int]] | None = None
    #: Names of Secrets without the annotation `USABLE_FOR`, which lists the servers that may receive a Secret.
    unreleased: frozenset[str] = frozenset()

    @classmethod
    def from_manifests(cls, namespace: str, secrets: Iterable[Manifest]) -> DeliverableSecrets:
        """Return the deliverable Secrets among the labelled Secrets in a namespace."""
        secret_list = list(secrets)
        problem_and_size_by_name = {
            secret["metadata"]["name"]: (_find_problem(secret), _compute_copy_size(secret)) for secret in secret_list
        }
        unreleased = frozenset(secret["metadata"]["name"] for secret in secret_list if not _get_usable_for(secret))
        return cls(namespace, problem_and_size_by_name, unreleased)

    def explain_refusal(self, name: str) -> str:
        """Return why this Secret is not delivered; empty if it is delivered."""
        if self.secrets and name in self.secrets:
            return self.secrets[name][0]
        return (
            f"is not in namespace {self.namespace} with the label {DELIVER_LABEL}=true: create it, and label it if "
            "clusters may have it"
        )

    def make_copies(self, resolved_scorer: ResolvedScorer, cluster: str = "") -> dict[str, SecretCopy]:
        """Return the Secrets delivered with a scorer, by their names on the cluster.

        The caller must have checked with `check_deliverable` that all are deliverable.
        """
        secrets = self.secrets or {}
        names = (secret.render_names(cluster) for _, secret in _list_referenced(resolved_scorer))
        return {target: SecretCopy(name, secrets[name][1] - len(name) + len(target)) for name, target in names}

    def with_targets(self, authentications: Iterable[object], clusters: Iterable[ClusterFacts]) -> DeliverableSecrets:
        """Return a copy whose `unreleased` also has the names under which clusters get unreleased Secrets."""
        names = [cluster.name for cluster in clusters]
        targets: set[str] = set()
        for authentication in authentications:
            if (
                isinstance(authentication, ScoringAuthentication)
                and authentication.metadata.namespace == self.namespace
            ):
                for secret in authentication.spec.secret_delivery:
                    targets.update(self._find_unreleased_targets(secret, names))
        return replace(self, unreleased=self.unreleased | targets)

    def _find_unreleased_targets(self, secret: DeliveredSecret, clusters: Iterable[str]) -> Iterator[str]:
        for cluster in clusters if secret.is_per_cluster else ("",):
            with contextlib.suppress(ValueError):
                name, target = secret.render_names(cluster)
                if name in self.unreleased:
                    yield target


#: The value for a hub that delivers no Secrets.
NO_DELIVERY: Final = DeliverableSecrets()


def _find_problem(secret: Manifest) -> str:
    if (secret["metadata"].get("labels") or {}).get(MANAGED_BY_LABEL) == MANAGED_BY:
        return f"is the framework's own, by its label {MANAGED_BY_LABEL}"
    if sum(len(value) for value in (secret.get("data") or {}).values()) > MAX_SIZE:
        return f"has more than {MAX_SIZE // 1024} KiB in base64"
    return ""


def _get_usable_for(secret: Manifest) -> str:
    return (secret["metadata"].get("annotations") or {}).get(USABLE_FOR) or ""


def _compute_copy_size(secret: Manifest) -> int:
    # The name of the agents' namespace is not known here, so assume the maximum length.
    return manifestwork.compute_size(make_copy("x" * 63, secret))


def is_per_cluster(resolved_scorer: ResolvedScorer) -> bool:
    """Return True if the Secrets of the scorer depend on the cluster."""
    return any(secret.is_per_cluster for _, secret in _list_referenced(resolved_scorer))


def check_deliverable(resolved_scorer: ResolvedScorer, delivery: DeliverableSecrets, cluster: str = "") -> None:
    """Raise ResolutionError unless all Secrets of the scorer's ScoringAuthentications are deliverable.

    Without a cluster, Secrets that depend on the cluster are not checked.
    """
    # Name on the cluster -> name on the hub.
    sources: dict[str, str] = {}
    for authentication, secret in _list_referenced(resolved_scorer):
        source_name, problem = secret.name, _find_general_refusal(authentication.metadata.namespace, delivery)
        if not problem and (cluster or not secret.is_per_cluster):
            try:
                source_name, target = secret.render_names(cluster)
            except ValueError as error:
                problem = f"has no possible name on cluster {cluster}: {error}"
            else:
                problem = delivery.explain_refusal(source_name)
                if sources.setdefault(target, source_name) != source_name:
                    problem = f"and Secret {sources[target]!r} would both be {target!r} there: set another targetName"
        if problem:
            raise ResolutionError(
                ResolveReason.SecretNotDelivered,
                f"secretDelivery of ScoringAuthentication {authentication.metadata.name!r}: "
                f"Secret {source_name!r} {problem}",
            )


class TargetNames:
    """The names of delivered Secrets on one cluster. OCM rejects a ManifestWork with two Secrets of the same name."""

    def __init__(self) -> None:
        # Name on the cluster -> (name on the hub, scorer).
        self._sources: dict[str, tuple[str, str]] = {}

    def add(self, scorer: str, copies: Mapping[str, SecretCopy]) -> str:
        """Add the Secrets of a scorer. If another Secret has one of the names, add none and return the conflict."""
        for target, copy in copies.items():
            source, owner = self._sources.get(target, (copy.name, ""))
            if source != copy.name:
                return (
                    f"Secret {copy.name!r} would be {target!r} there, as Secret {source!r} of scorer {owner} is "
                    "already: set another targetName in secretDelivery"
                )
        self._sources |= {target: (copy.name, scorer) for target, copy in copies.items()}
        return ""


def check_foreign(summary: ScorerSummary, delivery: DeliverableSecrets) -> None:
    """Raise ResolutionError if a scorer in another namespace uses an unreleased Secret of the hub.

    A ScoringAuthentication in that namespace could send the Secret to any server.
    """
    names = {reference.name for reference in summary.references if reference.kind is CaKind.Secret}
    for name in sorted(names & delivery.unreleased):
        raise ResolutionError(
            ResolveReason.SecretNotDelivered,
            f"Secret {name!r} is delivered for scorers in namespace {delivery.namespace} only; its owner may "
            f"release it for servers with the annotation {USABLE_FOR}",
        )


def _find_general_refusal(namespace: str, delivery: DeliverableSecrets) -> str:
    if delivery.secrets is None:
        return "is not delivered: this hub delivers no Secrets (hubSetting.secretDelivery of the chart)"
    if namespace != delivery.namespace:
        return f"is not delivered: only ScoringAuthentications in namespace {delivery.namespace} may have that"
    return ""


def _list_referenced(resolved_scorer: ResolvedScorer) -> Iterator[tuple[ScoringAuthentication, DeliveredSecret]]:
    for authentication in resolved_scorer.authentications:
        for secret in authentication.spec.secret_delivery:
            yield authentication, secret


def make_copy(agent_namespace: str, secret: Manifest, name: str = "") -> Manifest:
    """Return the copy of a Secret for clusters, named `name` unless that is empty.

    Other metadata is omitted, because kubectl stores all values of a Secret in an annotation.
    """
    metadata: dict[str, Any] = {"name": name or secret["metadata"]["name"], "namespace": agent_namespace}
    # Always write the annotation, because the work agent would not remove it from the cluster. An empty annotation
    # releases the Secret for no server.
    metadata["annotations"] = {USABLE_FOR: _get_usable_for(secret)}
    data = secret.get("data") or {}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata,
        "type": secret.get("type", "Opaque"),
        "data": data,
    }
