"""Secrets of the hub's own namespace that ScoringAuthentications deliver to clusters. Pure functions.

Both owners must agree: the ScoringAuthentication names the Secret, and the Secret is labelled for it.
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

#: Characters of all values of one Secret, in base64: it shares a ManifestWork with a cluster's scorers.
MAX_SIZE: Final = 32 * 1024


class SecretCopy(NamedTuple):
    """A Secret as delivered to a cluster."""

    #: On the hub.
    name: str
    #: Bytes there.
    size: int


@dataclass(frozen=True)
class DeliverableSecrets:
    """Deliverable Secrets."""

    #: The hub's own namespace.
    namespace: str = ""
    #: For each labelled Secret there, by name: why it is not delivered (empty if it is), bytes of the delivered Secret;
    #: None: delivery is off.
    secrets: Mapping[str, tuple[str, int]] | None = None
    #: Names of those that do not say themselves which servers may receive them.
    unreleased: frozenset[str] = frozenset()

    @classmethod
    def of(cls, namespace: str, secrets: Iterable[Manifest]) -> DeliverableSecrets:
        """From the labelled Secrets."""
        secret_list = list(secrets)
        problem_and_size_by_name = {
            secret["metadata"]["name"]: (_problem(secret), _size(secret)) for secret in secret_list
        }
        unreleased = frozenset(secret["metadata"]["name"] for secret in secret_list if not _usable_for(secret))
        return cls(namespace, problem_and_size_by_name, unreleased)

    def refusal(self, name: str) -> str:
        """Why this Secret is not delivered; empty if it is."""
        if self.secrets and name in self.secrets:
            return self.secrets[name][0]
        return (
            f"is not in namespace {self.namespace} with the label {DELIVER_LABEL}=true: create it, and label it if "
            "clusters may have it"
        )

    def copies(self, resolved: ResolvedScorer, cluster: str = "") -> dict[str, SecretCopy]:
        """The Secrets delivered with this scorer, which are deliverable, by their names on this cluster."""
        secrets = self.secrets or {}
        names = (secret.names_on(cluster) for _, secret in _named(resolved))
        return {there: SecretCopy(name, secrets[name][1] - len(name) + len(there)) for name, there in names}

    def with_targets(self, authentications: Iterable[object], clusters: Iterable[ClusterFacts]) -> DeliverableSecrets:
        """Unreleased are also the names under which clusters get Secrets that are released for no server."""
        names = [cluster.name for cluster in clusters]
        targets: set[str] = set()
        for authentication in authentications:
            if (
                isinstance(authentication, ScoringAuthentication)
                and authentication.metadata.namespace == self.namespace
            ):
                for secret in authentication.spec.secret_delivery:
                    targets.update(self._unreleased_targets(secret, names))
        return replace(self, unreleased=self.unreleased | targets)

    def _unreleased_targets(self, secret: DeliveredSecret, clusters: Iterable[str]) -> Iterator[str]:
        for cluster in clusters if secret.is_per_cluster else ("",):
            with contextlib.suppress(ValueError):
                name, there = secret.names_on(cluster)
                if name in self.unreleased:
                    yield there


#: For a hub that delivers no Secrets.
NO_DELIVERY: Final = DeliverableSecrets()


def _problem(secret: Manifest) -> str:
    if (secret["metadata"].get("labels") or {}).get(MANAGED_BY_LABEL) == MANAGED_BY:
        return f"is the framework's own, by its label {MANAGED_BY_LABEL}"
    if sum(len(value) for value in (secret.get("data") or {}).values()) > MAX_SIZE:
        return f"has more than {MAX_SIZE // 1024} KiB in base64"
    return ""


def _usable_for(secret: Manifest) -> str:
    return (secret["metadata"].get("annotations") or {}).get(USABLE_FOR) or ""


def _size(secret: Manifest) -> int:
    # The agents' namespace may have any name.
    # The longest name of a namespace.
    return manifestwork.compute_size(copy_for("x" * 63, secret))


def is_per_cluster(resolved: ResolvedScorer) -> bool:
    """True if these Secrets depend on the cluster."""
    return any(secret.is_per_cluster for _, secret in _named(resolved))


def check(resolved: ResolvedScorer, delivery: DeliverableSecrets, cluster: str = "") -> None:
    """Raise ResolutionError unless all Secrets of the scorer's ScoringAuthentications are deliverable.

    Without a cluster those of each cluster are left out.
    """
    names: dict[str, str] = {}
    for authentication, secret in _named(resolved):
        source_name, problem = secret.name, _general_refusal(authentication.metadata.namespace, delivery)
        if not problem and (cluster or not secret.is_per_cluster):
            try:
                source_name, there = secret.names_on(cluster)
            except ValueError as error:
                problem = f"has no possible name on cluster {cluster}: {error}"
            else:
                problem = delivery.refusal(source_name)
                if names.setdefault(there, source_name) != source_name:
                    problem = f"and Secret {names[there]!r} would both be {there!r} there: set another targetName"
        if problem:
            raise ResolutionError(
                ResolveReason.SecretNotDelivered,
                f"secretDelivery of ScoringAuthentication {authentication.metadata.name!r}: "
                f"Secret {source_name!r} {problem}",
            )


class Targets:
    """The Secrets of one cluster by their names there: OCM refuses a ManifestWork with two of one name."""

    def __init__(self) -> None:
        self._taken: dict[str, tuple[str, str]] = {}

    def take(self, scorer: str, copies: Mapping[str, SecretCopy]) -> str:
        """Add a scorer's; why not, if one of these names is another's."""
        for there, copy in copies.items():
            source, owner = self._taken.get(there, (copy.name, ""))
            if source != copy.name:
                return (
                    f"Secret {copy.name!r} would be {there!r} there, as Secret {source!r} of scorer {owner} is "
                    "already: set another targetName in secretDelivery"
                )
        self._taken |= {there: (copy.name, scorer) for there, copy in copies.items()}
        return ""


def check_foreign(summary: ScorerSummary, delivery: DeliverableSecrets) -> None:
    """Raise ResolutionError if a scorer of another namespace uses a Secret of the hub's that is released for no server:
    a ScoringAuthentication there could bind it to any."""
    names = {reference.name for reference in summary.references if reference.kind is CaKind.Secret}
    for name in sorted(names & delivery.unreleased):
        raise ResolutionError(
            ResolveReason.SecretNotDelivered,
            f"Secret {name!r} is delivered for scorers in namespace {delivery.namespace} only; its owner may "
            f"release it for servers with the annotation {USABLE_FOR}",
        )


def _general_refusal(namespace: str, delivery: DeliverableSecrets) -> str:
    if delivery.secrets is None:
        return "is not delivered: this hub delivers no Secrets (hubSetting.secretDelivery of the chart)"
    if namespace != delivery.namespace:
        return f"is not delivered: only ScoringAuthentications in namespace {delivery.namespace} may have that"
    return ""


def _named(resolved: ResolvedScorer) -> Iterator[tuple[ScoringAuthentication, DeliveredSecret]]:
    for authentication in resolved.authentications:
        for secret in authentication.spec.secret_delivery:
            yield authentication, secret


def copy_for(agent_namespace: str, secret: Manifest, name: str = "") -> Manifest:
    """The Secret as delivered, by another name if given. Other metadata stays on the hub: kubectl records all values in
    an annotation."""
    metadata: dict[str, Any] = {"name": name or secret["metadata"]["name"], "namespace": agent_namespace}
    # An empty annotation is written too, which releases the Secret for nothing: an annotation that is only left out
    # stays on the cluster.
    metadata["annotations"] = {USABLE_FOR: _usable_for(secret)}
    data = secret.get("data") or {}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata,
        "type": secret.get("type", "Opaque"),
        "data": data,
    }
