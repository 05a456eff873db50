"""Runs a cycle and records requests, answers and results, without publishing them.

The stages are the agent's (`dsf.cycle`), with an observer. Tokens are sent as by an agent and masked in the report.
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
from dsf.cli.session import agent_settings, by_environment
from dsf.cycle.composite import NoResults, Result
from dsf.cycle.stages import Cycle, Observer, Stages
from dsf.errors import CycleError, DsfError, HttpError, ScoreObjectTooLargeError
from dsf.fleet.inputs import find_stored_results, make_input_view
from dsf.fleet.pairviews import score_view
from dsf.fleet.views import HoldView, InputView, ScoreItem, View
from dsf.http.access import DIRECT, Access, find_alias
from dsf.messages import new_run_id
from dsf.process import hubclock, tracing
from dsf.reasons import RefusalReason
from dsf.settings import Settings
from dsf.sources import Payload
from dsf.sources.base import RequestRecord
from dsf.store.client import connect
from dsf.store.pairs import Pairs
from dsf.store.registry import Registry
from dsf.text import WITHHELD, masked, shown_url

#: Most bytes of a request or a response in the report.
HEAD_BYTES = 400


class QueryView(View):
    """A request to the source."""

    source: str = Field(default="", description="Name of the source, where there are several.")
    query: str
    method: str = "GET"
    url: str
    here: str = Field(default="", description="Address that stands for the URL's host on this machine, as in a demo.")
    sent: list[str] = Field(default_factory=list, description="What goes along with it, without what is secret.")
    status: int | None = None
    seconds: float
    bytes: int = 0
    series: int = 0
    head: str = Field(default="", description="The first bytes of the series that go to the scoring API.")
    warnings: list[str] = Field(default_factory=list, description="What the source says against its answer.")
    reason: str = ""
    message: str = ""


class RequestView(View):
    """The request to the scoring API."""

    url: str
    here: str = Field(default="", description="As in a query.")
    sent: list[str] = Field(default_factory=list, description="What goes along with it, without what is secret.")
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
    """The outcome of one result."""

    result: str = Field(description="As it was sent, shortened.")
    fate: str = Field(description="item, metric (no AddOnPlacementScore requested), replaced or refused")
    name: str = Field(default="", description="Name of the item.")
    value: int | None = Field(default=None, description="Value of the item: rounded down, then clamped to -100..100.")
    note: str = Field(default="", description="Reason of the refusal, or change of the value.")


class ExplainReport(View):
    """One cycle. `outcome` is ok, empty, partial or error; stage, reason and message describe an error, or what of the
    answer does not count."""

    cluster: str
    scorer: str
    score_name: str
    source_type: str
    queries: list[QueryView] = Field(default_factory=list)
    expression: str = Field(default="", description="What scores in place of a scoring API.")
    inputs: list[InputView] = Field(default_factory=list, description="The scores that it combines.")
    request: RequestView | None = None
    response: ResponseView | None = None
    results: list[ResultView] = Field(default_factory=list)
    outcome: str = ""
    stage: str = ""
    reason: str = ""
    message: str = ""
    held: list[ScoreItem] = Field(
        default_factory=list, description="Items in force on the hub of which a hold keeps back a new value."
    )
    hold: HoldView | None = None
    trace: str = Field(default="", description="Id of its OpenTelemetry trace; empty if this process sends none.")


def explained(scorer: str, cluster: str, config: Path | None, save: Path | None) -> ExplainReport:
    """Run one cycle of a scorer as it was delivered to the cluster; `config` is a file with its ConfigMap.

    Raises typer.BadParameter without a configuration and for a file `save` that cannot be written; DsfError.
    """
    settings = agent_settings(cluster)
    with ExitStack() as stack:
        delivery = open_delivery(stack, cluster, settings, config)
        if delivery is None:
            raise typer.BadParameter(
                f"no configuration: DSF_AGENT_CONFIG names none, and {_no_demo()}. On Kubernetes the agent's pod "
                "has it: `kubectl -n dynamic-scoring exec deployment/dynamic-scoring-agent -- dsf explain SCORER`; or "
                "save it there: `kubectl -n dynamic-scoring get configmap dynamic-scoring-config -o yaml`",
                param_hint="--config",
            )
        summary = delivery.summary(scorer, cluster, "it may be masked, not healthy, or not resolved: see `dsf status`")
        http.use(settings)
        try:
            report = run(cluster, summary, settings, delivery, save)
        except OSError as error:
            raise typer.BadParameter(f"cannot be written: {error}", param_hint="--save") from None
    return report if settings.agent_kube else _with_held(report, settings)


def _with_held(report: ExplainReport, settings: Settings) -> ExplainReport:
    """With what the hub holds back of this score, where Redis can be read: agents have no right to it."""
    # The data is an addition that is not worth a long wait.
    settings = settings.model_copy(update={"redis_socket_timeout": min(settings.redis_socket_timeout, 3.0)})
    try:
        with connect(settings, name="dsf-cli", retries=0) as client:
            now = hubclock.hub_time(client)
            state = Pairs(client).state(report.cluster, report.scorer)
            score = score_view(state, Registry(client).scorers(), now)
    except (DsfError, redis.RedisError):
        return report
    items = [item for item in score.items if item.waiting is not None]
    return report.model_copy(update={"held": items, "hold": score.hold})


def _no_demo() -> str:
    if by_environment():
        return "no demo runs with the Redis of DSF_REDIS_URL: unset it, or source the file `env` of a running demo"
    return "no demo runs here"


def run(
    cluster: str, summary: ScorerSummary, settings: Settings, delivery: ClusterDelivery, save: Path | None = None
) -> ExplainReport:
    """Fetch and score like the agent of `cluster`. Errors are in the report; nothing is retried.

    `save` is a file for the scoring request, which is written before the scoring API is asked. Raises OSError.
    """
    recorder = _Seen()
    find_results = _FoundResults(settings, cluster, summary.name)
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
        with tracing.by_hand("explain", keys.run_member(cluster, summary.name, new_run_id())) as trace:
            payload = stages.fetch(cycle)
            request = b"".join(payload.pieces)
            if save is not None:
                save.write_bytes(request)
            stages.score(cycle, request)
    except CycleError as error:
        values = {"outcome": "error", "stage": error.stage, "reason": error.reason, "message": error.message}
    else:
        values = _judged(cluster, recorder, cycle, payload)
    if recorder.exchanges["score"]:
        values["request"] = RequestView(
            url=shown_url(summary.scoring_endpoint),
            here=find_alias(summary.scoring_endpoint),
            sent=recorder.sent.get(("score", None), []),
            bytes=len(request),
            series=payload.series,
            head=recorder.head([request]),
        )
        values["response"] = recorder.response(recorder.exchanges["score"][0])
    report.inputs.extend(
        make_input_view(score, find_results.found.get(score.scorer) or find_results(score.scorer, summary.namespace))
        for score in summary.scores or ()
    )
    # Sources are queried in parallel; the requests of each stay in order.
    order = [source.source_name for source in summary.each_source]
    questions = sorted(recorder.exchanges["fetch"], key=lambda question: order.index(question.source))
    return report.model_copy(
        update=values | {"trace": trace, "queries": [recorder.query(question) for question in questions]}
    )


class _FoundResults:
    """Finds the results of other scorers: in the agent of this pod as its cycles do, elsewhere in the hub's Redis."""

    def __init__(self, settings: Settings, cluster: str, composite: str) -> None:
        self._settings = settings
        self._cluster = cluster
        self._composite = composite
        #: The results by scorer, or why there are none.
        self.found: dict[str, Sequence[Result] | NoResults] = {}

    def __call__(self, scorer: str, namespace: str | None) -> Sequence[Result] | NoResults:
        """Return the valid results of a scorer, or why there are none."""
        read = self._request if self._settings.agent_kube else self._read
        self.found[scorer] = results = read(scorer, namespace)
        return results

    def _request(self, scorer: str, namespace: str | None) -> Sequence[Result] | NoResults:
        """Request the results from the agent."""
        _, port = self._settings.listen_address()
        url = f"http://127.0.0.1:{port}{RESULTS_PATH}"
        params = {"scorer": scorer} | ({"namespace": namespace} if namespace is not None else {})
        try:
            deadline = time.monotonic() + 5.0
            body = http.get(url, deadline=deadline, max_bytes=MAX_RESPONSE_BYTES, params=params, access=DIRECT)
            found = json.loads(body)
            if "results" not in found:
                return NoResults(str(found["problem"]), bool(found["isExpired"]))
            return [(dict(labels), float(score)) for labels, score in found["results"]]
        except HttpError as error:
            return NoResults(f"the agent of this pod has the scores of other scorers, and cannot be asked: {error}")
        except (ValueError, TypeError, KeyError):
            return NoResults(f"another program than the agent answers at {url}")

    def _read(self, scorer: str, namespace: str | None) -> Sequence[Result] | NoResults:
        """Read the results from the hub's Redis."""
        try:
            with connect(self._settings, name="dsf-cli", retries=0) as client:
                if namespace is None:
                    # A summary has no namespace if it is the hub's own.
                    composite = Registry(client).scorers().get(self._composite)
                    namespace = composite.namespace if composite is not None else ""
                return find_stored_results(client, self._cluster, scorer, namespace, hubclock.hub_time(client))
        except (DsfError, redis.RedisError) as error:
            return NoResults(f"the hub's Redis cannot be read: {error}")


class _Seen(Observer):
    """Observer that records the stages, and the secrets to mask."""

    def __init__(self) -> None:
        self.exchanges: defaultdict[str, list[RequestRecord]] = defaultdict(list)
        self.sent: dict[tuple[str, str | None], list[str]] = {}
        #: Per access; renewable tokens extend it during the cycle.
        self._all_secrets: list[Sequence[str]] = []

    def authenticated(self, stage: str, access: Access, source: str | None) -> None:
        """Record the credentials that must be masked."""
        self.sent[stage, source] = list(access.shown)
        self._all_secrets.append(access.secrets)

    @property
    def _secrets(self) -> list[str]:
        return [secret for secrets in self._all_secrets for secret in secrets]

    def queried(self, stage: str, question: RequestRecord) -> None:
        """Record it."""
        self.exchanges[stage].append(question)

    def query(self, question: RequestRecord) -> QueryView:
        """View of one request to the source."""
        error = question.error
        return QueryView(
            source=question.source or "",
            query=question.query,
            method=question.method,
            url=_url(question),
            here=find_alias(question.url) if "://" in question.url else "",
            sent=[*_form(question), *(self.sent.get(("fetch", question.source), []) if "://" in question.url else [])],
            head=self.head(question.pieces),
            warnings=list(question.warnings),
            reason=error.reason if error else "",
            message=masked(str(error), *self._secrets) if error else "",
            series=question.series,
            **self._answer(question),
        )

    def response(self, question: RequestRecord) -> ResponseView:
        """View of the scoring API's response."""
        return ResponseView(head=self.head(question.pieces), **self._answer(question))

    def _answer(self, question: RequestRecord) -> dict[str, Any]:
        status = question.error.status if question.error else HTTPStatus.OK
        return {"status": status, "seconds": question.seconds, "bytes": question.received}

    def head(self, pieces: Sequence[bytes | memoryview]) -> str:
        """Return the first bytes, as text."""
        # Mask before cutting: half a token at the end would stay otherwise.
        masked_text = self.masked(b"".join(pieces))
        return masked_text[:HEAD_BYTES].decode(errors="replace") + ("..." if len(masked_text) > HEAD_BYTES else "")

    def masked(self, data: bytes) -> bytes:
        """Return the data without the secrets."""
        return self.hidden(data.decode(errors="surrogateescape")).encode(errors="surrogateescape")

    def hidden(self, text: str) -> str:
        """Return the text without the secrets."""
        return masked(text, *self._secrets)


def _fates(cluster: str, summary: ScorerSummary, body: bytes, hidden: Callable[[str], str]) -> Iterator[ResultView]:
    """The outcome of each result, in the order of the response. `hidden` removes secrets from a text that is shown."""
    elements = json.loads(body.decode("utf-8-sig"), parse_int=float)["results"]
    if summary.aggregate_with and summary.score_destination != "None":
        candidate_fates = (_fate(cluster, summary, element, "x", hidden) for element in elements)
        yield from (fate for fate in candidate_fates if fate.fate == "refused")
        good = summary.rule.aggregated(parse_response(body).results)
        elements = [{"metric": labels, "score": score} for labels, score in good]
    formats = summary.rule.dimension_formats
    previous_names: set[str] = set()
    named_results: set[int] = set()
    for number, fmt in enumerate(formats):
        fates = [_fate(cluster, summary, element, fmt, hidden) for element in elements]
        # A later result replaces one with the same item name; an earlier format wins over a later one.
        last = {fate.name: index for index, fate in enumerate(fates) if fate.fate == "item"}
        for index, fate in enumerate(fates):
            masked_fate = fate.model_copy(update={"name": hidden(fate.name), "note": hidden(fate.note)})
            if fate.fate == "item" and (last[fate.name] != index or fate.name in previous_names):
                which = "an earlier format" if fate.name in previous_names else "a later result"
                note = f"{which} has the same item name"
                yield masked_fate.model_copy(update={"fate": "replaced", "value": None, "note": note})
            elif fate.fate == "item" or (number == len(formats) - 1 and index not in named_results):
                yield masked_fate
        named_results |= {index for index, fate in enumerate(fates) if fate.fate == "item"}
        previous_names |= last.keys()


def _fate(cluster: str, summary: ScorerSummary, element: Any, fmt: str, hidden: Callable[[str], str]) -> ResultView:
    """Return what becomes of a result by a format."""
    text = hidden(json.dumps(element, ensure_ascii=False))
    result_text = text if len(text) <= HEAD_BYTES else text[:HEAD_BYTES] + "..."
    alone = parse_response(json.dumps({"results": [element]}).encode())
    if not alone.results:
        return ResultView(result=result_text, fate="refused", note=", ".join(alone.refused))
    labels, score = alone.results[0]
    if summary.score_destination == "None":
        return ResultView(result=result_text, fate="metric")
    name = DimensionFormat(fmt, cluster, summary.score_name).render(labels)
    if not name:
        return ResultView(result=result_text, fate="refused", note="empty_dimension")
    value, clamped = to_score_value(score)
    note = f"{score:g} is outside of -100..100" if clamped else ""
    if not clamped and math.floor(score) != score:
        note = f"rounded down from {score:g}"
    return ResultView(result=result_text, fate="item", name=name, value=value, note=note)


def _judged(cluster: str, recorder: _Seen, cycle: Cycle, payload: Payload) -> dict[str, Any]:
    """Return the hub's result for this response."""
    response, summary = cycle.response, cycle.summary
    if response is None:
        raise RuntimeError("the cycle was not scored")
    if summary.expression is None:
        (question,) = recorder.exchanges["score"]
        body = b"".join(question.pieces)
    else:
        scored = [{"metric": labels, "score": score} for labels, score in response.results]
        body = json.dumps({"results": scored}).encode()
    refusal_counts = Counter(response.refused)
    # Only the labels that count tell metrics apart.
    distinct = {frozenset(labels.items()) for labels, _ in response.results}
    result_count, replaced, example = len(response.results), len(response.results) - len(distinct), ""
    results = (
        [] if recorder.masked(body) == WITHHELD.encode() else list(_fates(cluster, summary, body, recorder.hidden))
    )
    if summary.score_destination != "None":
        try:
            ruled = build_rule_items(response.results, summary.rule, cluster)
        except ScoreObjectTooLargeError as error:
            failure = {"outcome": "error", "stage": "publish", "reason": "too_large", "message": str(error)}
            return {"results": results, **failure}
        built = ruled.built
        result_count, replaced, example = len(ruled.results), built.duplicates, built.duplicate
        refusal_counts += built.refused
    outcome = "partial" if refusal_counts else "ok" if response.results else "empty"
    refusal_counts[RefusalReason.DUPLICATE_DIMENSION] = replaced
    remark = make_remark(
        refusal_counts,
        response.refused.total() + result_count,
        example=example,
        series=payload.series,
        note=response.note,
    )
    # The message may have the name of an item, which a server that repeats the token made.
    message = recorder.hidden(remark.message) if remark else ""
    remark_fields = {"reason": remark.reason, "message": message} if remark else {}
    return {"results": results, "outcome": outcome, **remark_fields}


def _url(question: RequestRecord) -> str:
    """Return the requested URL, readable."""
    if "://" not in question.url:
        return question.url
    in_url = question.params and question.method == "GET"
    return shown_url(question.url) + (f"?{urlencode(question.params)}" if in_url else "")


def _form(question: RequestRecord) -> list[str]:
    """Return the parameters in the body of a request by POST."""
    return [f"form {urlencode(question.params)}"] if question.params and question.method == "POST" else []
