"""The section `source` of a scoring API's /config, which describes the time series that the framework fetches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self
from urllib.parse import urlsplit

from dsf.scorer.errors import ScorerError


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A source of any type that the framework knows. Empty or 0 values are left to the DynamicScorer's spec."""

    type: str
    query: str = ""
    #: Seconds before now that are queried.
    range: int = 0
    #: Seconds between two samples.
    step: int = 0
    #: Base URL, such as http://prometheus.monitoring.svc:9090, by which the agent on the cluster reaches the server.
    host: str = ""
    #: Path below the host; for Prometheus the framework's default is /api/v1/query_range.
    path: str = ""

    def __post_init__(self) -> None:
        """Raise ScorerError for an invalid value."""
        for name in ("range", "step"):
            check_seconds(f"source.{name}", getattr(self, name), minimum=0)
        if self.host:
            check_base_url("source.host", self.host)

    def document(self) -> dict[str, Any]:
        """Return the source as JSON for /config."""
        params = {name: value for name in ("query", "range", "step") if (value := getattr(self, name))}
        document: dict[str, Any] = {"type": self.type}
        document |= {name: value for name in ("host", "path") if (value := getattr(self, name))}
        return document | ({"params": params} if params else {})

    def overridden(self, environment: Mapping[str, str], prefix: str) -> Self:
        """Return a copy with the values of the set environment variables `<prefix>SOURCE_<name>`.

        The names are HOST, PATH, QUERY, RANGE and STEP. Raises ScorerError for an invalid value.
        """
        source = self
        for name in ("host", "path", "query", "range", "step"):
            variable = f"{prefix}SOURCE_{name.upper()}"
            text = environment.get(variable)
            if not text or not text.strip():
                continue
            value: Any = read_whole_number(environment, variable) if name in ("range", "step") else text
            try:
                source = replace(source, **{name: value})
            except ScorerError as error:
                raise ScorerError(f"the environment variable {variable}: {error}") from None
        return source


@dataclass(frozen=True, kw_only=True, slots=True)
class Prometheus(Source):
    """Range queries of a Prometheus, or a compatible API. Several queries are joined by `;`."""

    type: str = "Prometheus"

    def __post_init__(self) -> None:
        """Raise ScorerError when query, range or step is missing."""
        # The call is not super(): a dataclass with slots replaces the class that this function was defined in.
        Source.__post_init__(self)
        if not self.query.strip(" ;\t\n"):
            raise ScorerError("Prometheus(query=...): must not be empty")
        for name in ("range", "step"):
            check_seconds(f"source.{name}", getattr(self, name), minimum=1)


def check_seconds(name: str, value: object, *, minimum: int) -> None:
    """Raise ScorerError unless `value` is a whole number of seconds."""
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= 2**31 - 1:
        raise ScorerError(f"{name}: {value!r} is not a whole number of seconds from {minimum} on")


def check_base_url(name: str, url: str) -> None:
    """Raise ScorerError unless `url` is http or https with a host and without a query."""
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and not parts.query and parts.port != 0
    except ValueError:
        is_valid = False
    if "@" in url:
        # Leave the URL out of the message, because it may contain a password.
        raise ScorerError(f"{name}: a URL with a user name or a password; name a Secret with auth.basic in the spec")
    if not is_valid:
        raise ScorerError(f"{name}: {url!r} is not a URL of the form http://host[:port]")


def read_whole_number(environment: Mapping[str, str], variable: str) -> int | None:
    """Return the whole number in an environment variable, None when it is not set.

    Raises ScorerError for an invalid number.
    """
    text = environment.get(variable, "").strip()
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise ScorerError(f"the environment variable {variable} is {text!r}; it must be a whole number") from None
