"""`dsf scorer check` against real services: correct ones pass, and every mistake fails exactly its own item."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from typer.testing import Result

from dsf.conformance.run import NAMES
from dsf.scorer import Bearer, Prometheus, Score, Scorer, ScorerApp, Series, Source, Sources
from tests.support.commandline import dsf
from tests.support.scoringservices import served, set_hub_timeout

from .broken import BROKEN, CONFIG, api, change_config, config_with, mean, relabel_scores, respond_late, scale_scores


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow more time for responses, because a busy machine delays them; tests of late responses set the hub's
    timeout.
    """
    set_hub_timeout(monkeypatch, 60)


def run(*arguments: str) -> Result:
    return dsf("scorer", "check", *arguments)


def check(url: str, *options: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Run the check, and return the exit code and the outcome by item."""
    result = run(url, "-o", "json", *options)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    report = json.loads(result.stdout)
    assert report["conformant"] is (result.exit_code == 0)
    assert tuple(point["point"] for point in report["points"]) == NAMES
    return result.exit_code, {point["point"]: point for point in report["points"]}


def by_outcome(points: dict[str, dict[str, Any]], outcome: str) -> set[str]:
    return {name for name, point in points.items() if point["outcome"] == outcome}


def test_correct_scoring_api_passes_all_checks() -> None:
    with served(api()) as url:
        code, points = check(f"{url}/config", "--dimension", "${namespace};${pod}")
    assert code == 0
    assert by_outcome(points, "pass") == set(NAMES) - {"token", "query"}, points
    assert points["labels"]["message"] == "20 names such as 'namespace-0;pod-0'"


def test_scorer_of_several_sources_passes_the_checks() -> None:
    query = Prometheus(query="avg by (pod) (100 * up)", range=600, step=60, host="http://prometheus.example")
    app = Scorer(
        name="n",
        description="d",
        score_name="s",
        interval=30,
        sources={"load": query, "power": Source(type="Kubernetes")},
    )

    @app.score_sources
    def both(sources: Sources) -> Iterable[Score]:
        for load, other in zip(sources["load"], sources["power"], strict=True):
            if len(load.finite()) and len(other.finite()):
                yield load.score((load.finite().values.mean() + other.finite().values.mean()) / 4)

    with served(app) as url:
        code, points = check(f"{url}/config", "--skip", "large")
    assert (code, by_outcome(points, "fail")) == (0, set()), points


@pytest.mark.parametrize(
    ("point", "name", "make", "options"), BROKEN, ids=[f"{point}: {name}" for point, name, *_ in BROKEN]
)
def test_error_of_an_api_fails_only_its_own_check(
    point: str, name: str, make: Callable[[], FastAPI], options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "later than the hub waits":
        set_hub_timeout(monkeypatch, 5)
    prefix = "/mine" if options == ("--mine",) else ""
    # 1,000 series take most of the time, and another test covers them with a correct scoring API.
    quick = () if point == "large" else ("--skip", "large")
    with served(make()) as url:
        code, points = check(f"{url}{prefix}/config", *quick, *(() if prefix else options))
    assert code == 1
    assert by_outcome(points, "fail") == {point}, points
    assert points[point]["message"], name
    assert points[point]["mend"], name


def test_check_accepts_series_up_to_the_limit_of_prometheus() -> None:
    with served(api(config=config_with(range=11_000, step=1))) as url:
        _, points = check(f"{url}/config", "--skip", "large")
    assert points["config"]["outcome"] == "pass"


@pytest.mark.parametrize(
    ("point", "make", "options", "message"),
    [
        ("config", lambda: api(config=config_with(range=60, step=300)), (), "one sample, 60 s old"),
        # More than half of the timeout; a busy machine may add the other half.
        ("health", lambda: api(health=lambda: respond_late(6.5, {})), (), "of the 12 s that the hub waits"),
        (
            "range",
            lambda: api(config=config_with(query="avg by (pod) (up)")),
            (),
            "all 20 scores are between -1 and 1 and are published as 0",
        ),
        (
            "labels",
            lambda: api(relabel_scores(lambda s: s if s.get("pod") == "pod-3" else {**s, "node": "n"})),
            ("--dimension", "${pod};${node}"),
            "1 of 20 results have no label node, so that names are such as 'pod-3;'",
        ),
    ],
)
def test_questionable_behaviour_is_a_warning(
    point: str, make: Callable[[], FastAPI], options: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "that the hub waits" in message:
        set_hub_timeout(monkeypatch, 12)
    with served(make()) as url:
        code, points = check(f"{url}/config", *options, "--skip", "large")
    assert code == 0, points
    assert by_outcome(points, "warn") == {point}
    assert message in points[point]["message"]


def test_recorded_series_decide_checks_that_synthetic_series_leave_open(tmp_path: Path) -> None:
    series = [{"metric": {"pod": f"p{at}"}, "values": [[1, "20"], [61, f"{30 + at}"]]} for at in range(3)]
    file = tmp_path / "recorded.json"
    file.write_text(json.dumps({"data": series}))
    with served(api(scale_scores(0.01))) as url:
        code, points = check(f"{url}/config", "--sample", str(file), "--skip", "large")
    assert code == 1
    assert by_outcome(points, "fail") == {"range"}


def test_token_is_withheld_from_a_host_that_config_names() -> None:
    guarded = api(guard=lambda header: header == "Bearer right")
    with served(guarded) as url:
        elsewhere = api(config=change_config(host=url))
        with served(elsewhere) as other:
            _, without = check(f"{other}/config", "--skip", "large")
            code, points = check(f"{other}/config", "--token", "right", "--skip", "large")
    assert without["config"]["outcome"] == "pass"
    assert code == 1
    assert points["config"]["outcome"] == "fail"
    assert "host" in points["config"]["message"]


def test_wrong_prefix_is_reported_with_its_remedy() -> None:
    with served(api(prefix="/mine")) as url:
        _, points = check(f"{url}/mine/config")
    assert "'/mine/scoring'" in points["paths"]["mend"]


def test_warnings_do_not_fail_the_check() -> None:
    warned = api(
        lambda data: [{**result, "score": 10 * result["score"]} for result in mean(data)[:1]] + mean(data)[1:],
        config={**CONFIG, "source": {key: CONFIG["source"][key] for key in ("type", "params")}},
        health=lambda: JSONResponse({}, 404),
    )
    with served(warned) as url:
        code, points = check(f"{url}/config", "--skip", "large")
    assert code == 0
    assert by_outcome(points, "warn") == {"health", "config", "range"}
    assert "spec.source.host" in points["config"]["mend"]


def library(**values: Any) -> Scorer:
    source = Prometheus(query="100 * avg by (pod) (up)", range=600, step=60, host="http://prometheus:9090")
    defaults: dict[str, Any] = {
        "name": "mean",
        "description": "d",
        "score_name": "mean",
        "interval": 30,
        "source": source,
    }
    new_scorer = Scorer(**(defaults | values))

    @new_scorer.score
    def score(series: list[Series]) -> Iterable[Score]:
        for item in series:
            values = item.finite().values
            if values.size:
                yield item.score(values.mean())

    return new_scorer


def test_library_scorer_passes_all_checks(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("right\n")
    app = ScorerApp(
        library(path="/open"), library(path="/b", name="b", score_name="b", token=Bearer(file=file)), prefix="/p"
    )
    with served(app) as url:
        code, points = check(f"{url}/p/open/config")
        assert (code, by_outcome(points, "pass")) == (0, set(NAMES) - {"token", "query"})
        code, points = check(f"{url}/p/b/config", "--token-file", str(file))
        assert (code, by_outcome(points, "pass")) == (0, set(NAMES) - {"query"})


def test_binary_token_file_is_a_usage_error(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_bytes(b"\x80secret\xff")
    result = run("http://127.0.0.1:1/config", "--token-file", str(file))
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit)
    assert "not text" in result.output
    assert "secret" not in result.output


def test_unreachable_service_fails_the_check_with_a_remedy() -> None:
    with served(api()) as url:
        pass
    code, points = check(f"{url}/config")
    assert code == 1
    assert by_outcome(points, "fail") == {"health", "config"}
    assert "start the service" in points["config"]["mend"]


def test_checks_can_be_skipped() -> None:
    with served(api(health=lambda: JSONResponse({}, 503))) as url:
        code, points = check(f"{url}/config", "--skip", "health", "--skip", "large")
    assert code == 0
    assert by_outcome(points, "skipped") == {"health", "large", "token", "query"}


def test_scores_can_be_checked_without_config() -> None:
    with served(api(config=JSONResponse({}, 404))) as url:
        code, points = check(f"{url}/config", "--path", "/scoring")
    assert code == 1
    assert by_outcome(points, "fail") == {"config"}
    assert points["config"]["mend"].startswith("give the path of /config too, or the port of your scoring API")
    assert points["many-series"]["message"] == "20 results"


def test_incomplete_url_is_completed_in_the_remedy() -> None:
    with served(api()) as url:
        _, points = check(url)
    assert points["config"]["mend"] == f"give the whole configURL, such as {url}/config"


@pytest.mark.parametrize(
    "wrap", [lambda series: {"data": series}, lambda series: {"status": "success", "data": {"result": series}}]
)
def test_recorded_series_are_sent_in_both_formats(tmp_path: Path, wrap: Callable[[Any], Any]) -> None:
    series = [{"metric": {"Hostname": host, "app": "x"}, "values": [[1, "2"], [61, "3"]]} for host in ("n1", "n2")]
    file = tmp_path / "recorded.json"
    file.write_text(json.dumps(wrap(series)))
    picky = api(relabel_scores(lambda labels: {"node": labels.get("Hostname", "")}))
    with served(picky) as url:
        code, points = check(f"{url}/config", "--sample", str(file), "--dimension", "${node}")
    assert code == 0
    assert points["labels"]["message"] == "2 names such as 'n1'"


def test_checks_are_skipped_without_results_for_synthetic_series() -> None:
    picky = api(lambda data: [result for result in mean(data) if "Hostname" in result["metric"]])
    with served(picky) as url:
        code, points = check(f"{url}/config")
    assert code == 0
    assert {"labels", "range", "determinism"} <= by_outcome(points, "skipped")
    assert "--sample" in points["labels"]["message"]


def test_table_shows_each_check_with_its_remedy() -> None:
    with served(api(error_status=None)) as url:
        result = run(f"{url}/config", "--skip", "large")
    assert result.exit_code == 1
    assert "bad-json        fail" in result.stdout
    assert "-> refuse it with 400 or 422" in result.stdout
    assert "not conformant: " in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("127.0.0.1:8000",), "is neither a file nor a URL"),
        (("http://x/config", "--skip", "healht"), "items are health"),
        (("http://x/config", "--token", ""), "the token is empty"),
        (("http://x/config", "--sample", "nowhere.json"), "nowhere.json"),
    ],
)
def test_scorer_check_refuses_wrong_usage(arguments: tuple[str, ...], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())


@pytest.mark.parametrize("text", ["x", "[]", '{"data": []}', '{"data": [{"metric": {}}]}'])
def test_invalid_recording_is_reported(tmp_path: Path, text: str) -> None:
    file = tmp_path / "recorded.json"
    file.write_text(text)
    result = run("http://127.0.0.1:9/config", "--sample", str(file))
    assert result.exit_code == 1
    assert str(file) in result.stderr


def test_speed_check_uses_the_interval_of_the_config() -> None:
    with served(api(config=change_config(params={"name": "x", "interval": 7}))) as url:
        _, points = check(f"{url}/config")
    assert "of 7 s" in points["speed"]["message"]


def spread(value: Callable[[Series], float]) -> Scorer:
    """Return a scorer of the spread of each series, with something wrong in it."""
    app = Scorer(
        name="spread",
        description="d",
        score_name="s",
        interval=30,
        source=Prometheus(query="100 * avg by (pod) (up)", range=600, step=60, host="http://prometheus.example"),
    )

    @app.score
    def score(series: list[Series]) -> Iterable[Score]:
        return [item.score(value(item)) for item in series if len(item)]

    return app


def test_non_finite_scores_are_reported_in_check_log_and_response(caplog: pytest.LogCaptureFixture) -> None:
    with served(spread(lambda _: float("nan"))) as url:
        code, points = check(f"{url}/config", "--skip", "large")
    assert code == 0
    assert by_outcome(points, "warn") == {"one-series", "many-series"}, points
    assert points["many-series"]["message"] == "several series: every result was dropped (nan)"
    assert points["gaps"]["message"] == "0 results, 4 nan left out"
    logged = [
        record.getMessage()
        for record in caplog.records
        if record.name == "dsf.scorer" and record.levelname == "WARNING"
    ]
    assert len(logged) == 1
    assert "scorer=spread reason=nan" in logged[0]


def test_series_without_a_score_are_named() -> None:
    with served(spread(lambda series: float("nan") if series.labels["pod"] == "pod-3" else 7.5)) as url:
        _, points = check(f"{url}/config", "--skip", "large")
    assert points["many-series"]["message"] == ("several series: 1 of 20 have no score (nan), such as {'pod': 'pod-3'}")


@pytest.mark.parametrize(
    ("status", "response", "outcome", "message"),
    [
        (200, {"status": "success", "data": {"resultType": "matrix", "result": [{}, {}]}}, "pass", "2 series"),
        (200, {"status": "success", "data": {"resultType": "matrix", "result": []}}, "warn", "no series for"),
        (400, {"status": "error", "errorType": "bad_data", "error": "parse error"}, "fail", "parse error"),
        (200, {"status": "success"}, "fail", "not that of a range query"),
    ],
)
def test_queries_run_on_a_prometheus(status: int, response: object, outcome: str, message: str) -> None:
    prometheus = FastAPI()

    @prometheus.get("/api/v1/query_range")
    def query_range() -> JSONResponse:
        return JSONResponse(response, status)

    skipped = [part for name in NAMES if name not in ("config", "query") for part in ("--skip", name)]
    with served(api()) as url, served(prometheus) as server:
        code, points = check(f"{url}/config", *skipped, "--prometheus", server)
        _, without = check(f"{url}/config", *skipped)
    assert (points["query"]["outcome"], code) == (outcome, int(outcome == "fail"))
    assert message in points["query"]["message"]
    assert without["query"]["outcome"] == "skipped"
    assert without["query"]["message"].startswith("not run")


def test_queries_use_post_if_the_source_requires_it() -> None:
    prometheus = FastAPI()
    query_bodies = []

    @prometheus.post("/api/v1/query_range")
    async def query_range(request: Request) -> JSONResponse:
        query_bodies.append(parse_qs((await request.body()).decode()))
        return JSONResponse({"status": "success", "data": {"resultType": "matrix", "result": [{}]}})

    skipped = [part for name in NAMES if name not in ("config", "query") for part in ("--skip", name)]
    with served(api()) as url, served(prometheus) as server:
        code, points = check(f"{url}/config", *skipped, "--prometheus", server, "--post")
        assert (code, points["query"]["message"], query_bodies[0].keys()) == (
            0,
            "1 series",
            {"query", "start", "end", "step"},
        )
        assert check(f"{url}/config", *skipped, "--prometheus", server)[0] == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "http://user:canary@127.0.0.1:1/config"),
        ("check", "http://127.0.0.1:1/config", "--prometheus", "http://user:canary@127.0.0.1:1"),
        ("check", "http://127.0.0.1:1/config?token=canary"),
        ("test", "pyproject.toml", "--url", "http://user:canary@127.0.0.1:1"),
    ],
)
def test_messages_show_no_secret_of_a_url(arguments: tuple[str, ...]) -> None:
    result = dsf("scorer", *arguments)
    assert result.exit_code != 0
    assert "canary" not in result.output
