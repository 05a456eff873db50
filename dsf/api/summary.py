"""`ScorerSummary`: an agent's configuration of a scorer, in the ConfigMap `dynamic-scoring-config`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictInt, ValidationError
from pydantic.alias_generators import to_camel

from dsf.api.authentication import POD_IDENTITY, CaKind, Reference, ServerAccess
from dsf.api.expressions import ScoreInput, compile_cached
from dsf.api.problems import Mistake, explain
from dsf.api.score import compute_default_validity
from dsf.api.scorerule import Aggregate, ScoreRule
from dsf.errors import ManifestError
from dsf.expression import Expression

DEFAULT_TIMEOUT_SECONDS: Final = 30


def _parse_access(value: Any) -> Any:
    """Parse an authentication, so that unknown settings by a newer hub fail only the cycles of that scorer."""
    if not isinstance(value, dict):
        return value
    try:
        return ServerAccess.model_validate(value, by_alias=True, by_name=False)
    except ValidationError as error:
        return ServerAccess(problem="; ".join(str(mistake) for mistake in explain(error, ServerAccess, value)))


_CONFIG: Final = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True)


class SourceSummary(BaseModel):
    """A further source of a scorer; the first source is in the fields `source_*` of ScorerSummary."""

    model_config = _CONFIG

    name: str = ""
    type: str = ""
    endpoint: str = ""
    endpoint_auth_name: str = ""
    endpoint_auth_key: str = ""
    query: str = ""
    range: StrictInt = Field(default=0, ge=0)
    step: StrictInt = Field(default=0, ge=0)
    access: Annotated[ServerAccess | None, BeforeValidator(_parse_access)] = None
    method: str | None = None
    options: dict[str, Any] | None = None

    @property
    def first_source_fields(self) -> dict[str, Any]:
        """The fields of ScorerSummary that have this source as the first one."""
        fields = {f"source_{name}": getattr(self, name) for name in SourceSummary.model_fields}
        return fields | {"source_name": self.name or None}


class ScorerSummary(BaseModel):
    """A scorer as an agent runs it. Endpoints are whole URLs, durations are in seconds, and unset texts are empty.

    The first 16 fields and their order are upstream's, because agents of other versions also read them. Fields such as
    `source_type` are text and not enums, so that a value that an older agent does not know affects only that scorer.
    """

    model_config = _CONFIG

    name: str = Field(min_length=1)
    score_name: str = Field(min_length=1)
    source_type: str = ""
    source_endpoint: str = ""
    source_endpoint_auth_name: str = ""
    source_endpoint_auth_key: str = ""
    source_query: str = ""
    source_range: StrictInt = Field(default=0, ge=0)
    source_step: StrictInt = Field(default=0, ge=0)
    scoring_endpoint: str = ""
    scoring_interval: StrictInt = Field(default=0, ge=0)
    scoring_endpoint_auth_name: str = ""
    scoring_endpoint_auth_key: str = ""
    location: str = ""
    score_destination: str = ""
    score_dimension_format: str = ""
    # The framework's own fields; missing ones have their defaults.
    timeout_seconds: StrictInt = Field(default=DEFAULT_TIMEOUT_SECONDS, ge=1)
    max_retries: StrictInt = Field(default=2, ge=0)
    validity_seconds: StrictInt = Field(
        default_factory=lambda data: compute_default_validity(data.get("scoring_interval", 0)), ge=1
    )
    # Set if a source or scoring API needs more than a token in upstream's format.
    source_access: Annotated[ServerAccess | None, BeforeValidator(_parse_access)] = None
    scoring_access: Annotated[ServerAccess | None, BeforeValidator(_parse_access)] = None
    # Formats after the first one. The hub builds the items; an agent only explains them.
    more_dimension_formats: tuple[str, ...] | None = None
    # Set with aggregation. The hub aggregates results; an agent only explains it.
    aggregate_by: tuple[str, ...] | None = None
    aggregate_with: str | None = None
    # Set with several sources: name of the first source, and the further sources.
    source_name: str | None = None
    sources: tuple[SourceSummary, ...] | None = None
    # HTTP method of range queries; unset for GET.
    source_method: str | None = None
    # Parameters of a source type of a plug-in.
    source_options: dict[str, Any] | None = None
    # Namespace of a scorer outside of the hub's own namespace. An agent divides its threads among namespaces.
    namespace: str | None = None
    # Set without a scoring API: the expression, the labels of the cluster if the expression reads labels, and the
    # scores that the expression combines.
    expression: str | None = None
    cluster_labels: dict[str, str] | None = None
    scores: tuple[ScoreInput, ...] | None = None

    @property
    def formula(self) -> Expression | None:
        """The compiled expression; None with a scoring API. Raises ExpressionError for a word of a newer hub."""
        if self.expression is None:
            return None
        types = tuple(source.source_type for source in self.each_source)
        return compile_cached(self.expression, types, tuple(score.name for score in self.scores or ()))

    @property
    def each_source(self) -> tuple[ScorerSummary, ...]:
        """For each source, in order, the scorer with only this source."""
        if not self.sources:
            return (self,)
        further_sources = (source.first_source_fields for source in self.sources)
        return tuple(self.model_copy(update={"sources": None, **update}) for update in ({}, *further_sources))

    @property
    def rule(self) -> ScoreRule:
        """How its results become a score. Raises pydantic's ValidationError for words of a newer hub."""
        aggregate = None
        if self.aggregate_with:
            aggregate = Aggregate.model_validate({"by": self.aggregate_by or (), "with": self.aggregate_with})
        return ScoreRule.model_validate(
            {
                "score_name": self.score_name,
                "dimension_formats": (self.score_dimension_format, *(self.more_dimension_formats or ())),
                "aggregate": aggregate,
                "destination": self.score_destination or "AddOnPlacementScore",
            }
        )

    def of_namespace(self, namespace: str) -> ScorerSummary:
        """Return a copy for a scorer in this namespace, which is not the hub's own.

        ScoringAuthentications there bind no Secrets, because their authors could send each Secret of a cluster to their
        own servers.
        """
        sources = self.sources and tuple(
            source.model_copy(update={"access": source.access and source.access.unbound}) for source in self.sources
        )
        update = {
            "namespace": namespace,
            "sources": sources,
            "source_access": self.source_access and self.source_access.unbound,
            "scoring_access": self.scoring_access and self.scoring_access.unbound,
        }
        return self.model_copy(update=update)

    @property
    def references(self) -> frozenset[Reference]:
        """The referenced Secrets and ConfigMaps in the agent's namespace."""
        names = [source.source_endpoint_auth_name for source in self.each_source]
        references = {Reference(CaKind.Secret, name) for name in (*names, self.scoring_endpoint_auth_name) if name}
        return frozenset(references.union(*(access.references for access in self.accesses)))

    @property
    def uses_account(self) -> bool:
        """True if the scorer needs tokens of the agent's own account."""
        return any(access.methods.account_use not in ("", POD_IDENTITY) for access in self.accesses)

    @property
    def accesses(self) -> list[ServerAccess]:
        """The accesses to the scorer's servers that need more than a token in upstream's format."""
        accesses = (*(source.source_access for source in self.each_source), self.scoring_access)
        return [access for access in accesses if access is not None]


def dump_summaries(summaries: Iterable[ScorerSummary]) -> str:
    """Return the JSON array for the ConfigMap, sorted by name so that equal sets result in equal texts."""
    sorted_summaries = sorted(summaries, key=lambda summary: (summary.name, summary.score_name))
    return json.dumps(
        [summary.model_dump(mode="json", by_alias=True, exclude_none=True) for summary in sorted_summaries],
        separators=(",", ":"),
    )


def parse_summaries(text: str) -> list[ScorerSummary]:
    """Parse the summaries in the ConfigMap. Unknown keys are ignored, and missing optional keys have their defaults.

    Raises ManifestError naming the element and the field.
    """
    try:
        elements = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"summaries: not JSON ({error})") from None
    if not isinstance(elements, list):
        raise ManifestError("summaries: not a JSON array")
    return [_parse_element(index, element) for index, element in enumerate(elements)]


def _parse_element(index: int, element: Any) -> ScorerSummary:
    try:
        return ScorerSummary.model_validate(element, by_alias=True, by_name=False)
    except ValidationError as error:
        mistakes = (
            Mistake((index, *mistake.location), mistake.text) for mistake in explain(error, ScorerSummary, element)
        )
        raise ManifestError("; ".join(f"summaries{mistake}" for mistake in mistakes)) from None
