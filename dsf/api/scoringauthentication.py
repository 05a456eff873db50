"""`ScoringAuthentication`: authentication to servers, shared by many DynamicScorers.

A ScoringAuthentication binds Secrets to servers (`allowedHosts`), so that a reference to it, or to a Secret, cannot
send the Secret elsewhere. The right to write such objects decides where the Secrets of the agents' namespace are sent.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import AfterValidator, Field

from dsf.api.authentication import Methods, Tls
from dsf.api.fieldtypes import Url, make_schema_pattern, make_validator
from dsf.api.meta import Condition, KubernetesObject, Rule, SpecModel, StatusModel
from dsf.api.naming import is_dns_subdomain
from dsf.api.selector import ClusterSelector
from dsf.api.types import (
    AGENT_SECRETS,
    API_VERSION,
    AUTHENTICATION_KIND,
    DELIVER_LABEL,
    PULL_SECRET_NAME,
)
from dsf.api.urls import TokenHosts, get_base_url, is_valid_url
from dsf.text import shorten_url

#: The API server's checks; the models check more.
_SERVER_PATTERN: Final = r"^([hH][tT][tT][pP][sS]?://)?[a-zA-Z0-9._:\[\]-]+$"
_PROXY_PATTERN: Final = r"^[hH][tT][tT][pP]://[a-zA-Z0-9._:\[\]-]+/?$"


def _check_proxy(value: str) -> str:
    if not is_valid_url(value) or not value.lower().startswith("http://") or get_base_url(value) != value.rstrip("/"):
        raise ValueError(f"{shorten_url(value)!r} is not the URL of a proxy of the form http://host[:port]")
    return value


class ClusterFacts(NamedTuple):
    """Properties of a ManagedCluster for overrides and templates."""

    name: str
    labels: Mapping[str, str] = {}
    claims: Mapping[str, str] = {}
    #: Names of its ManagedClusterSets (dsf.api.cluster).
    sets: frozenset[str] = frozenset()


class Override(Methods):
    """Other values for some clusters. Unset fields keep their values."""

    rules = (
        Rule(
            "names no cluster: set clusters, clusterSets or clusterSelector",
            "size(self.clusters) > 0 || size(self.clusterSets) > 0 || has(self.clusterSelector)",
            lambda self: bool(self.clusters or self.cluster_sets or self.cluster_selector),
        ),
    )

    clusters: tuple[Annotated[str, Field(max_length=253)], ...] = Field(
        default=(), description="Names of ManagedClusters.", max_length=1024
    )
    cluster_sets: tuple[Annotated[str, Field(max_length=253)], ...] = Field(
        default=(), description="Names of ManagedClusterSets.", max_length=64
    )
    cluster_selector: ClusterSelector | None = Field(default=None, description="ManagedClusters by their labels.")
    host: Url | None = Field(default=None, description="URL of the server there, without its path.")
    tls: Tls | None = Field(default=None, description="Verification of the server there.")

    def applies_to(self, cluster: ClusterFacts) -> bool:
        """Return True if it applies to the cluster: by name, set or labels."""
        if cluster.name in self.clusters or not cluster.sets.isdisjoint(self.cluster_sets):
            return True
        return self.cluster_selector is not None and self.cluster_selector.matches(cluster.labels)


_CLUSTER: Final = "${cluster}"


def _check_secret_name(name: str) -> str:
    if not is_dns_subdomain(name.replace(_CLUSTER, "c")):
        raise ValueError(f"{name!r} is not a valid name of a Secret; {_CLUSTER} is the only template here")
    if name in (*AGENT_SECRETS, PULL_SECRET_NAME):
        raise ValueError(f"{name} is the agents' own Secret")
    return name


_SecretName = Annotated[str, AfterValidator(_check_secret_name), Field(min_length=1, max_length=253)]


class DeliveredSecret(SpecModel):
    """A Secret of the hub that is delivered to clusters."""

    name: _SecretName = Field(
        description="Name of the Secret in the hub's own namespace, which has the label "
        f"{DELIVER_LABEL}=true. {_CLUSTER} is the cluster's name, for a Secret of each cluster."
    )
    target_name: _SecretName | None = Field(
        default=None, description="Name in the agents' namespace; unset: the same. With the same template."
    )

    @property
    def is_per_cluster(self) -> bool:
        """True if its names depend on the cluster."""
        return _CLUSTER in self.name or _CLUSTER in (self.target_name or "")

    def render_names(self, cluster: str) -> tuple[str, str]:
        """Return the Secret's names on hub and cluster. Raises ValueError for an invalid or reserved name."""
        target_template = self.target_name or self.name
        return _check_secret_name(self.name.replace(_CLUSTER, cluster)), _check_secret_name(
            target_template.replace(_CLUSTER, cluster)
        )


class ScoringAuthenticationSpec(Methods):
    """Authentication and its allowed servers."""

    allowed_hosts: tuple[
        Annotated[str, make_validator(lambda host: TokenHosts([host])), make_schema_pattern(_SERVER_PATTERN, 512)], ...
    ] = Field(
        description="The servers that it applies to: host (any port), host:port, or https://host[:port].",
        min_length=1,
        max_length=64,
    )
    tls: Tls | None = Field(default=None, description="Verification of the servers; unset: the default.")
    proxy_url: Annotated[str, AfterValidator(_check_proxy), make_schema_pattern(_PROXY_PATTERN, 512)] | None = Field(
        default=None,
        alias="proxyURL",
        description="The proxy on the way to the servers, as http://host:port; unset: HTTP_PROXY, HTTPS_PROXY and "
        "NO_PROXY. A scoring API of location Internal is asked without any.",
    )
    secret_delivery: tuple[DeliveredSecret, ...] = Field(
        default=(),
        description="Secrets of the hub that are delivered to clusters whose scorers reference this object, with "
        "each change.",
        max_length=16,
    )
    overrides: tuple[Override, ...] = Field(
        default=(), description="Other values for some clusters; the first match applies.", max_length=256
    )

    def find_override(self, cluster: ClusterFacts) -> Override | None:
        """Return the first override that applies to a cluster; None if none applies."""
        facts, found_override = self._found_overrides.get(cluster.name, (None, None))
        if facts != cluster:
            found_override = next((override for override in self.overrides if override.applies_to(cluster)), None)
            self._found_overrides[cluster.name] = cluster, found_override
        return found_override

    @functools.cached_property
    def _found_overrides(self) -> dict[str, tuple[ClusterFacts, Override | None]]:
        """Results of find_override by cluster name, because many scorers search the same overrides in each plan."""
        return {}


class ScoringAuthenticationStatus(StatusModel):
    """State of a ScoringAuthentication. The hub does not write it yet."""

    conditions: list[Condition] = Field(
        default_factory=list,
        description="The hub writes no conditions yet.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )


class ScoringAuthentication(KubernetesObject):
    """Authentication for all DynamicScorers of its namespace that reference it."""

    api_version: Literal["dynamic-scoring.open-cluster-management.io/v1alpha1"] = API_VERSION
    kind: Literal["ScoringAuthentication"] = AUTHENTICATION_KIND
    spec: ScoringAuthenticationSpec
    status: ScoringAuthenticationStatus = Field(default_factory=ScoringAuthenticationStatus)


#: All objects by `namespace/name`; a text describes the error in an invalid object.
Authentications = Mapping[str, ScoringAuthentication | str]
