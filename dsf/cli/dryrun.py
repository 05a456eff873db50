"""Runs a cycle, and records its requests, responses and results instead of publishing them.

The stages are those of the agent (`dsf.cycle`), with an observer. Requests contain the same tokens as an agent's, and
the report masks them.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import redis
import typer
from pydantic import Field

from dsf import http, keys
from dsf.agent.resultserver import PATH as RESULTS_PATH
from dsf.api.score import DimensionFormat, to_score_value
from dsf.api.scorerule import build_rule_items
from dsf.api.scoringresponse import MAX_RESPONSE_BYTES, make_remark, parse_response
from dsf.api.summary import ScorerSummary
from dsf.cli.delivery import ClusterDelivery, open_delivery
from dsf.cli.session import is_redis_configured, load_agent_settings
from dsf.cycle.composite import NoResults, Result
from dsf.cycle.stages import Cycle, Observer, Stages
from dsf.errors import CycleError, DsfError, HttpError, ScoreObjectTooLargeError
from dsf.fleet.inputs import find_stored_results, make_input_view
from dsf.fleet.pairviews import make_score_view
from dsf.fleet.views import HoldView, InputView, ScoreItem, View
from dsf.http.access import DIRECT, Access, find_alias
from dsf.messages import make_run_id
from dsf.process import hubclock, tracing
from dsf.reasons import RefusalReason
from dsf.settings import Settings
from dsf.sources import Payload
from dsf.sources.base import RequestRecord
from dsf.store.client import connect
from dsf.store.pairs import Pairs
from dsf.store.registry import Registry
from dsf.text import WITHHELD, mask_secrets, shorten_url

#: Maximum number of bytes of a request or a response in the report.
MAX_HEAD_BYTES = 400
#: Maximum seconds to wait for a response of the agent in this pod.
_AGENT_TIMEOUT_SECONDS = 5.0


class QueryView(View):
    """A request to a source, and its response."""

    source: str = Field(default="", description="Name of the source; empty for a scorer with one source.")
    query: str
    method: str = "GET"
    url: str
    alias_address: str = Field(
        default="",
        alias="here",
        description="Address that replaces the URL's host on this machine, as in a demo.",
    )
    request_details: list[str] = Field(
        default_factory=list,
        alias="sent",
        description="Form parameters, headers and credentials of the request, with masked secrets.",
    )
    status: int | None = None
    seconds: float
    bytes: int = 0
    series: int = 0
    head: str = Field(default="", description="First bytes of the series for the scoring API.")
    warnings: list[str] = Field(default_factory=list, description="Warnings in the source's response.")
    reason: str = ""
    message: str = ""


class RequestView(View):
    """The request to the scoring API."""

    url: str
    alias_address: str = Field(
        default="",
        alias="here",
        description="Address that replaces the URL's host on this machine, as in a demo.",
    )
    request_details: list[str] = Field(
        default_factory=list, alias="sent", description="Headers and credentials of the request, with masked secrets."
    )
    bytes: int
    series: int
    head: str


class ResponseView(View):
    """The response of the scoring API."""

    status: int | None = None
    seconds: float
    bytes: int = 0
    head: str = ""


class ResultView(View):
    """A result of the scoring API, and whether it becomes an item."""

    result: str = Field(description="JSON of the result, truncated.")
    fate: str = Field(description="item, metric (no AddOnPlacementScore requested), replaced or refused")
    name: str = Field(default="", description="Name of the item.")
    value: int | None = Field(default=None, description="Value of the item: rounded down, then clamped to -100..100.")
    note: str = Field(default="", description="Reason of the refusal, or change of the value.")


class ExplainReport(View):
    """Report of one cycle. `outcome` is ok, empty, partial or error.

    `stage`, `reason` and `message` describe the error, or the rejected results.
    """

    cluster: str
    scorer: str
    score_name: str
    source_type: str
    queries: list[QueryView] = Field(default_factory=list)
    expression: str = Field(
        default="", description="The expression that computes the scores in place of a scoring API."
    )
    inputs: list[InputView] = Field(default_factory=list, description="The scores that the expression combines.")
    request: RequestView | None = None
    response: ResponseView | None = None
    results: list[ResultView] = Field(default_factory=list)
    outcome: str = ""
    stage: str = ""
    reason: str = ""
    message: str = ""
    withheld_items: list[ScoreItem] = Field(
        default_factory=list, alias="held", description="Items on the hub for which a hold withholds a new value."
    )
    hold: HoldView | None = None
    trace: str = Field(default="", description="Id of the OpenTelemetry trace; empty if this process sends none.")


def run_explain(scorer: str, cluster: str, config: Path | None, save: Path | None) -> ExplainReport:
    """Run one cycle of a scorer with its summary for the cluster, and return the report.

    `config` is a file with the cluster's ConfigMap. `save` is the file to which the scoring request is written. Raises
    typer.BadParameter if there is no configuration, or if `save` cannot be written. Raises DsfError for other errors.
    """
    settings = load_agent_settings(cluster)
    with ExitStack() as stack:
        delivery = open_delivery(stack, cluster, settings, config)
        if delivery is None:
            raise typer.BadParameter(
                f"no configuration: DSF_AGENT_CONFIG names none, and {_describe_missing_demo()}. On Kubernetes the "
                "agent's pod has it: `kubectl -n dynamic-scoring exec deployment/dynamic-scoring-agent -- dsf explain "
                "SCORER`; or save it there: `kubectl -n dynamic-scoring get configmap dynamic-scoring-config -o yaml`",
                param_hint="--config",
            )
        summary = delivery.get_summary(
            scorer, cluster, "it may be masked, not healthy, or not resolved: see `dsf status`"
        )
        http.use(settings)
        try:
            report = run_cycle(cluster, summary, settings, delivery, save)
        except OSError as error:
            raise typer.BadParameter(f"cannot be written: {error}", param_hint="--save") from None
    return report if settings.agent_kube else _add_withheld_items(report, settings)


def _add_withheld_items(report: ExplainReport, settings: Settings) -> ExplainReport:
    """Add the items whose new values the hub withholds. Returns the report unchanged if Redis cannot be read."""
    # Use a short timeout, because the report is useful without these items.
    settings = settings.model_copy(update={"redis_socket_timeout": min(settings.redis_socket_timeout, 3.0)})
    try:
        with connect(settings, name="dsf-cli", retries=0) as client:
            now = hubclock.read_hub_time(client)
            state = Pairs(client).read_state(report.cluster, report.scorer)
            score = make_score_view(state, Registry(client).read_scorers(), now)
    except (DsfError, redis.RedisError):
        return report
    items = [item for item in score.items if item.waiting is not None]
    return report.model_copy(update={"withheld_items": items, "hold": score.hold})


def _describe_missing_demo() -> str:
    if is_redis_configured():
        return "no demo runs with the Redis of DSF_REDIS_URL: unset it, or source the file `env` of a running demo"
    return "no demo runs here"


def run_cycle(
    cluster: str, summary: ScorerSummary, settings: Settings, delivery: ClusterDelivery, save: Path | None = None
) -> ExplainReport:
    """Fetch and score like the agent of `cluster`, without retries. The report also describes errors of the cycle.

    `save` is a file for the scoring request, which is written before the request is sent. Raises OSError if the file
    cannot be written.
    """
    recorder = _CycleRecorder()
    find_results = _ResultFinder(settings, cluster, summary.name)
    stages = Stages(settings, delivery.secrets, delivery.memory, recorder, find_results)
    cycle = Cycle(summary.name, "", summary, math.inf, cluster=cluster)
    report = ExplainReport(
        cluster=cluster,
        scorer=summary.name,
        score_name=summary.score_name,
        source_type=", ".join(dict.fromkeys(source.source_type for source in summary.each_source)),
        expression=summary.expression or "",
    )
    values: dict[str, Any] = {}
    try:
        with tracing.record_manual_run("explain", keys.run_member(cluster, summary.name, make_run_id())) as trace:
            payload = stages.fetch(cycle)
            request = b"".join(payload.pieces)
            if save is not None:
                save.write_bytes(request)
            stages.score(cycle, request)
    except CycleError as error:
        values = {"outcome": "error", "stage": error.stage, "reason": error.reason, "message": error.message}
    else:
        values = _evaluate_results(recorder, cycle, payload)
    if recorder.exchanges["score"]:
        values["request"] = RequestView(
            url=shorten_url(summary.scoring_endpoint),
            alias_address=find_alias(summary.scoring_endpoint),
            request_details=recorder.credential_lines.get(("score", None), []),
            bytes=len(request),
            series=payload.series,
            head=recorder.format_head([request]),
        )
        values["response"] = recorder.make_response_view(recorder.exchanges["score"][0])
    report.inputs.extend(
        make_input_view(
            score, find_results.results_by_scorer.get(score.scorer) or find_results(score.scorer, summary.namespace)
        )
        for score in summary.scores or ()
    )
    # Sort the requests by source, because the sources are queried in parallel. Requests of one source stay in order.
    order = [source.source_name for source in summary.each_source]
    records = sorted(recorder.exchanges["fetch"], key=lambda record: order.index(record.source))
    return report.model_copy(
        update=values | {"trace": trace, "queries": [recorder.make_query_view(record) for record in records]}
    )


class _ResultFinder:
    """Finds the results of other scorers, for the expression of a composite.

    In an agent's pod, it requests the results from the agent, whose cycles use the same results. Elsewhere, it reads
    them from the hub's Redis.
    """

    def __init__(self, settings: Settings, cluster: str, composite: str) -> None:
        self._settings = settings
        self._cluster = cluster
        self._composite = composite
        #: Scorer -> its results, or the reason why there are none.
        self.results_by_scorer: dict[str, Sequence[Result] | NoResults] = {}

    def __call__(self, scorer: str, namespace: str | None) -> Sequence[Result] | NoResults:
        """Return the valid results of a scorer, or the reason why there are none."""
        find = self._request_from_agent if self._settings.agent_kube else self._read_from_redis
        self.results_by_scorer[scorer] = results = find(scorer, namespace)
        return results

    def _request_from_agent(self, scorer: str, namespace: str | None) -> Sequence[Result] | NoResults:
        """Request the results from the agent of this pod."""
        _, port = self._settings.listen_address()
        url = f"http://127.0.0.1:{port}{RESULTS_PATH}"
        params = {"scorer": scorer} | ({"namespace": namespace} if namespace is not None else {})
        try:
            deadline = time.monotonic() + _AGENT_TIMEOUT_SECONDS
            body = http.get(url, deadline=deadline, max_bytes=MAX_RESPONSE_BYTES, params=params, access=DIRECT)
            response = json.loads(body)
            if "results" not in response:
                return NoResults(str(response["problem"]), bool(response["isExpired"]))
            return [(dict(labels), float(score)) for labels, score in response["results"]]
        except HttpError as error:
            return NoResults(f"the agent of this pod has the scores of other scorers, and cannot be reached: {error}")
        except (ValueError, TypeError, KeyError):
            return NoResults(f"the response of {url} is not that of an agent")

    def _read_from_redis(self, scorer: str, namespace: str | None) -> Sequence[Result] | NoResults:
        """Read the results from the hub's Redis."""
        try:
            with connect(self._settings, name="dsf-cli", retries=0) as client:
                if namespace is None:
                    # Read the namespace from the registry, because summaries omit the hub's own namespace.
                    composite = Registry(client).read_scorers().get(self._composite)
                    namespace = composite.namespace if composite is not None else ""
                return find_stored_results(client, self._cluster, scorer, namespace, hubclock.read_hub_time(client))
        except (DsfError, redis.RedisError) as error:
            return NoResults(f"the hub's Redis cannot be read: {error}")


class _CycleRecorder(Observer):
    """Records the requests and responses of the stages, and masks the secrets in them."""

    def __init__(self) -> None:
        #: Stage -> its requests and responses.
        self.exchanges: defaultdict[str, list[RequestRecord]] = defaultdict(list)
        #: Stage and source -> description of the credentials, with masked secrets.
        self.credential_lines: dict[tuple[str, str | None], list[str]] = {}
        #: Secrets of each access. The renewal of a token extends its sequence during the cycle.
        self._all_secrets: list[Sequence[str]] = []

    def on_authenticated(self, stage: str, access: Access, source: str | None) -> None:
        """Record the credentials of a request, and mask their secrets from now on."""
        self.credential_lines[stage, source] = list(access.display_lines)
        self._all_secrets.append(access.secrets)

    @property
    def _secrets(self) -> list[str]:
        return [secret for secrets in self._all_secrets for secret in secrets]

    def on_query(self, stage: str, record: RequestRecord) -> None:
        """Record a request with its response."""
        self.exchanges[stage].append(record)

    def make_query_view(self, record: RequestRecord) -> QueryView:
        """Return the view of a request to the source."""
        error = record.error
        is_http = "://" in record.url
        credential_lines = self.credential_lines.get(("fetch", record.source), []) if is_http else []
        return QueryView(
            source=record.source or "",
            query=record.query,
            method=record.method,
            url=_format_url(record),
            alias_address=find_alias(record.url) if is_http else "",
            request_details=[*_list_form_parameters(record), *credential_lines],
            head=self.format_head(record.pieces),
            warnings=list(record.warnings),
            reason=error.reason if error else "",
            message=self.mask_text(str(error)) if error else "",
            series=record.series,
            **self._make_response_fields(record),
        )

    def make_response_view(self, record: RequestRecord) -> ResponseView:
        """Return the view of the scoring API's response."""
        return ResponseView(head=self.format_head(record.pieces), **self._make_response_fields(record))

    def _make_response_fields(self, record: RequestRecord) -> dict[str, Any]:
        status = record.error.status if record.error else HTTPStatus.OK
        return {"status": status, "seconds": record.seconds, "bytes": record.received}

    def format_head(self, pieces: Sequence[bytes | memoryview]) -> str:
        """Return the first MAX_HEAD_BYTES bytes as text, with masked secrets."""
        # Mask before truncating, because half of a token would not be recognized as a secret.
        data = self.mask_bytes(b"".join(pieces))
        return data[:MAX_HEAD_BYTES].decode(errors="replace") + ("..." if len(data) > MAX_HEAD_BYTES else "")

    def mask_bytes(self, data: bytes) -> bytes:
        """Return the data with masked secrets."""
        return self.mask_text(data.decode(errors="surrogateescape")).encode(errors="surrogateescape")

    def mask_text(self, text: str) -> str:
        """Return the text with masked secrets."""
        return mask_secrets(text, *self._secrets)


def _yield_result_views(
    cluster: str, summary: ScorerSummary, body: bytes, mask_text: Callable[[str], str]
) -> Iterator[ResultView]:
    """Yield a view of each result, in the order of the response.

    `body` is a response of a scoring API. `mask_text` masks the secrets in a text.
    """
    elements = json.loads(body.decode("utf-8-sig"), parse_int=float)["results"]
    if summary.aggregate_with and summary.score_destination != "None":
        # First yield the results that are rejected before aggregation. Use any format: it does not affect them.
        candidate_views = (_make_result_view(cluster, summary, element, "x", mask_text) for element in elements)
        yield from (view for view in candidate_views if view.fate == "refused")
        aggregated_results = summary.rule.aggregate_if_set(parse_response(body).results)
        elements = [{"metric": labels, "score": score} for labels, score in aggregated_results]
    formats = summary.rule.dimension_formats
    previous_names: set[str] = set()
    named_results: set[int] = set()
    for format_number, dimension_format in enumerate(formats):
        views = [_make_result_view(cluster, summary, element, dimension_format, mask_text) for element in elements]
        # A later result replaces an earlier one with the same item name, and an earlier format wins over a later one.
        last_indexes = {view.name: index for index, view in enumerate(views) if view.fate == "item"}
        for index, view in enumerate(views):
            masked_view = view.model_copy(update={"name": mask_text(view.name), "note": mask_text(view.note)})
            if view.fate == "item" and (last_indexes[view.name] != index or view.name in previous_names):
                winner = "an earlier format" if view.name in previous_names else "a later result"
                note = f"{winner} has the same item name"
                yield masked_view.model_copy(update={"fate": "replaced", "value": None, "note": note})
            elif view.fate == "item" or (format_number == len(formats) - 1 and index not in named_results):
                yield masked_view
        named_results |= {index for index, view in enumerate(views) if view.fate == "item"}
        previous_names |= last_indexes.keys()


def _make_result_view(
    cluster: str, summary: ScorerSummary, element: Any, dimension_format: str, mask_text: Callable[[str], str]
) -> ResultView:
    """Return the view of a result, whose item name has this format."""
    text = mask_text(json.dumps(element, ensure_ascii=False))
    result_text = text if len(text) <= MAX_HEAD_BYTES else text[:MAX_HEAD_BYTES] + "..."
    response = parse_response(json.dumps({"results": [element]}).encode())
    if not response.results:
        return ResultView(result=result_text, fate="refused", note=", ".join(response.refusal_counts))
    labels, score = response.results[0]
    if summary.score_destination == "None":
        return ResultView(result=result_text, fate="metric")
    name = DimensionFormat(dimension_format, cluster, summary.score_name).render(labels)
    if not name:
        return ResultView(result=result_text, fate="refused", note="empty_dimension")
    value, is_clamped = to_score_value(score)
    note = f"{score:g} is outside of -100..100" if is_clamped else ""
    if not is_clamped and math.floor(score) != score:
        note = f"rounded down from {score:g}"
    return ResultView(result=result_text, fate="item", name=name, value=value, note=note)


def _evaluate_results(recorder: _CycleRecorder, cycle: Cycle, payload: Payload) -> dict[str, Any]:
    """Evaluate the results as the hub does, and return the fields of the report that describe them."""
    response, summary, cluster = cycle.response, cycle.summary, cycle.cluster
    if response is None:
        raise RuntimeError("the cycle was not scored")
    if summary.expression is None:
        (record,) = recorder.exchanges["score"]
        body = b"".join(record.pieces)
    else:
        elements = [{"metric": labels, "score": score} for labels, score in response.results]
        body = json.dumps({"results": elements}).encode()
    refusal_counts = Counter(response.refusal_counts)
    # Count results with the same labels once, because they are one metric.
    distinct_labels = {frozenset(labels.items()) for labels, _ in response.results}
    result_count, duplicate_count, example = len(response.results), len(response.results) - len(distinct_labels), ""
    is_withheld = recorder.mask_bytes(body) == WITHHELD.encode()
    results = [] if is_withheld else list(_yield_result_views(cluster, summary, body, recorder.mask_text))
    if summary.score_destination != "None":
        try:
            rule_items = build_rule_items(response.results, summary.rule, cluster)
        except ScoreObjectTooLargeError as error:
            failure = {"outcome": "error", "stage": "publish", "reason": "too_large", "message": str(error)}
            return {"results": results, **failure}
        built_items = rule_items.built
        result_count, duplicate_count, example = len(rule_items.results), built_items.duplicates, built_items.duplicate
        refusal_counts += built_items.refusal_counts
    outcome = "partial" if refusal_counts else "ok" if response.results else "empty"
    refusal_counts[RefusalReason.DUPLICATE_DIMENSION] = duplicate_count
    remark = make_remark(
        refusal_counts,
        response.refusal_counts.total() + result_count,
        example=example,
        series_count=payload.series,
        note=response.note,
    )
    # Mask the message: it may contain an item name, in which a server may repeat the token.
    message = recorder.mask_text(remark.message) if remark else ""
    remark_fields = {"reason": remark.reason, "message": message} if remark else {}
    return {"results": results, "outcome": outcome, **remark_fields}


def _format_url(record: RequestRecord) -> str:
    """Return the requested URL, with the parameters of a GET request, for the report."""
    if "://" not in record.url:
        return record.url
    has_query = record.params and record.method == "GET"
    return shorten_url(record.url) + (f"?{urlencode(record.params)}" if has_query else "")


def _list_form_parameters(record: RequestRecord) -> list[str]:
    """Return the parameters in the body of a POST request."""
    return [f"form {urlencode(record.params)}"] if record.params and record.method == "POST" else []
