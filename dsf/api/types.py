"""Fixed names of the framework, and enums, among them source types and the reasons why a scorer cannot run.

Other programs rely on every value in this file: changing one is a breaking change.
"""

from __future__ import annotations

import reprlib
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import JsonValue, PlainValidator, WithJsonSchema

from dsf.api.naming import MAX_NAME_LENGTH, is_dns_subdomain

#: API group and version of the framework's own kinds.
GROUP: Final = "dynamic-scoring.open-cluster-management.io"
VERSION: Final = "v1alpha1"
API_VERSION: Final = "dynamic-scoring.open-cluster-management.io/v1alpha1"
SCORER_KIND: Final = "DynamicScorer"
CONFIG_KIND: Final = "DynamicScoringConfig"
AUTHENTICATION_KIND: Final = "ScoringAuthentication"

#: OCM's kinds that the framework reads or writes.
CLUSTER_API_VERSION: Final = "cluster.open-cluster-management.io/v1"
CLUSTER_KIND: Final = "ManagedCluster"
SCORE_API_VERSION: Final = "cluster.open-cluster-management.io/v1alpha1"
SCORE_KIND: Final = "AddOnPlacementScore"

#: Condition reasons of an ignored scorer: its namespace is not served, or another scorer has its name.
OTHER_NAMESPACE: Final = "OtherNamespace"
NAME_CONFLICT: Final = "ScoreNameConflict"
#: Condition reason of an object that was deleted and that finalizers keep.
TERMINATING: Final = "Terminating"
#: Name of the only effective DynamicScoringConfig, which is in the hub's own namespace.
CONFIG_NAME: Final = "dynamic-scoring-config"
#: Finalizer that upstream's manager adds to each object of this name. Before such an object goes, all ManifestWorks
#: with scorers must be deleted.
UPSTREAM_FINALIZER: Final = f"{GROUP}/dynamic-scoring-config-finalizer"
#: Finalizers of a DynamicScoringConfig whose programs no longer run. The hub removes these finalizers.
OBSOLETE_FINALIZERS: Final = frozenset({UPSTREAM_FINALIZER, f"{GROUP}/cleanup"})
#: Names of the ManifestWork in each cluster's namespace, and of the ConfigMap that it delivers to the managed cluster.
MANIFESTWORK_NAME: Final = "dynamic-scoring-config-manifestwork"
CONFIGMAP_NAME: Final = "dynamic-scoring-config"
#: Key in the ConfigMap with the JSON array of ScorerSummary.
SUMMARIES_KEY: Final = "summaries"

#: Names of the Secret with an agent's credentials, and of the ManifestWork that delivers it.
CREDENTIALS_NAME: Final = "dynamic-scoring-agent-credentials"
CREDENTIALS_WORK_NAME: Final = "dynamic-scoring-credentials-manifestwork"
#: Keys in this Secret: the signing key for results, the password of the cluster's Redis user (if clusters have users),
#: and the password of the Sentinels, which all agents share (if the Sentinels need one).
CREDENTIALS_KEY: Final = "signing-key"
REDIS_PASSWORD_KEY: Final = "redis-password"  # noqa: S105 - the key in a Secret
SENTINEL_PASSWORD_KEY: Final = "sentinel-password"  # noqa: S105 - the key in a Secret
#: Annotation of this ManifestWork with the ids of the valid keys, which are not secret.
KEY_IDS_ANNOTATION: Final = "dynamic-scoring.open-cluster-management.io/key-ids"
#: Name of the agents' ServiceAccount.
AGENT_ACCOUNT: Final = "dynamic-scoring-agent-sa"
#: Name of a ServiceAccount without rights, whose tokens agents send to servers.
TOKEN_ACCOUNT: Final = "dynamic-scoring-agent-tokens"  # noqa: S105 (a name)
#: Name on the managed cluster of the pull Secret that the hub delivers, as in upstream.
PULL_SECRET_NAME: Final = "hub-registry-secret"  # noqa: S105 - the name of a Secret
#: Label or annotation of a Secret on a managed cluster that lists the servers to which scorers may send its tokens.
USABLE_FOR: Final = f"{GROUP}/usable-for"
#: Label of Secrets on the hub that may be delivered to clusters, with the value true.
DELIVER_LABEL: Final = f"{GROUP}/deliver"

ADDON_NAME: Final = "dynamic-scoring-framework"
#: The Secrets with an agent's own credentials: the framework's, and OCM's with its kubeconfig for the hub.
AGENT_SECRETS: Final = frozenset((CREDENTIALS_NAME, f"{ADDON_NAME}-hub-kubeconfig"))
AGENT_NAME: Final = "dynamic-scoring-agent"
HUB_NAMESPACE: Final = "open-cluster-management"
AGENT_NAMESPACE: Final = "dynamic-scoring"

#: Maximum seconds in a field, which is the maximum of a Go int32.
MAX_SECONDS: Final = 2**31 - 1

#: Labels of every object the framework writes.
MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"
MANAGED_BY: Final = "dynamic-scoring-framework"
SCORER_NAME_LABEL: Final = "dynamic-scoring.open-cluster-management.io/scorer-name"

#: Label of a ManagedCluster with the name of its ManagedClusterSet.
CLUSTER_SET_LABEL: Final = "cluster.open-cluster-management.io/clusterset"

#: Annotation of an object in the out folder of a hub on a folder: its source file, relative to the manifests.
FILE_ANNOTATION: Final = "dynamic-scoring.open-cluster-management.io/manifest"
#: Annotation of a DynamicScorer with the RFC 3339 time until which it gets no ticks. `dsf.api.acts` has the annotations
#: for acts.
PAUSED_UNTIL_ANNOTATION: Final = "dynamic-scoring.open-cluster-management.io/paused-until"

#: The one condition of an AddOnPlacementScore; type and reason are the same word (OCM enhancement 32).
SCORE_CONDITION: Final = "AddOnPlacementScoreUpdated"

#: Labels of a result that the framework uses; others are dropped.
UsedLabel = Literal["node", "device", "namespace", "app", "pod", "container", "meta"]
USED_LABELS: Final[tuple[str, ...]] = get_args(UsedLabel)


class HealthStatus(StrEnum):
    """Result of the last health checks of a scoring API."""

    Active = "Active"
    Inactive = "Inactive"
    Unknown = "Unknown"


class ConfigSyncMode(StrEnum):
    """Whether the hub reads the `/config` of a scoring API, whose values override fields of the DynamicScorer."""

    Full = "Full"
    None_ = "None"


class SourceType(StrEnum):
    """Source of a scoring API's time series."""

    Prometheus = "Prometheus"
    OpenTelemetry = "OpenTelemetry"
    Kubernetes = "Kubernetes"
    Object = "Object"
    #: Scores of other scorers of the cluster.
    Scores = "Scores"
    None_ = "None"


class SourceMethod(StrEnum):
    """HTTP method of a range query: parameters in the URL, or as a form in the body."""

    GET = "GET"
    POST = "POST"


class ConditionType(StrEnum):
    """The conditions of a DynamicScorer."""

    Healthy = "Healthy"
    ConfigSynced = "ConfigSynced"
    Distributed = "Distributed"
    Scoring = "Scoring"
    #: Present after the scorer has disabled the verification of certificates for a server.
    TLSVerified = "TLSVerified"
    #: Summary of all other conditions, also of a DynamicScoringConfig. False requires an action, Unknown is temporary.
    Ready = "Ready"


class ResolveReason(StrEnum):
    """Why a scorer cannot run: the reason of its condition `ConfigSynced=False`."""

    MissingScoreName = "MissingScoreName"
    InvalidScoreName = "InvalidScoreName"
    MissingInterval = "MissingInterval"
    MissingQuery = "MissingQuery"
    MissingRange = "MissingRange"
    MissingStep = "MissingStep"
    MissingObject = "MissingObject"
    InvalidSources = "InvalidSources"
    InvalidURL = "InvalidURL"
    InvalidTokenSecretRef = "InvalidTokenSecretRef"
    InvalidAuthentication = "InvalidAuthentication"
    MissingAuthentication = "MissingAuthentication"
    HostNotAllowed = "HostNotAllowed"
    SecretNotDelivered = "SecretNotDelivered"
    UnknownTemplate = "UnknownTemplate"
    MissingClusterValue = "MissingClusterValue"
    UnsafeClusterValue = "UnsafeClusterValue"
    TokenHostMismatch = "TokenHostMismatch"
    InvalidPausedUntil = "InvalidPausedUntil"
    ExpressionInvalid = "ExpressionInvalid"
    InputInvalid = "InputInvalid"
    TooLarge = "TooLarge"
    NoRoom = "NoRoom"


_PART: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_ALLOWED_TYPES: Final = f"{', '.join(SourceType)}; that of a plug-in has a dot, as csv.example.com"
#: CEL rule for the API server. A pattern would do, but its error message is only the pattern.
_TYPE_RULE: Final = {
    "rule": f"self in {[str(member) for member in SourceType]} || self.matches('^{_PART}([.]{_PART})+$')",
    "message": f"must be one of {_ALLOWED_TYPES}",
}


def is_plugin_type(name: str) -> bool:
    """Return True if `name` is a valid type of a plug-in: a DNS subdomain with a dot, such as `csv.example.com`.

    Built-in types never have a dot, so a misspelt or new built-in type is never taken for that of a plug-in.
    """
    return "." in name and is_dns_subdomain(name)


def _parse_source_type(value: Any) -> str:
    """Return a built-in type as a SourceType, a plug-in's type unchanged. Raises ValueError."""
    if isinstance(value, str):
        if value in set(SourceType):
            return SourceType(value)
        if is_plugin_type(value):
            return value
    raise ValueError(f"{reprlib.repr(value)} is not one of {_ALLOWED_TYPES}")


AnySourceType = Annotated[
    str,
    PlainValidator(_parse_source_type),
    WithJsonSchema({"type": "string", "maxLength": MAX_NAME_LENGTH, "x-kubernetes-validations": [_TYPE_RULE]}),
]
#: Parameters of a plug-in, which only the plug-in validates.
SourceOptions = Annotated[
    dict[str, JsonValue], WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True})
]
