"""`DynamicScorer`: a scorer that a user registered, which computes scores by a scoring API or by an expression.

A cycle of a scorer fetches time series, computes scores from them, and publishes the scores. Values that the scoring
API's `/config` can provide may be empty here. Times are in seconds. The CRD's schema is generated from these models.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import (
    AfterValidator,
    Field,
    SerializerFunctionWrapHandler,
    StrictBool,
    StrictInt,
    model_serializer,
)

from dsf.api.acts import ActResponse
from dsf.api.authentication import Auth, Tls
from dsf.api.expressions import MAX_INPUTS, ScoreInput, compile_cached
from dsf.api.fieldtypes import DISTINCT_NAMES, NOT_EMPTY, RATE_PATTERN, make_validator, parse_rate
from dsf.api.meta import Condition, KubernetesObject, Rule, SpecModel, StatusModel, Time
from dsf.api.objectsource import ObjectSource
from dsf.api.remoteconfig import MAX_SOURCES, SOURCE_NAME_PATTERN, RemoteConfig
from dsf.api.score import DEFAULT_FORMAT
from dsf.api.scorerule import Aggregate, EmptyRule, FailingRule, HoldRule
from dsf.api.selector import ClusterSelector
from dsf.api.types import (
    API_VERSION,
    MAX_SECONDS,
    NAME_CONFLICT,
    OTHER_NAMESPACE,
    SCORER_KIND,
    AnySourceType,
    ConfigSyncMode,
    HealthStatus,
    SourceMethod,
    SourceOptions,
    SourceType,
)
from dsf.api.urls import find_url_problem
from dsf.errors import ExpressionError
from dsf.expression import MAX_EXPRESSION_CHARACTERS

#: Maximum characters of a description that is stored or shown beside the DynamicScorer.
MAX_DESCRIPTION_CHARACTERS: Final = 1024
#: Maximum number of failures in a status, newest first.
MAX_FAILURES: Final = 10

_HTTP_URL_PATTERN = "^[hH][tT][tT][pP][sS]?://.+$"
_INCOMPLETE_SOURCE_MESSAGE: Final = (
    "with configSyncMode None, a source of type Prometheus needs params.query, params.range and params.step here"
)
#: CEL condition on a spec: its configSyncMode is not None. It may only be absent if there is an expression.
_CEL_IS_FULL: Final = "!has(self.configSyncMode) || self.configSyncMode != 'None'"
#: CEL condition on a source `{0}`: it is not of type Prometheus, or it has all parameters of a range query.
_CEL_IS_COMPLETE: Final = (
    "(has({0}.type) ? {0}.type != 'Prometheus' : !has({0}.params) || !has({0}.params.query)) || "
    "(has({0}.params) && has({0}.params.query) && has({0}.params.range) && {0}.params.range > 0"
    " && has({0}.params.step) && {0}.params.step > 0)"
)


def _check_http_url(value: str) -> str:
    if re.fullmatch(_HTTP_URL_PATTERN, value) is None:
        raise ValueError(find_url_problem(value, "a URL that starts with http:// or https://"))
    return value


HttpUrl = Annotated[str, AfterValidator(_check_http_url), Field(json_schema_extra={"pattern": _HTTP_URL_PATTERN})]
#: CEL condition on a spec: it has an expression.
_CEL_HAS_EXPRESSION: Final = "(has(self.scoring) && has(self.scoring.expression))"
DimensionText = Annotated[str, Field(min_length=1, max_length=1024)]
Rate = Annotated[str, make_validator(parse_rate), Field(json_schema_extra={"pattern": RATE_PATTERN})]


class SourceParams(SpecModel):
    """Parameters of the query by which a source is read."""

    query: str | None = Field(
        default=None,
        description="PromQL; several queries are joined by `;`. Required, except for the types Kubernetes, Object and "
        "Scores.",
    )
    range: StrictInt = Field(default=0, description="Queried seconds before now; 0 is unset.", ge=0, le=MAX_SECONDS)
    step: StrictInt = Field(default=0, description="Seconds between two samples; 0 is unset.", ge=0, le=MAX_SECONDS)


ScoreInputs = Annotated[
    tuple[ScoreInput, ...], Field(max_length=MAX_INPUTS, json_schema_extra={"minItems": 1}), NOT_EMPTY, DISTINCT_NAMES
]


class SourceSpec(SpecModel):
    """A source of time series."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "object goes with type Object and only with it",
            "(has(self.type) && self.type == 'Object') == has(self.object)",
            lambda self: (self.type is SourceType.Object) == (self.object is not None),
        ),
        Rule(
            "params.query is required, but for the types Kubernetes and Object",
            "!has(self.params) || has(self.params.query) || (has(self.type) && self.type in ['Kubernetes', 'Object'])",
            lambda self: (
                not self.params
                or self.params.query is not None
                or self.type in (SourceType.Kubernetes, SourceType.Object)
            ),
        ),
        Rule(
            "scores goes with type Scores and only with it",
            "(has(self.type) && self.type == 'Scores') == has(self.scores)",
            lambda self: (self.type is SourceType.Scores) == (self.scores is not None),
        ),
        Rule(
            "the type Scores asks no server: leave out host, path, params, auth and tls",
            "!has(self.scores) || (self.host == '' && self.path == '' && !has(self.params) && !has(self.auth)"
            " && !has(self.tls))",
            lambda self: self.scores is None or not (self.host or self.path or self.params or self.auth or self.tls),
        ),
        Rule(
            "method goes with type Prometheus only",
            "!has(self.method) || !has(self.type) || self.type == 'Prometheus'",
            lambda self: self.method is None or self.type in (None, SourceType.Prometheus),
        ),
    )

    type: AnySourceType | None = Field(
        default=None,
        description="Kind of source: a built-in kind, or the kind of a plug-in in the agents' image, such as "
        "csv.example.com. Unset: Prometheus when there is a query, else None.",
    )
    host: str = Field(default="", description="URL of the source without its path; unset: the host of configURL.")
    path: str = Field(default="", description="Path below host; unset, for Prometheus: /api/v1/query_range.")
    method: SourceMethod | None = Field(
        default=None,
        description="HTTP method of the range query to Prometheus; unset: GET. POST is for queries that are too long "
        "for a URL.",
    )
    params: SourceParams | None = Field(default=None, description="Query of the source.")
    options: SourceOptions | None = Field(
        default=None, description="Options of a plug-in's type; its documentation says which. No secrets: see auth."
    )
    auth: Auth | None = Field(default=None, description="How to authenticate to the source; unset: not at all.")
    tls: Tls | None = Field(default=None, description="Verification of the source; unset: the default.")
    object: ObjectSource | None = Field(
        default=None, description="The objects of the managed cluster to read; only with type Object."
    )
    scores: ScoreInputs | None = Field(
        default=None,
        description="The scores of other scorers that scoring.expression combines; only with type Scores.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["as"]},
    )


SourceName = Annotated[str, Field(pattern=SOURCE_NAME_PATTERN)]


class NamedSource(SourceSpec):
    """A source of a scorer with several sources, which have names."""

    rules = (
        Rule(
            "the type Scores stands in source, not in sources",
            "!has(self.scores)",
            lambda self: self.scores is None,
        ),
    )

    name: SourceName = Field(description="Name of the source: the key of its series in the scoring request.")


NamedSources = Annotated[
    tuple[NamedSource, ...], Field(max_length=MAX_SOURCES, json_schema_extra={"minItems": 1}), NOT_EMPTY, DISTINCT_NAMES
]


class ScoringParams(SpecModel):
    """Name of the score, and the interval of its cycles."""

    name: str = Field(description="Name of the score.")
    interval: StrictInt = Field(description="Seconds between two cycles.", ge=1, le=MAX_SECONDS)


class Scoring(SpecModel):
    """The scoring API, or the expression in its place."""

    expression: Annotated[str, Field(min_length=1, max_length=MAX_EXPRESSION_CHARACTERS)] | None = Field(
        default=None,
        description="A formula in CEL, which the agent evaluates for each series in place of a scoring API, such as "
        "100 * mean. Its value is the score; null: no item.",
    )
    host: str = Field(default="", description="URL of the scoring API without its path; unset: the host of configURL.")
    path: str = Field(default="", description="Path below host; unset: /scoring.")
    params: ScoringParams | None = Field(default=None, description="The score's name and interval.")
    auth: Auth | None = Field(default=None, description="How to authenticate to the scoring API; unset: not at all.")
    tls: Tls | None = Field(default=None, description="Verification of the scoring API; unset: the default.")


class Execution(SpecModel):
    """Limits of cycles, and rules for the published score."""

    timeout_seconds: StrictInt = Field(default=30, description="Seconds one stage of a cycle may take.", ge=1, le=3600)
    max_retries: StrictInt = Field(default=2, description="Retries of a stage within its cycle.", ge=0, le=10)
    rate_limit: Rate | None = Field(
        default=None,
        description="Maximum number of cycles of this scorer in the whole fleet, such as 10/s, 30/m or 100/h.",
    )
    validity_seconds: StrictInt | None = Field(
        default=None,
        description="Seconds until a score expires without a newer one; unset: 3 intervals, at least 300.",
        ge=1,
        le=MAX_SECONDS,
    )
    when_failing: FailingRule = Field(default_factory=FailingRule, description="The published score while cycles fail.")
    when_empty: EmptyRule = Field(
        default_factory=EmptyRule, description="The published score after a cycle that succeeded without results."
    )
    hold: HoldRule | None = Field(
        default=None, description="Holds small and short changes of items back; unset: every change is published."
    )
    suspend: StrictBool = Field(default=False, description="If true, no cycles run. Existing scores expire normally.")


def _has_scoring_api(spec: DynamicScorerSpec) -> bool:
    """Return True if a spec has a field of a scoring API."""
    scoring = spec.scoring
    fields = spec.model_fields_set & {"config_url", "config_sync_mode"}
    return bool(fields or scoring.host or scoring.path or scoring.auth or scoring.tls)


class DynamicScorerSpec(SpecModel):
    """The user's configuration. Fields that `/config` can also set may stay unset here."""

    rules = (
        Rule(
            "either source or sources; several stand in sources, the one for data first",
            "!has(self.sources) || !has(self.source)",
            lambda self: self.sources is None or self.source == SourceSpec(),
        ),
        Rule(
            "configURL and configSyncMode are required, unless there is scoring.expression",
            f"{_CEL_HAS_EXPRESSION} || (has(self.configURL) && has(self.configSyncMode))",
            lambda self: (
                self.scoring.expression is not None or self.model_fields_set >= {"config_url", "config_sync_mode"}
            ),
        ),
        Rule(
            "scoring.expression takes the place of a scoring API: leave out configURL, configSyncMode and the "
            "host, path, auth and tls of scoring",
            f"!{_CEL_HAS_EXPRESSION} || (!has(self.configURL) && !has(self.configSyncMode) && self.scoring.host == ''"
            " && self.scoring.path == '' && !has(self.scoring.auth) && !has(self.scoring.tls))",
            lambda self: self.scoring.expression is None or not _has_scoring_api(self),
        ),
        Rule(
            "a source of type Scores needs scoring.expression",
            f"!has(self.source) || !has(self.source.scores) || {_CEL_HAS_EXPRESSION}",
            lambda self: self.source.scores is None or self.scoring.expression is not None,
        ),
        # Only the API server checks the next two rules. It shows the message to the author immediately. The hub reports
        # the same errors for stored scorers, including their /config: see `dsf.api.sourcefields`.
        Rule(
            _INCOMPLETE_SOURCE_MESSAGE,
            f"{_CEL_IS_FULL} || !has(self.source) || {_CEL_IS_COMPLETE.format('self.source')}",
        ),
        Rule(
            _INCOMPLETE_SOURCE_MESSAGE,
            f"{_CEL_IS_FULL} || !has(self.sources) || self.sources.all(s, {_CEL_IS_COMPLETE.format('s')})",
        ),
    )

    description: str = Field(description="What the score means, for people.")
    # The defaults are factories, because pydantic would write a plain default into the schema of the CRD, although the
    # fields are required without an expression.
    config_url: HttpUrl = Field(
        default_factory=str,
        alias="configURL",
        description="URL of the scoring API's /config. Required without scoring.expression.",
    )
    config_sync_mode: ConfigSyncMode = Field(
        default_factory=lambda: ConfigSyncMode.None_,
        description="Full: configURL is polled and its values win. None: the values here are used. Required without "
        "scoring.expression.",
    )
    location: Literal["Internal", "External"] = Field(
        default="Internal",
        description="Internal: the scoring API is inside a cluster and called without a proxy. External: called "
        "through the proxy of its ScoringAuthentication, or of HTTP_PROXY, HTTPS_PROXY and NO_PROXY.",
    )
    score_destination: Literal["AddOnPlacementScore", "None"] = Field(
        default="AddOnPlacementScore", description="Destination of scores. None: metrics only."
    )
    score_dimension_format: str = Field(
        default="",
        description="Name of a score item. Placeholders: ${cluster} ${node} ${device} ${namespace} ${app} ${pod} "
        "${container} ${meta} ${scoreName}. Unset: ${scoreName}.",
    )
    score_dimension_formats: tuple[DimensionText, ...] = Field(
        default=(),
        description="Additional name formats: each result gives one item per format. scoreDimensionFormat, if set, "
        "is the first. Of two items with one name, the earlier format wins.",
        max_length=8,
    )
    aggregate: Aggregate | None = Field(
        default=None, description="Aggregation of results before they become items; metrics have the original results."
    )
    cluster_selector: ClusterSelector | None = Field(
        default=None, description="Managed clusters on which the scorer runs, by labels; unset: all."
    )
    exposition: Literal["items", "pair", "none"] | None = Field(
        default=None,
        description="The scorer's series in the hub's metrics. items: each item and each cluster; pair: each cluster; "
        "none: sums only. Unset: items while the whole fleet is below the limit of a scrape, else pair or none.",
    )
    source: SourceSpec = Field(default_factory=SourceSpec, description="The source of time series.")
    sources: NamedSources | None = Field(
        default=None,
        description="Several sources in place of source, each with a unique name. A scoring API that supports one "
        "source gets the series of the first.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    scoring: Scoring = Field(default_factory=Scoring, description="The scoring API, or an expression.")
    execution: Execution = Field(
        default_factory=Execution, description="Limits of cycles, and rules for the published score."
    )

    @model_serializer(mode="wrap")
    def _serialize_without_scoring_api(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out the fields of a scoring API if there is an expression, because the API server rejects them then."""
        fields: dict[str, Any] = serialize(self)
        if self.scoring.expression is not None:
            for name in ("configURL", "configSyncMode", "config_url", "config_sync_mode"):
                fields.pop(name, None)
        return fields

    @property
    def expression_error(self) -> str:
        """The compile error of the expression; empty if it compiles or if there is no expression."""
        if self.scoring.expression is None:
            return ""
        sources = self.sources or (self.source,)
        # Choose the types as `dsf.api.sourcefields` does without a `/config`.
        types = tuple(
            str(source.type or (SourceType.Prometheus if source.params and source.params.query else SourceType.None_))
            for source in sources
        )
        try:
            compile_cached(self.scoring.expression, types, tuple(score.name for score in self.source.scores or ()))
        except ExpressionError as error:
            return f"spec.scoring.expression: {error}"
        return ""

    @property
    def short_description(self) -> str:
        """The start of the description. The whole text may have a megabyte, and there is a copy for each score."""
        text = self.description
        return text if len(text) <= MAX_DESCRIPTION_CHARACTERS else f"{text[: MAX_DESCRIPTION_CHARACTERS - 3]}..."

    @property
    def dimension_formats(self) -> tuple[str, ...]:
        """All distinct formats in order; at least one."""
        formats = (self.score_dimension_format, *self.score_dimension_formats)
        return tuple(dict.fromkeys(fmt for fmt in formats if fmt)) or (DEFAULT_FORMAT,)


class ClusterNumbers(StatusModel):
    """Numbers of clusters by state."""

    desired: StrictInt = Field(default=0, description="Clusters that shall run this scorer.", ge=0)
    succeeding: StrictInt = Field(default=0, description="Clusters whose last cycle's score could be written.", ge=0)
    empty: StrictInt = Field(default=0, description="Clusters whose last cycle succeeded and brought no items.", ge=0)
    failing: StrictInt = Field(default=0, description="Clusters whose last cycle failed.", ge=0)


class FailedCycle(StatusModel):
    """A failed cycle: where, at which stage and why it failed."""

    cluster: str = Field(description="Name of the managed cluster.")
    stage: str = Field(description="The stage that failed: fetch, score or publish.")
    reason: str = Field(description="Reason of the failure, as one word for programs.")
    message: str = Field(default="", description="Reason of the failure, as a sentence for people.")
    time: Time = Field(description="Time of the failure.")


class DynamicScorerStatus(StatusModel):
    """State of a DynamicScorer, which the hub writes."""

    health_status: HealthStatus = Field(
        default=HealthStatus.Unknown, description="Result of the last health checks of the scoring API."
    )
    last_synced_config: RemoteConfig | None = Field(
        default=None, description="The last valid response of configURL; only used with configSyncMode Full."
    )
    last_synced_config_time: Time | None = Field(
        default=None,
        description="When configURL first returned lastSyncedConfig.",
    )
    observed_generation: StrictInt = Field(default=0, description="The generation that this status describes.", ge=0)
    conditions: list[Condition] = Field(
        default_factory=list,
        description="Ready sums up Healthy, ConfigSynced, Distributed and Scoring. TLSVerified is present after "
        "verification was off for the first time.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    score_name: str = Field(default="", description="Resolved name of the score; empty until it can be resolved.")
    interval: StrictInt | None = Field(
        default=None,
        description="Current seconds between two cycles: declaredInterval, or an override for all clusters; absent if "
        "declaredInterval is absent.",
        ge=0,
    )
    declared_interval: StrictInt | None = Field(
        default=None,
        description="Seconds between two cycles, as resolved from spec and /config; absent until they can be resolved.",
        ge=0,
    )
    clusters_with_other_interval: StrictInt = Field(
        default=0, description="Clusters with an override that differs from status.interval.", ge=0
    )
    clusters: ClusterNumbers = Field(default_factory=ClusterNumbers, description="Counts over the managed clusters.")
    failures: list[FailedCycle] = Field(
        default_factory=list, description="The most recent failures, newest first.", max_length=MAX_FAILURES
    )
    acts: list[ActResponse] | None = Field(
        default=None,
        description="Results of acts that annotations requested, such as rescore and pause: the newest of each act.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["act"]},
    )


class DynamicScorer(KubernetesObject):
    """A registered scorer: its sources of time series, and the scoring API or expression that scores them."""

    api_version: Literal["dynamic-scoring.open-cluster-management.io/v1alpha1"] = API_VERSION
    kind: Literal["DynamicScorer"] = SCORER_KIND
    spec: DynamicScorerSpec
    status: DynamicScorerStatus = Field(default_factory=DynamicScorerStatus)

    @property
    def is_refused(self) -> bool:
        """True if the hub ignores the scorer, because it is in another namespace or one of its names is in use.

        Scorers in several namespaces may have the same name, and the hub uses only one of them.
        """
        return any(condition.reason in (OTHER_NAMESPACE, NAME_CONFLICT) for condition in self.status.conditions)
