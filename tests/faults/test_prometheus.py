"""A real Prometheus with wrong queries, and scripted ones that break: its own words reach the user."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from dsf.up.stack import http_ready
from tests.faults.fleet import BY_HAND, SERIES, STALL, Fleet, scores
from tests.support.child import Child
from tests.support.httpserver import Handler, answer, half, half_chunked, hang, matrix
from tests.support.programs import find
from tests.support.redisserver import free_port
from tests.support.wait import wait_for

pytestmark = pytest.mark.xdist_group("faults-prometheus")

#: Seconds.
INTERVAL = 2


@dataclass(frozen=True)
class Fault:
    """How the source misbehaves, and what is to be said of it."""

    handler: Handler
    reason: str
    words: tuple[str, ...]


def refusal(status: int, kind: str, error: str) -> Handler:
    """Prometheus' answer to a request that it refuses."""
    return answer({"status": "error", "errorType": kind, "error": error}, status)


FAULTS = {
    "is-starting": Fault(answer("Service Unavailable", 503), "http_error", ("HTTP 503: Service Unavailable",)),
    "cannot-execute": Fault(
        refusal(422, "execution", "query processing would load too many samples"),
        "bad_query",
        ("query processing would load too many samples",),
    ),
    "stops-halfway": Fault(half, "truncated", ("ends too early",)),
    "stops-in-a-chunk": Fault(half_chunked, "truncated", ("ends too early",)),
    # Within a second, or what the cycle has left of its own time on a busy machine.
    "hangs": Fault(hang, "timeout", ("no complete answer within",)),
    "says-error-with-200": Fault(refusal(200, "internal", "disk is full"), "bad_answer", ("disk is full",)),
    "refuses": Fault(answer("log in", 401), "unauthorized", ("HTTP 401: log in",)),
}


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a Prometheus that scrapes itself every second."""
    program, folder, port = find("prometheus"), tmp_path_factory.mktemp("prometheus"), free_port()
    config = folder / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 1s}\nscrape_configs:\n"
        "  - job_name: itself\n    static_configs:\n"
        f"      - {{targets: ['127.0.0.1:{port}'], labels: {{node: n1}}}}\n"
    )
    options = (f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}")
    process = Child(
        (str(program), *options, f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"), folder / "log"
    )
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(http_ready(f"{url}/-/ready"), 30, f"Prometheus; {process.tail()}")
        yield url
    finally:
        process.kill()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, prometheus: str) -> Iterator[Fleet]:
    made = Fleet(tmp_path_factory.mktemp("prometheus-fleet") / "stack")
    made.scorer("steady", scores(60), interval=BY_HAND, query="up", source=prometheus)
    execution = {"timeoutSeconds": 1, "maxRetries": 1}
    for name in FAULTS:
        made.source.script(matrix(SERIES), path=f"/{name}")
        made.scorer(name, scores(10), interval=INTERVAL, query="up", execution=execution)
    with made:
        made.first_score("steady")
        for name in FAULTS:
            made.until(lambda name=name: made.state(name).count("ok"), f"{name} to score")  # type: ignore[misc]
        yield made


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("sum(up", ("parse error", "unclosed left parenthesis")),
        ("rate(up)", ("expected type range vector in call to function",)),
        ("up{", ("parse error",)),
    ],
)
def test_a_wrong_query(fleet: Fleet, prometheus: str, query: str, words: tuple[str, ...]) -> None:
    """A user makes a mistake, reads Prometheus' own words within one interval, and corrects it."""
    name = f"wrong{len(query)}"
    fleet.scorer(name, scores(10), interval=INTERVAL, query="up", source=prometheus)
    fleet.wait_success(name)
    with fleet.unaffected("steady"):
        fleet.scorer(name, interval=INTERVAL, query=query, source=prometheus)
        started = time.monotonic()
        fleet.until(lambda: fleet.failures(name), "the failure in the status")
        # One interval, and what reading the manifest takes.
        assert time.monotonic() - started < INTERVAL + 3 + STALL
        message = fleet.check_failure(name, "fetch", "bad_query", *words)
        assert message.startswith(f"GET {prometheus}/api/v1/query_range: ")
        fleet.scorer(name, interval=INTERVAL, query="up", source=prometheus)
        fleet.check_cleared(name)


def test_an_empty_answer_is_a_valid_one(fleet: Fleet, prometheus: str) -> None:
    fleet.scorer("nothing", answer({"results": []}), interval=INTERVAL, query="no_such_metric", source=prometheus)
    fleet.until(lambda: fleet.state("nothing").count("empty"), "an empty cycle")
    fleet.until(lambda: fleet.items("nothing") == {})
    fleet.until(
        lambda: fleet.condition("nothing", "Scoring")[1] == "NoItems", "the status to say that there is no item"
    )
    fleet.until(lambda: fleet.failures("nothing") == [], "no failure")
    cycles = fleet.data("history", "nothing", "--cluster", "c1")["cycles"]
    assert {cycle["counts"]["series"] for cycle in cycles if cycle["outcome"] == "empty"} == {0}
    assert fleet.metric("exporter", "dynamic_scoring_cycles_total", ds_score_name="nothing-score", outcome="empty")
    sent = next(request for request in fleet.api.requests if request.path == "/nothing")
    assert sent.json() == {"data": []}
    fleet.check_books("nothing")


@pytest.mark.parametrize("name", FAULTS)
def test_the_reason_is_said_and_cleared(fleet: Fleet, name: str) -> None:
    fault = FAULTS[name]
    with fleet.unaffected("steady"):
        fleet.source.script(fault.handler, path=f"/{name}")
        fleet.check_failure(name, "fetch", fault.reason, f"GET {fleet.source.url}/{name}", *fault.words)
        assert fleet.items(name) == {"n1": 10}
        fleet.source.script(matrix(SERIES), path=f"/{name}")
        fleet.check_cleared(name)


def test_a_prometheus_that_goes_and_comes(fleet: Fleet) -> None:
    """Nobody listens: the words say so, and the user sees where."""
    gone = f"http://127.0.0.1:{free_port()}"
    fleet.scorer("gone", scores(10), interval=INTERVAL, query="up", source=gone)
    fleet.check_failure("gone", "fetch", "connection_failed", f"GET {gone}/api/v1/query_range", "refused")
    fleet.scorer("gone", interval=INTERVAL, query="up")
    fleet.check_cleared("gone")


@pytest.mark.parametrize("process", ["exporter", "agent c1"])
def test_promtool_accepts_the_metrics(fleet: Fleet, process: str) -> None:
    """After all of the above: every kind of outcome is in them."""
    text = fleet.page(process, "/metrics").text
    assert "dynamic_score{" in text
    done = subprocess.run(
        [find("promtool"), "check", "metrics"], input=text, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_faults_of_others_are_no_mistakes_of_ours(fleet: Fleet) -> None:
    for name in fleet.processes:
        log = fleet.log(name)
        assert "Traceback" not in log, f"{name}: {log[log.index('Traceback') - 500 :][:2000]}"
