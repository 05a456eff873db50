"""Model and parser of a scoring API's `/config` response.

Unknown keys are ignored and null means unset, because scoring APIs have many authors. Values of a wrong type are
rejected, because a guess could score the wrong data.
"""

from __future__ import annotations

import codecs
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, ConfigDict, Field, StrictInt, ValidationError
from pydantic_core import from_json

from dsf.api.fieldtypes import DISTINCT_NAMES, NOT_EMPTY
from dsf.api.meta import ApiModel
from dsf.api.problems import explain, quote_head
from dsf.api.types import MAX_SECONDS, AnySourceType, SourceType
from dsf.api.urls import find_url_problem
from dsf.boundedjson import Bounds, check
from dsf.errors import JsonBoundsError, RemoteConfigError
from dsf.text import has_user

#: Timeout in seconds for /healthz and configURL of a scoring API.
CHECK_TIMEOUT: Final = 5.0
#: Maximum number of sources of a scorer. Each source is queried in a separate thread, and a single scoring request
#: contains the data of all sources.
MAX_SOURCES: Final = 8
SOURCE_NAME_PATTERN: Final = r"^[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$"
#: Maximum size of a response in bytes, after decompression.
MAX_CONFIG_BYTES: Final = 1024 * 1024
#: Limits of a response. Real configurations have a few hundred values.
_BOUNDS: Final = Bounds(MAX_CONFIG_BYTES, 10_000, max_depth=32)
_SOURCE_TYPES: Final = {member.value.lower(): member for member in SourceType}


def _normalize_type(value: Any) -> Any:
    if value == "":
        return None
    return _SOURCE_TYPES.get(value.lower(), value) if isinstance(value, str) else value


class _RemoteModel(ApiModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class RemoteSourceParams(_RemoteModel):
    """Parameters of the query by which a source is read."""

    query: str = Field(default="", description="PromQL; several queries are joined by `;`.")
    range: StrictInt = Field(default=0, description="Queried seconds before now.", le=MAX_SECONDS)
    step: StrictInt = Field(default=0, description="Seconds between two samples.", le=MAX_SECONDS)


class RemoteSource(_RemoteModel):
    """A source of time series."""

    type: Annotated[AnySourceType | None, BeforeValidator(_normalize_type)] = Field(
        default=None, description="Kind of source."
    )
    host: str = Field(default="", description="URL of the source without its path.")
    path: str = Field(default="", description="Path below host.")
    params: RemoteSourceParams = Field(default_factory=RemoteSourceParams, description="Query of the source.")


class RemoteNamedSource(RemoteSource):
    """A source of a scorer with several sources, which have names."""

    name: str = Field(description="Name of the source.", pattern=SOURCE_NAME_PATTERN)


RemoteNamedSources = Annotated[
    tuple[RemoteNamedSource, ...],
    Field(max_length=MAX_SOURCES, json_schema_extra={"minItems": 1}),
    NOT_EMPTY,
    DISTINCT_NAMES,
]


class RemoteScoringParams(_RemoteModel):
    """Name of the score, and the interval of its cycles."""

    name: str = Field(default="", description="Name of the score.")
    interval: StrictInt = Field(default=0, description="Seconds between two cycles.", le=MAX_SECONDS)


class RemoteScoring(_RemoteModel):
    """The URL and the parameters of the scoring API."""

    host: str = Field(default="", description="URL of the scoring API without its path.")
    path: str = Field(default="", description="Path below host.")
    params: RemoteScoringParams = Field(
        default_factory=RemoteScoringParams, description="The score's name and interval."
    )


class RemoteConfig(_RemoteModel):
    """The response of configURL. Empty texts and numbers below 1 are unset."""

    name: str = Field(default="", description="Name of the scoring API.")
    description: str = Field(default="", description="What the score means, for people.")
    source: RemoteSource = Field(default_factory=RemoteSource, description="Source of the time series.")
    sources: RemoteNamedSources | None = Field(default=None, description="Several sources; source is then ignored.")
    scoring: RemoteScoring = Field(default_factory=RemoteScoring, description="Server that computes the scores.")

    @property
    def first_source(self) -> RemoteSource:
        """The source whose series are `data` in the scoring request."""
        return self.sources[0] if self.sources else self.source


def parse_remote_config(body: bytes) -> RemoteConfig:
    """Parse the response of configURL. Raises RemoteConfigError naming field and error."""
    try:
        check(body, _BOUNDS)
        # Unlike the json module, this parser rejects lone surrogates ("\\ud800"), which Redis and Kubernetes cannot
        # store.
        document = from_json(body.removeprefix(codecs.BOM_UTF8))
    except JsonBoundsError as error:
        raise RemoteConfigError(
            f"the /config response is no configuration: {error}; it starts with {quote_head(body)}"
        ) from None
    except ValueError as error:
        raise RemoteConfigError(
            f"the /config response is not JSON ({error}); it starts with {quote_head(body)}"
        ) from None
    if not isinstance(document, dict):
        raise RemoteConfigError(f"the /config response is not a JSON object; it starts with {quote_head(body)}")
    field_names = [field.alias or name for name, field in RemoteConfig.model_fields.items()]
    if document.keys().isdisjoint(field_names):
        # Otherwise, an error such as `{"detail": "Not Found"}` would be a valid configuration without values.
        raise RemoteConfigError(
            f"the /config response is no configuration: it has none of {', '.join(field_names)}; "
            f"it starts with {quote_head(body)}"
        )
    try:
        config = RemoteConfig.model_validate(document, by_alias=True, by_name=False)
    except ValidationError as error:
        mistakes = "; ".join(str(mistake) for mistake in explain(error, RemoteConfig, document))
        raise RemoteConfigError(f"the /config response has mistakes: {mistakes}") from None
    if problem := find_user_problem(config):
        # Reject the whole response, because the status of the scorer would contain the password for many readers.
        raise RemoteConfigError(f"the /config response has mistakes: {problem}")
    return config


def find_user_problem(config: RemoteConfig) -> str:
    """Return a message about the first host with a user name or a password; empty without such a host."""
    hosts = {"source.host": config.source.host, "scoring.host": config.scoring.host}
    hosts |= {f"sources[{source.name}].host": source.host for source in config.sources or ()}
    for field, host in hosts.items():
        if has_user(host):
            return f"{field}: {find_url_problem(host, '')}"
    return ""
