"""A correct scoring API without the library, and variants with one mistake each."""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse, RedirectResponse
from starlette.concurrency import run_in_threadpool

Results = list[dict[str, Any]]
Score = Callable[[list[dict[str, Any]]], Any]

CONFIG: dict[str, Any] = {
    "name": "hand-made",
    "description": "Mean of the finite values",
    "source": {
        "type": "Prometheus",
        "host": "http://prometheus:9090",
        "params": {"query": "100 * avg by (namespace, pod) (up)", "range": 600, "step": 60},
    },
    "scoring": {"path": "/scoring", "params": {"name": "hand_made", "interval": 30}},
}


def finite(series: dict[str, Any]) -> list[float]:
    """Its values that are numbers."""
    return [value for _, text in series["values"] if math.isfinite(value := float(text))]


def mean(data: list[dict[str, Any]]) -> Results:
    """Return the mean of each series' finite values, as a correct scorer does."""
    return [{"metric": series["metric"], "score": sum(v) / len(v)} for series in data if (v := finite(series))]


def encode_results(results: Any) -> Response:
    """JSON as Python writes it, NaN included."""
    if isinstance(results, Response):
        return results
    return Response(json.dumps({"results": results}), media_type="application/json")


def api(
    score: Score = mean,
    *,
    config: Any = CONFIG,
    health: Callable[[], Any] = lambda: {"status": "ok"},
    prefix: str = "",
    error_status: int | None = 400,
    guard: Callable[[str | None], bool] = lambda _: True,
    method: str = "POST",
    content_type: str = "",
) -> FastAPI:
    """Return the service; every argument is a place for a mistake."""
    app = FastAPI(redirect_slashes=False)

    @app.get("/healthz")
    def healthz() -> Any:
        return health()

    @app.get(f"{prefix}/config")
    def configuration() -> Any:
        return config

    async def scoring(request: Request) -> Response:
        if not guard(request.headers.get("authorization")):
            return JSONResponse({"detail": "no"}, 401)
        body = await request.body()
        try:
            data = json.loads(body)["data"]
            data[:]
        except (ValueError, TypeError, KeyError):
            return encode_results([]) if error_status is None else JSONResponse({"detail": "bad"}, error_status)
        try:
            # In a thread, so that a slow response delays no other one.
            response = encode_results(await run_in_threadpool(score, data))
        except (ArithmeticError, LookupError, ValueError) as error:
            return JSONResponse({"detail": repr(error)}, 500)
        if content_type:
            response.headers["content-type"] = content_type
        return response

    app.add_api_route(f"{prefix}/scoring", scoring, methods=[method])
    return app


def change_config(**scoring: Any) -> dict[str, Any]:
    """/config with other values of `scoring`."""
    return {**CONFIG, "scoring": {**CONFIG["scoring"], **scoring}}


def refuse_counts(count: Callable[[int], bool]) -> Score:
    """Fails for some numbers of series."""

    def score(data: list[dict[str, Any]]) -> Any:
        return JSONResponse({"detail": "too many"}, 500) if count(len(data)) else mean(data)

    return score


def score_naively(data: list[dict[str, Any]], value: Callable[[list[float]], Any]) -> Results:
    """Return a result for each series, including series without values."""
    return [
        {"metric": series["metric"], "score": value([float(text) for _, text in series["values"]])} for series in data
    ]


def without_values(then: Callable[[], Any]) -> Score:
    """Return a mistake with series that have no samples only."""

    def score(data: list[dict[str, Any]]) -> Any:
        results = mean(data)
        if any(not series["values"] for series in data):
            results.append({"metric": {"pod": "x"}, "score": then()})
        return results

    return score


def with_nan(then: Callable[[], Any]) -> Score:
    """Return a mistake with series that have samples, none of them a number."""

    def score(data: list[dict[str, Any]]) -> Any:
        results = mean(data)
        if any(series["values"] and not finite(series) for series in data):
            results.append({"metric": {"pod": "x"}, "score": then()})
        return results

    return score


def score_with_division() -> float:
    """Return a mean without values."""
    return 1 / len([])


def score_slowly(seconds: float, length: int) -> Score:
    """Takes its time for this number of series."""

    def score(data: list[dict[str, Any]]) -> Any:
        time.sleep(seconds if len(data) == length else 0)
        return mean(data)

    return score


def config_with(**params: Any) -> dict[str, Any]:
    """/config with other parameters of the source."""
    source = CONFIG["source"]
    return {**CONFIG, "source": {**source, "params": {**source["params"], **params}}}


def respond_late(seconds: float, response: Any) -> Any:
    """Return a response that takes its time."""
    time.sleep(seconds)
    return response


def score_probabilities(data: list[dict[str, Any]]) -> Results:
    """Probabilities: from 0 to 1 for values of any unit."""
    return [{**result, "score": 1 / (1 + math.exp(-result["score"] / 50))} for result in mean(data)]


def scale_scores(factor: float) -> Score:
    """Means times a factor."""
    return lambda data: [{**result, "score": factor * result["score"]} for result in mean(data)]


def vary_scores(label: bool) -> Score:
    """Never the same twice: in a label or in the value."""
    numbers = itertools.count()

    def score(data: list[dict[str, Any]]) -> Any:
        number = next(numbers)
        return [
            {
                "metric": {**r["metric"], "meta": str(number) if label else ""},
                "score": r["score"] + (not label) * number,
            }
            for r in mean(data)
        ]

    return score


def relabel_scores(labels: Callable[[dict[str, str]], Any]) -> Score:
    """Results with other labels than their series."""
    return lambda data: [{"metric": labels(result["metric"]), "score": result["score"]} for result in mean(data)]


def redirect() -> Response:
    """Elsewhere."""
    return RedirectResponse("/elsewhere", 307)


#: (point, name, application, options of the check)
BROKEN: list[tuple[str, str, Callable[[], FastAPI], tuple[str, ...]]] = [
    ("health", "503", lambda: api(health=lambda: JSONResponse({}, 503)), ()),
    ("health", "later than the hub waits", lambda: api(health=lambda: respond_late(6, {})), ()),
    ("config", "more points than Prometheus gives", lambda: api(config=config_with(range=8_640_000, step=1)), ()),
    ("config", "500", lambda: api(config=JSONResponse({}, 500)), ()),
    ("config", "not JSON", lambda: api(config=PlainTextResponse("name: x")), ()),
    ("config", "a list", lambda: api(config=[]), ()),
    ("config", "range is text", lambda: api(config={**CONFIG, "source": {"params": {"range": "1h"}}}), ()),
    ("config", "no query", lambda: api(config={**CONFIG, "source": {"type": "Prometheus"}}), ()),
    ("config", "no score name", lambda: api(config=change_config(params={"interval": 30})), ()),
    ("config", "no interval", lambda: api(config=change_config(params={"name": "x"})), ()),
    ("config", "host is no URL", lambda: api(config=change_config(host="localhost:8000")), ()),
    ("redirects", "health", lambda: api(health=redirect), ()),
    ("redirects", "config", lambda: api(config=redirect()), ()),
    ("redirects", "scoring", lambda: api(lambda _: redirect()), ()),
    ("paths", "another path", lambda: api(config=change_config(path="/score")), ()),
    ("paths", "prefix forgotten", lambda: api(prefix="/mine"), ("--mine",)),
    ("paths", "GET only", lambda: api(method="GET"), ()),
    ("token", "one is wanted", lambda: api(guard=lambda header: header == "Bearer right"), ()),
    ("token", "it is not this one", lambda: api(guard=lambda header: header == "Bearer other"), ("--token", "right")),
    ("token", "any is taken", lambda: api(guard=lambda header: header is not None), ("--token", "right")),
    ("token", "none is taken as well", lambda: api(guard=lambda h: h in (None, "Bearer right")), ("--token", "right")),
    ("empty", "500", lambda: api(refuse_counts(lambda count: count == 0)), ()),
    ("empty", "not the results", lambda: api(lambda data: mean(data) if data else JSONResponse({})), ()),
    ("one-series", "500", lambda: api(refuse_counts(lambda count: count > 0)), ()),
    ("one-series", "null scores", lambda: api(lambda data: score_naively(data, lambda _: None)), ()),
    ("one-series", "scores as text", lambda: api(lambda data: score_naively(data, lambda _: "1")), ()),
    ("one-series", "not the results", lambda: api(lambda data: JSONResponse({"scores": []}) if data else []), ()),
    ("many-series", "500", lambda: api(refuse_counts(lambda count: count == 20)), ()),
    ("labels", "numbers", lambda: api(relabel_scores(lambda labels: {**labels, "device": 0})), ()),
    ("labels", "none", lambda: api(relabel_scores(lambda _: {})), ()),
    ("labels", "one for all", lambda: api(relabel_scores(lambda _: {"node": "n"})), ()),
    ("labels", "not those of the name", api, ("--dimension", "${node}")),
    ("labels", "one of the name is missing", api, ("--dimension", "${pod};${node}")),
    ("labels", "one of the name is unknown", api, ("--dimension", "${pod};${pods}")),
    ("labels", "no braces around one of the name", api, ("--dimension", "${pod};$namespace")),
    (
        "labels",
        "not enough in the name",
        lambda: api(relabel_scores(lambda s: {**s, "app": "a"})),
        ("--dimension", "${app}"),
    ),
    ("gaps", "500", lambda: api(without_values(score_with_division)), ()),
    ("gaps", "null", lambda: api(without_values(lambda: None)), ()),
    ("nan", "NaN", lambda: api(with_nan(lambda: math.nan)), ()),
    ("nan", "null", lambda: api(with_nan(lambda: None)), ()),
    ("nan", "Infinity", lambda: api(with_nan(lambda: math.inf)), ()),
    ("nan", "500", lambda: api(with_nan(score_with_division)), ()),
    ("unknown-labels", "500", lambda: api(relabel_scores(lambda labels: {"pod": labels["pod"]})), ()),
    ("large", "500", lambda: api(refuse_counts(lambda count: count > 500)), ()),
    ("large", "too slow", lambda: api(score_slowly(7, 1000)), ("--timeout", "6")),
    ("large", "too many results", lambda: api(lambda data: mean(data) * (11 if len(data) > 500 else 1)), ()),
    ("bad-json", "200", lambda: api(error_status=None), ()),
    ("bad-json", "500", lambda: api(error_status=500), ()),
    ("content-type", "scores", lambda: api(content_type="text/plain"), ()),
    ("content-type", "config", lambda: api(config=PlainTextResponse(json.dumps(CONFIG))), ()),
    ("range", "all are published as 0", lambda: api(score_probabilities), ()),
    ("range", "all are limited", lambda: api(scale_scores(1000)), ()),
    ("determinism", "values", lambda: api(vary_scores(label=False)), ()),
    ("determinism", "labels", lambda: api(vary_scores(label=True)), ()),
    (
        "speed",
        "slower than the interval",
        lambda: api(score_slowly(1.1, 20), config=change_config(params={"name": "x", "interval": 1})),
        (),
    ),
]
