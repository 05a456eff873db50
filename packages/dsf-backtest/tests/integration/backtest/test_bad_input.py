"""Obstacles to a backtest: each is reported with its location, and computed moments are kept."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.cli.conftest import Dsf, dsf
from tests.support.child import Child
from tests.support.httpserver import Exchange, ScriptedServer, answer, matrix, slow
from tests.support.recordedprometheus import RecordedPrometheus
from tests.support.wait import wait_for

__all__ = ["dsf"]

SERIES = {"metric": {"node": "n1"}, "values": [[1, "1"]]}
SCORES = {"results": [{"metric": {"node": "n1"}, "score": 12.7}]}


class Author:
    """A manifest, and servers for it."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.source = stack.enter_context(ScriptedServer(matrix(SERIES)))
        self.scorer = stack.enter_context(ScriptedServer(answer(SCORES)))

    def manifest(self, source: dict[str, Any] | None = None, **spec: Any) -> str:
        """Return a DynamicScorer that is not registered."""
        params = {"query": "up", "range": 60, "step": 15}
        prometheus = {"type": "Prometheus", "host": "http://prometheus.svc", "path": "/query_range", "params": params}
        scorer = {
            "apiVersion": "dynamic-scoring.open-cluster-management.io/v1alpha1",
            "kind": "DynamicScorer",
            "metadata": {"name": "mine", "namespace": "open-cluster-management"},
            "spec": {
                "description": "x",
                "configURL": "http://scorer.svc:8000/config",
                "configSyncMode": "None",
                "scoreDimensionFormat": "${node}",
                "source": source or prometheus,
                "scoring": {"params": {"name": "mine", "interval": 30}},
                **spec,
            },
        }
        file = self.folder / "mine.yaml"
        file.write_text(yaml.safe_dump(scorer))
        return str(file)

    def command(self, *options: str, **spec: Any) -> list[str]:
        """Return a backtest of it, of eleven moments."""
        urls = ["--scorer-url", self.scorer.url, "--source-url", self.source.url]
        return [
            "backtest",
            "-f",
            self.manifest(**spec),
            "-c",
            "c1",
            *urls,
            "--since",
            "50m",
            "--rate",
            "1000",
            *options,
        ]


@pytest.fixture
def author(tmp_path: Path) -> Iterator[Author]:
    """A person who writes a scorer."""
    with ExitStack() as stack:
        yield Author(tmp_path, stack)


def ended_with(result: Any, code: int) -> str:
    """Check the exit code and return the standard error on one line."""
    assert result.exit_code == code, result.output
    return " ".join(result.stderr.split())


def view(result: Any) -> Any:
    """Return the one backtest of `-o json`."""
    return json.loads(result.stdout)["backtests"][0]


def test_backtest_moment_is_a_cycle_whose_range_ends_there(dsf: Dsf, author: Author) -> None:
    report = view(dsf(*author.command("-o", "json")))
    assert (report["moments"], report["outcomes"]) == (11, {"ok": 11})
    assert report["items"][0] | {"line": 0} == {
        "name": "n1",
        "minimum": 12,
        "median": 12.0,
        "maximum": 12,
        "changes": 0,
        "missing": 0.0,
        "line": 0,
    }
    ends = [int(request.query["end"]) for request in author.source.requests]
    assert [end - ends[0] for end in ends] == list(range(0, 3001, 300))
    assert {int(request.query["end"]) - int(request.query["start"]) for request in author.source.requests} == {60}
    assert all(request.json() == {"data": [SERIES]} for request in author.scorer.requests)
    assert ends[-1] <= time.time() < ends[-1] + 330


def test_backtest_reports_a_source_whose_name_does_not_resolve(dsf: Dsf, author: Author) -> None:
    """No request is sent at any moment."""
    result = dsf(*author.command("--source-url", "http://nowhere.invalid:9090", "-o", "json"))
    assert result.exit_code == 1, result.output
    (failure,) = view(result)["failures"]
    assert "nowhere.invalid" in failure["message"]
    assert author.scorer.requests == []


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({"type": "Kubernetes", "params": {"query": "node_cpu_free"}}, "source of type Kubernetes, and the API server"),
        (
            {"type": "OpenTelemetry", "host": "http://c:1", "path": "/metrics", "params": {"query": "x"}},
            "the collector",
        ),
        ({"type": "None"}, "its scoring API gets the same request at every moment"),
    ],
)
def test_backtest_refuses_a_source_without_history(
    dsf: Dsf, author: Author, source: dict[str, Any], words: str
) -> None:
    error_output = ended_with(dsf(*author.command(source=source)), 2)
    assert words in error_output
    assert error_output.count("error:") == 1
    assert author.scorer.requests == []


def test_backtest_counts_failures_of_an_unreliable_scoring_api(dsf: Dsf, author: Author) -> None:
    request_numbers = iter(range(10**6))

    def half(exchange: Exchange) -> None:
        (answer("busy", 503) if next(request_numbers) % 2 else answer(SCORES))(exchange)

    author.scorer.script(half)
    file = author.folder / "a.jsonl"
    result = dsf(*author.command("--out", str(file)))
    assert result.exit_code == 0, result.output
    assert "5 error, 6 ok" in result.stdout
    assert "5 x score http_error: " in result.stdout
    assert "HTTP 503" in result.stdout
    author.scorer.script(answer(SCORES))
    before = len(author.scorer.requests)
    assert view(dsf(*author.command("--out", str(file), "-o", "json")))["outcomes"] == {"ok": 11}
    # Only missing moments were computed; a new one may have been added.
    assert len(author.scorer.requests) - before in (5, 6)


def test_backtest_stops_after_five_failed_moments(dsf: Dsf, author: Author) -> None:
    author.source.script(answer({"status": "error", "error": "parse error: unexpected x"}, 400))
    result = dsf(*author.command())
    assert result.exit_code == 1
    assert "5 of 11 moments" in result.stdout
    assert "5 x fetch bad_query: " in result.stdout
    assert "parse error: unexpected x" in result.stdout
    assert len(author.source.requests) == 5


def test_backtest_abandons_a_slow_scoring_api_after_its_timeout(dsf: Dsf, author: Author) -> None:
    author.scorer.script(slow(60, answer(SCORES)), answer(SCORES))
    report = view(dsf(*author.command("-o", "json", execution={"timeoutSeconds": 4})))
    assert report["outcomes"] == {"ok": 10, "error": 1}
    assert [(failure["stage"], failure["reason"]) for failure in report["failures"]] == [("score", "timeout")]


def test_backtest_fails_on_items_beyond_the_limit_of_an_object(dsf: Dsf, author: Author) -> None:
    names = [f"{number:05}-{'x' * 100}" for number in range(10_000)]
    author.scorer.script(answer({"results": [{"metric": {"node": name}, "score": 1} for name in names]}))
    result = dsf(*author.command("--since", "10m"))
    assert result.exit_code == 1
    assert "x publish too_large: score items have names of more than 500000 characters" in result.stdout
    author.scorer.script(answer({"results": [{"metric": {"node": name[:5]}, "score": 1} for name in names]}))
    result = dsf(*author.command("--since", "10m"))
    assert result.exit_code == 0, result.output
    assert "and 9980 items more, which changed less often; --limit 0 shows all" in result.stdout


def test_backtest_refuses_a_file_of_a_different_question(dsf: Dsf, author: Author) -> None:
    file = author.folder / "a.jsonl"
    assert dsf(*author.command("--out", str(file))).exit_code == 0
    before = file.read_bytes()
    error_output = ended_with(dsf(*author.command("--out", str(file), "--every", "1m")), 2)
    assert f"{file}: has moments of another question (every differ)" in error_output
    assert file.read_bytes() == before


def test_backtest_notes_a_retention_shorter_than_requested(
    dsf: Dsf, author: Author, past: dict[str, RecordedPrometheus]
) -> None:
    command = author.command("--since", "50h", "--every", "1h", "-o", "json", source=_busy())
    command[command.index(author.source.url)] = past["worker01"].url
    report = view(dsf(*command))
    assert 20 < report["outcomes"]["ok"] <= 51
    note, *other_notes = report["notes"]
    assert note.startswith("the source has no series before ")
    # Whether a moment is within a range of the oldest sample depends on the time of day.
    assert all("only the end of the range" in other for other in other_notes)
    assert author.source.requests == []


def test_backtest_warns_of_an_interval_below_the_step(dsf: Dsf, author: Author) -> None:
    result = dsf(*author.command("--since", "1m", "--every", "5s"))
    assert "note: 5 s between two moments are less than the step of the source (15 s)" in result.stdout


def test_backtest_writes_svg_and_png_plots(dsf: Dsf, author: Author) -> None:
    for name in ("busy.svg", "busy.png"):
        assert dsf(*author.command("--plot", str(author.folder / name))).exit_code == 0
    assert b"mine on c1" in (author.folder / "busy.svg").read_bytes()
    assert (author.folder / "busy.png").read_bytes().startswith(b"\x89PNG")
    assert "has to end in .png or .svg" in ended_with(dsf(*author.command("--plot", "x.gif")), 1)


def test_interrupted_backtest_keeps_computed_moments(author: Author) -> None:
    file = author.folder / "a.jsonl"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DSF_")}
    environment["XDG_STATE_HOME"] = str(author.folder)
    command = author.command("--out", str(file), "--since", "24h", "--rate", "5")
    child = Child([sys.executable, "-m", "dsf.cli", *command], author.folder / "log", environment, inherit=False)
    wait_for(lambda: file.exists() and file.read_bytes().count(b"\n") > 4, 30, "some moments")
    child.signal(signal.SIGINT)
    assert child.wait() == 130
    output = child.tail()
    assert "interrupted; what was computed is kept" in output
    recorded_moments = file.read_bytes().count(b"\n") - 1
    assert f"{recorded_moments} of 289 moments" in output
    assert "n1" in output


def test_backtest_needs_neither_redis_nor_a_cluster(author: Author) -> None:
    environment = {"PATH": os.environ["PATH"], "XDG_STATE_HOME": str(author.folder), "HOME": str(author.folder)}
    environment["DSF_REDIS_URL"] = "redis://127.0.0.1:1/0"
    command = [sys.executable, "-X", "importtime", "-m", "dsf.cli", *author.command("-o", "jsonl")]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert process.returncode == 0, process.stderr
    loaded_modules = {line.rpartition("|")[2].strip() for line in process.stderr.splitlines()}
    assert "dsf.backtest.run" in loaded_modules
    # The client of Kubernetes would take a fifth of the start.
    assert "kubernetes" not in loaded_modules
    question, *records = map(json.loads, process.stdout.splitlines())
    assert question["question"]["cluster"] == "c1"
    assert [record["items"] for record in records] == [{"n1": 12}] * 11
    unknown_scorer = subprocess.run(
        [sys.executable, "-m", "dsf.cli", "backtest", "nobody", "-c", "c1"],
        env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert unknown_scorer.returncode == 1
    assert "nothing says what scorer 'nobody' is" in unknown_scorer.stderr


def _busy() -> dict[str, Any]:
    params = {"query": "instance:node_cpu_busy:ratio", "range": 300, "step": 60}
    return {"type": "Prometheus", "host": "http://p.svc", "path": "/api/v1/query_range", "params": params}
