"""Runs one cycle step by step and keeps what was seen. Nothing is published.

The steps use the same functions as the agent: the table of sources, the same HTTP with its bounds, the same rules for
results. Tokens are sent as an agent would send them and taken out of everything that is kept.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from pydantic import Field

from dsf import http
from dsf.agent.secrets import SecretError, TokenSource
from dsf.api.dimension import DimensionFormat
from dsf.api.promql import split_queries
from dsf.api.score import build_items, to_score_value
from dsf.api.scoring import parse_response
from dsf.api.summary import ScorerSummary
from dsf.api.types import SourceType
from dsf.errors import CycleError, HttpError, ScoreObjectTooLargeError, ScoringResponseError
from dsf.exporter.views import View
from dsf.http.failures import place, without_token
from dsf.settings import Settings
from dsf.sources import SOURCES, Context, Payload
from dsf.sources.base import HEAD, TAIL
from dsf.sources.held import Held
from dsf.sources.opentelemetry import is_pushed

#: Bytes of a request or an answer that are shown.
HEAD_BYTES = 400
_OK = 200
#: What the source Kubernetes looks at.
_CLUSTER = "nodes and pods of this cluster"


class QueryView(View):
    """One request to the source."""

    query: str
    url: str
    status: int | None = None
    seconds: float
    bytes: int = 0
    series: int = 0
    head: str = Field(default="", description="The first bytes of the series, as they go on to the scoring API.")
    reason: str = ""
    message: str = ""


class RequestView(View):
    """What the scoring API is sent."""

    url: str
    bytes: int
    series: int
    head: str


class ResponseView(View):
    """What the scoring API answers."""

    status: int | None = None
    seconds: float
    bytes: int = 0
    head: str = ""


class ResultView(View):
    """What becomes of one result."""

    result: str = Field(description="As it was sent, shortened.")
    fate: str = Field(description="item, metric (no AddOnPlacementScore is wanted), replaced or refused")
    name: str = Field(default="", description="Name of the item.")
    value: int | None = Field(default=None, description="Value of the item: rounded down, then limited to -100..100.")
    note: str = Field(default="", description="Why refused, or how the value was changed.")


class ExplainReport(View):
    """One cycle. `outcome` is ok, empty, partial or error; stage, reason and message say why it is an error."""

    cluster: str
    scorer: str
    score_name: str
    source_type: str
    queries: list[QueryView] = Field(default_factory=list)
    request: RequestView | None = None
    response: ResponseView | None = None
    results: list[ResultView] = Field(default_factory=list)
    outcome: str = ""
    stage: str = ""
    reason: str = ""
    message: str = ""


@dataclass(frozen=True)
class Cycle:
    """One cycle of one scorer on one cluster."""

    cluster: str
    summary: ScorerSummary
    settings: Settings
    tokens: TokenSource
    #: What sources need besides HTTP, where there is something.
    held: Held | None = None

    def run(self) -> ExplainReport:
        """Fetch and score. What goes wrong is in the report; nothing is tried again."""
        seen: dict[str, Any] = {"queries": []}
        try:
            payload = self._fetch(seen)
            body = self._score(seen, payload)
            self._judge(seen, body)
        except CycleError as error:
            seen |= {"outcome": "error", "stage": error.stage, "reason": error.reason, "message": error.message}
        return ExplainReport(
            cluster=self.cluster,
            scorer=self.summary.name,
            score_name=self.summary.score_name,
            source_type=self.summary.source_type,
            **seen,
        )

    def _fetch(self, seen: dict[str, Any]) -> Payload:
        summary = self.summary
        source = SOURCES.get(summary.source_type)
        if source is None:
            known = ", ".join(sorted(SOURCES))
            raise CycleError(
                "fetch", "unsupported_source", f"source type {summary.source_type!r} is not one of {known}"
            )
        if summary.source_type == SourceType.OpenTelemetry and is_pushed(summary):
            raise CycleError(
                "fetch",
                "unsupported_source",
                "what a collector pushes is in the agent's memory and cannot be shown here",
            )
        token = self._token("fetch", summary.source_endpoint_auth_name, summary.source_endpoint_auth_key)
        now, deadline = time.time(), time.monotonic() + summary.timeout_seconds
        inside: list[bytes] = []
        series = received = 0
        for one in self._single_queries():
            url = _CLUSTER if self.held and one.source_type == SourceType.Kubernetes else _source_url(one, now)
            view: dict[str, Any] = {"query": one.source_query, "url": url}
            started = time.monotonic()
            try:
                payload = source(
                    one, Context(deadline, self.settings.max_source_bytes - received, now, token, self.held)
                )
            except HttpError as error:
                view |= {"status": error.status, "reason": error.reason, "message": str(error)}
                raise CycleError("fetch", error.reason, str(error)) from None
            else:
                matrix = b"".join(payload.pieces)[len(HEAD) : -len(TAIL)]
                view |= {"status": _OK, "bytes": payload.received, "series": payload.series}
                view["head"] = _head(matrix, token)
                inside += [matrix] if matrix else []
                series, received = series + payload.series, received + payload.received
            finally:
                view["seconds"] = time.monotonic() - started
                if view["url"]:
                    seen["queries"].append(QueryView(**view))
        return Payload((HEAD, b",".join(inside), TAIL), series, received)

    def _single_queries(self) -> list[ScorerSummary]:
        """The summary once per query, so that each of them is seen for itself."""
        if self.summary.source_type != SourceType.Prometheus:
            return [self.summary]
        queries = split_queries(self.summary.source_query) or [""]
        return [self.summary.model_copy(update={"source_query": query}) for query in queries]

    def _score(self, seen: dict[str, Any], payload: Payload) -> bytes:
        summary = self.summary
        token = self._token("score", summary.scoring_endpoint_auth_name, summary.scoring_endpoint_auth_key)
        request = b"".join(payload.pieces)
        url = _without_user(summary.scoring_endpoint)
        seen["request"] = RequestView(url=url, bytes=len(request), series=payload.series, head=_head(request, token))
        view: dict[str, Any] = {}
        started = time.monotonic()
        try:
            body = http.post(
                summary.scoring_endpoint,
                request,
                deadline=started + summary.timeout_seconds,
                max_bytes=self.settings.max_scoring_bytes,
                token=token,
            )
        except HttpError as error:
            view["status"] = error.status
            raise CycleError("score", error.reason, str(error)) from None
        else:
            view |= {"status": _OK, "bytes": len(body), "head": _head(body, token)}
            return without_token(body, token)
        finally:
            seen["response"] = ResponseView(seconds=time.monotonic() - started, **view)

    def _judge(self, seen: dict[str, Any], body: bytes) -> None:
        try:
            response = parse_response(body, max_results=self.settings.max_results)
        except ScoringResponseError as error:
            raise CycleError("score", error.reason, str(error)) from None
        seen["results"] = list(self._fates(body))
        if self.summary.score_destination != "None":
            try:
                build_items(
                    response.results, self.summary.score_dimension_format, self.cluster, self.summary.score_name
                )
            except ScoreObjectTooLargeError as error:
                raise CycleError("publish", "too_large", str(error)) from None
        refused = any(result.fate == "refused" for result in seen["results"])
        seen["outcome"] = "partial" if refused else "ok" if response.results else "empty"

    def _fates(self, body: bytes) -> Iterator[ResultView]:
        """What becomes of each result, in the order of the answer."""
        elements = json.loads(body.decode("utf-8-sig"), parse_int=float)["results"]
        fates = [self._fate(element) for element in elements]
        # Of two results with one item name the later one wins.
        last = {fate.name: index for index, fate in enumerate(fates) if fate.fate == "item"}
        for index, fate in enumerate(fates):
            if fate.fate == "item" and last[fate.name] != index:
                note = "a later result has the same item name"
                yield fate.model_copy(update={"fate": "replaced", "value": None, "note": note})
            else:
                yield fate

    def _fate(self, element: Any) -> ResultView:
        text = json.dumps(element, ensure_ascii=False)
        shown = text if len(text) <= HEAD_BYTES else text[:HEAD_BYTES] + "..."
        alone = parse_response(json.dumps({"results": [element]}).encode())
        if not alone.results:
            return ResultView(result=shown, fate="refused", note=", ".join(alone.refused))
        labels, score = alone.results[0]
        if self.summary.score_destination == "None":
            return ResultView(result=shown, fate="metric")
        dimension = DimensionFormat(self.summary.score_dimension_format, self.cluster, self.summary.score_name)
        name = dimension.render(labels)
        if not name:
            return ResultView(result=shown, fate="refused", note="empty_dimension")
        value, clamped = to_score_value(score)
        notes = [f"{score:g} is outside of -100..100"] if clamped else []
        if not clamped and math.floor(score) != score:
            notes = [f"rounded down from {score:g}"]
        return ResultView(result=shown, fate="item", name=name, value=value, note="".join(notes))

    def _token(self, stage: str, name: str, key: str) -> str | None:
        try:
            return self.tokens.token(name, key)
        except SecretError as error:
            raise CycleError(stage, "secret_missing", str(error)) from None


def _source_url(summary: ScorerSummary, now: float) -> str:
    """The URL that is asked, as a person would type it; empty when nobody is asked."""
    if not summary.source_endpoint or summary.source_type != SourceType.Prometheus:
        return _without_user(summary.source_endpoint)
    end = int(now)
    times = {"start": end - summary.source_range, "end": end, "step": summary.source_step}
    return f"{_without_user(summary.source_endpoint)}?{urlencode({'query': summary.source_query, **times})}"


def _without_user(url: str) -> str:
    return place("", url).strip() if url else ""


def _head(data: bytes, token: str | None) -> str:
    # The token goes out of the whole text: out of a part of it, half a token at the end would stay.
    shown = without_token(data, token)
    return shown[:HEAD_BYTES].decode(errors="replace") + ("..." if len(shown) > HEAD_BYTES else "")
