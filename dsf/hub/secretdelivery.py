"""Secrets of the hub's own namespace that ScoringAuthentications deliver to clusters. Pure functions.

Both owners must agree: the ScoringAuthentication names the Secret, and the Secret is labelled for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from dsf.api.authentication import CaKind
from dsf.api.resolve import ResolvedScorer
from dsf.api.resolvereason import Reason
from dsf.api.summary import ScorerSummary
from dsf.api.types import DELIVER_LABEL, MANAGED_BY, MANAGED_BY_LABEL, USABLE_FOR
from dsf.backends.protocol import Manifest
from dsf.errors import ResolutionError
from dsf.hub import capacity

#: Characters of all values of one Secret, in base64: it shares a ManifestWork with a cluster's scorers.
MAX_SIZE: Final = 32 * 1024
#: Characters of the longest name of a namespace.
MAX_NAMESPACE: Final = 63


@dataclass(frozen=True)
class Delivery:
    """Deliverable Secrets."""

    #: The hub's own namespace.
    namespace: str = ""
    #: For each labelled Secret there: name, why it is not delivered (empty if it is), bytes of the delivered Secret;
    #: None: delivery is off.
    secrets: tuple[tuple[str, str, int], ...] | None = None
    #: Names of those that do not say themselves which servers may receive them.
    unreleased: frozenset[str] = frozenset()

    @classmethod
    def of(cls, namespace: str, secrets: Iterable[Manifest]) -> Delivery:
        """From the labelled Secrets."""
        listed = list(secrets)
        known = sorted((one["metadata"]["name"], _problem(one), _size(one)) for one in listed)
        unreleased = frozenset(one["metadata"]["name"] for one in listed if not _usable_for(one))
        return cls(namespace, tuple(known), unreleased)

    def sizes(self, names: Iterable[str]) -> dict[str, int]:
        """Bytes of these deliverable Secrets."""
        sizes = {name: size for name, _, size in self.secrets or ()}
        return {name: sizes[name] for name in names}


#: For a hub that delivers no Secrets.
NO_DELIVERY: Final = Delivery()


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
    return capacity.size_of(copy_for("x" * MAX_NAMESPACE, secret))


def wanted(resolved: ResolvedScorer | None) -> frozenset[str]:
    """Names of the Secrets delivered with this scorer."""
    return frozenset(name for _, _, name in _named(resolved))


def check(resolved: ResolvedScorer, delivery: Delivery) -> None:
    """Raise ResolutionError unless all Secrets of the scorer's ScoringAuthentications are deliverable."""
    for namespace, authentication, name in _named(resolved):
        problem = _refusal(namespace, name, delivery)
        if problem:
            raise ResolutionError(
                Reason.SecretNotDelivered,
                f"secretDelivery of ScoringAuthentication {authentication!r}: Secret {name!r} {problem}",
            )


def check_foreign(summary: ScorerSummary, delivery: Delivery) -> None:
    """Raise ResolutionError if a scorer of another namespace uses a Secret of the hub's that is released for no server:
    a ScoringAuthentication there could bind it to any."""
    names = {reference.name for reference in summary.references if reference.kind is CaKind.Secret}
    for name in sorted(names & delivery.unreleased):
        raise ResolutionError(
            Reason.SecretNotDelivered,
            f"Secret {name!r} is delivered for scorers in namespace {delivery.namespace} only; its owner may "
            f"release it for servers with the annotation {USABLE_FOR}",
        )


def _refusal(namespace: str, name: str, delivery: Delivery) -> str:
    if delivery.secrets is None:
        return "is not delivered: this hub delivers no Secrets (hubSetting.secretDelivery of the chart)"
    if namespace != delivery.namespace:
        return f"is not delivered: only ScoringAuthentications in namespace {delivery.namespace} may have that"
    found = next((problem for known, problem, _ in delivery.secrets if known == name), None)
    if found is None:
        return (
            f"is not in namespace {namespace} with the label {DELIVER_LABEL}=true: create it, and label it if clusters "
            "may have it"
        )
    return found


def _named(resolved: ResolvedScorer | None) -> Iterator[tuple[str, str, str]]:
    """(namespace, ScoringAuthentication, Secret)."""
    ways = (*resolved.source_ways, resolved.scoring_way) if resolved is not None else ()
    for way in ways:
        if (one := way.authentication) is not None:
            for secret in one.spec.secret_delivery:
                yield one.metadata.namespace, one.metadata.name, secret.name


def copy_for(agent_namespace: str, secret: Manifest) -> Manifest:
    """The Secret as delivered. Other metadata stays on the hub: kubectl records all values in an annotation."""
    metadata: dict[str, Any] = {"name": secret["metadata"]["name"], "namespace": agent_namespace}
    # Also without one, which releases it for nothing: an annotation that is only left out stays on the cluster.
    metadata["annotations"] = {USABLE_FOR: _usable_for(secret)}
    data = secret.get("data") or {}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata,
        "type": secret.get("type", "Opaque"),
        "data": data,
    }
