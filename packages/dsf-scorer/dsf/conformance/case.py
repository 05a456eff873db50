"""The parameters and state of a check of one scoring API."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from dsf.api.promql import split_queries
from dsf.api.remoteconfig import RemoteConfig, RemoteSource, parse_remote_config
from dsf.api.resolve import DEFAULT_SCORING_PATH
from dsf.api.scoringresponse import ScoringResponse, parse_response
from dsf.api.sourcefields import DEFAULT_PROMETHEUS_PATH
from dsf.api.types import SourceMethod, SourceType
from dsf.api.urls import get_base_url, join_url
from dsf.conformance import samples
from dsf.conformance.report import CheckEnded, fail
from dsf.conformance.samples import RawSeries, Samples
from dsf.conformance.target import HUB_TIMEOUT, Reply, ScoringApiTarget
from dsf.errors import HttpError, RemoteConfigError, ScoringResponseError
from dsf.sources.base import compute_time_range

#: Remedy of each `HttpError.reason`.
_REMEDIES = {
    "connection_failed": "start the service, and check in its log whether it crashes on this request",
    "timeout": "answer faster, or check less with --skip; spec.execution.timeoutSeconds may be raised",
    "redirect": "answer at this URL itself; the framework does not follow redirects",
    "unauthorized": "pass the token with --token-file",
    "too_large": "answer with fewer results or fewer labels",
    "truncated": "check the service's log: it closes the connection within the response",
    "bad_answer": "send a body that matches Content-Encoding",
    "http_error": "check the service's log; a request of this form must be answered with 200",
}


@dataclass
class Case:
    """A check: its parameters, and the responses so far."""

    url: str
    target: ScoringApiTarget
    token: str | None = None
    #: Scoring path of --path; empty: the path in /config.
    path: str = ""
    dimension: str = ""
    recorded: list[RawSeries] | None = None
    #: URL of a Prometheus server that runs the queries; empty: the queries are not run.
    prometheus: str = ""
    #: The HTTP method of these queries, which a DynamicScorer's spec sets.
    method: SourceMethod = SourceMethod.GET
    _series_by_query: dict[tuple[str, str], list[Any]] = field(default_factory=dict)
    _replies: dict[bytes, list[Reply]] = field(default_factory=dict)

    @cached_property
    def health(self) -> Reply:
        """/healthz at the root of the host."""
        return self.target.get(join_url(get_base_url(self.url), "/healthz"))

    @cached_property
    def config_reply(self) -> Reply:
        """The response of the configURL."""
        return self.target.get(self.url)

    @cached_property
    def config(self) -> RemoteConfig | None:
        """/config, if it can be read."""
        if self.config_reply.error is not None:
            return None
        try:
            return parse_remote_config(self.config_reply.body)
        except RemoteConfigError:
            return None

    @cached_property
    def scoring_url(self) -> str:
        """URL for scoring requests. Raises CheckEnded if the host in /config is not a URL."""
        scoring = self.config.scoring if self.config is not None else None
        host = scoring.host if scoring is not None and scoring.host else get_base_url(self.url)
        config_path = scoring.path if scoring is not None else ""
        try:
            return join_url(host, self.path or config_path or DEFAULT_SCORING_PATH)
        except ValueError as error:
            raise fail(str(error), "set scoring.host to a URL, or omit it") from None

    @cached_property
    def samples(self) -> Samples:
        """The series of the scoring requests."""
        return Samples(self.config, self.recorded, self._real_series())

    @property
    def has_series(self) -> bool:
        """True if the framework sends series to the scorer."""
        if self.recorded is not None or self.config is None:
            return True
        source = self.config.first_source
        return source.type is not SourceType.None_ and bool(source.type or source.params.query.strip())

    @property
    def prometheus_sources(self) -> list[RemoteSource]:
        """The sources of /config whose queries run on Prometheus."""
        if self.config is None:
            return []
        return [
            source
            for source in self.config.sources or (self.config.source,)
            if source.type in (SourceType.Prometheus, None) and source.params.query.strip()
        ]

    def _real_series(self) -> list[list[RawSeries]] | None:
        """Return the Prometheus server's series of each query; None unless every query has series."""
        if not self.prometheus or self.recorded is not None or self.config is None or self.config.sources:
            # One Prometheus server cannot replace several sources, because each source may query another server.
            return None
        try:
            series_by_query = [
                self.fetch_series(source, query)
                for source in self.prometheus_sources
                for query in split_queries(source.params.query)
            ]
        except CheckEnded:
            # The item `query` reports the reason.
            return None
        has_all = bool(series_by_query) and all(series and samples.are_series(series) for series in series_by_query)
        return series_by_query if has_all else None

    def fetch_series(self, source: RemoteSource, query: str) -> list[Any]:
        """Return the series that the Prometheus server has for a query. Each query runs once.

        Raises CheckEnded if the server refuses the query.
        """
        key = source.model_dump_json(), query
        if key not in self._series_by_query:
            self._series_by_query[key] = self._query_prometheus(source, query)
        return self._series_by_query[key]

    def _query_prometheus(self, source: RemoteSource, query: str) -> list[Any]:
        params = source.params
        step = max(params.step, 1)
        start, end = compute_time_range(time.time(), max(params.range, 1), step)
        parameters: dict[str, str | int] = {"query": query, "start": start, "end": end, "step": step}
        url = join_url(self.prometheus, source.path or DEFAULT_PROMETHEUS_PATH)
        reply = self.target.run_range_query(url, parameters, self.method)
        if reply.error is not None:
            raise fail(f"{query}: {reply.error}", "correct the query, or the URL of --prometheus")
        try:
            return list(json.loads(reply.body)["data"]["result"])
        except (ValueError, TypeError, KeyError, RecursionError):
            raise fail(
                f"{query}: the response is not that of a range query", "correct the URL of --prometheus"
            ) from None

    def make_request(self, series: list[RawSeries]) -> bytes:
        """Return the scoring request with these series."""
        named_sources = self.config.sources if self.config is not None else None
        return samples.make_request(series, [source.name for source in named_sources or ()])

    @property
    def empty_request(self) -> bytes:
        """The framework's request for a scorer without a source, or without series."""
        return self.make_request([])

    @property
    def main_request(self) -> bytes:
        """A typical scoring request."""
        return self.make_request(self.samples.many() if self.has_series else [])

    def request_scores(self, body: bytes, *, again: bool = False) -> Reply:
        """Return the reply to a scoring request. Sends the same request only once, unless `again` is true."""
        replies = self._replies.setdefault(body, [])
        if again or not replies:
            replies.append(self.target.post(self.scoring_url, body, self.token))
        return replies[-1]

    def list_durations(self, body: bytes) -> list[float]:
        """Return the duration in seconds of each reply to this request."""
        return [reply.seconds for reply in self._replies.get(body, [])]

    def count_dropped(self, body: bytes) -> Counter[str]:
        """Return the number of results that the API left out of its response, by reason.

        Only APIs that are made with `dsf.scorer` report this number.
        """
        try:
            counts = json.loads(self.request_scores(body).body)["dropped"]
            return Counter({str(reason): int(number) for reason, number in counts.items()})
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return Counter()

    def fetch_scores(self, body: bytes, name: str, *, again: bool = False) -> ScoringResponse:
        """Return the scores of a request.

        Raises CheckEnded, which fails the item, with the `name` of the request and the error.
        """
        reply = self.request_scores(body, again=again)
        if reply.error is not None:
            raise make_verdict(name, reply.error)
        try:
            return parse_response(reply.body)
        except ScoringResponseError as error:
            raise fail(f"{name}: {error}", 'answer {"results": [{"metric": {...}, "score": 1.5}]}') from None


def make_verdict(name: str, error: HttpError, *, by_hub: bool = False) -> Exception:
    """Return the error that fails an item because a request was not answered with 200.

    `by_hub` is true for requests that the hub sends, which waits less long than an agent.
    """
    if by_hub and error.reason == "timeout":
        return fail(f"{name}: {error}", f"answer at once; the hub waits {HUB_TIMEOUT:g} s")
    return fail(f"{name}: {error}", _REMEDIES.get(error.reason, _REMEDIES["http_error"]))


def check_refused_results(name: str, response: ScoringResponse, *, accepted_reasons: tuple[str, ...] = ()) -> None:
    """Raise CheckEnded if the framework would refuse results of this response, except for `accepted_reasons`."""
    refused_counts = Counter(
        {reason: count for reason, count in response.refusal_counts.items() if reason not in accepted_reasons}
    )
    if refused_counts:
        counts = ", ".join(f"{count} {reason}" for reason, count in sorted(refused_counts.items()))
        raise fail(
            f"{name}: {refused_counts.total()} results would be refused ({counts})",
            "omit results whose score is not a finite number",
        )
