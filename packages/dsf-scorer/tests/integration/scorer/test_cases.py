"""`dsf scorer test` on correct and invalid files, with broken services, and its reports."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml
from typer.testing import Result

from dsf.scorer import Prometheus, Score, Scorer, Series, Source, Sources
from tests.support.commandline import dsf
from tests.support.httpserver import ScriptedServer, answer
from tests.support.scoringservices import served, set_hub_timeout

from .broken import CONFIG

SCORER = """
from dsf.scorer import Prometheus, Scorer

app = Scorer(
    name="n", description="d", score_name="load", interval=30,
    source=Prometheus(query="up", range=600, step=15, host="http://prometheus.example"),
)


@app.score
def mean(series):
    for one in series:
        if one.finite().values.size:
            yield one.score(one.finite().values.mean(), app=f"{one.times[-1]:g}")
"""
MANIFEST = """
apiVersion: dynamic-scoring.open-cluster-management.io/v1alpha1
kind: DynamicScorer
metadata: {name: load, namespace: open-cluster-management}
spec:
  description: d
  configURL: http://load.example:8000/config
  configSyncMode: Full
  scoreDimensionFormat: ${node}
  scoreDimensionFormats: ["${cluster} at ${app}"]
"""


TWICE = """url: http://h
tests:
- name: t
  exp_items: []
  input_series: [{series: up, values: 1}, {series: up, values: 2}]
"""
#: Each line is nine times as large as the one before, once its aliases are followed.
BOMB = "a: &a [1]\n" + "".join(f"{new}: &{new} [{','.join(9 * ['*' + old])}]\n" for old, new in pairwise("abcdefg"))


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    set_hub_timeout(monkeypatch, 60)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of an author: a scorer and its manifest."""
    (tmp_path / "authors_scorer.py").write_text(SCORER)
    (tmp_path / "scorer.yaml").write_text(MANIFEST)
    return tmp_path


def run(folder: Path, text: str, *options: str) -> Result:
    file = folder / "test.yaml"
    file.write_text(text)
    result = dsf("scorer", "test", str(file), *options)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


GOOD = """
scorer: authors_scorer:app
manifest: scorer.yaml
tests:
  - name: the step is that of /config
    input_series:
      - {series: 'up{node="n1"}', values: 1 2 3}
    exp_items:
      - {name: n1, value: 2}
      - {name: cluster1 at 30, value: 2}
  - name: another one
    interval: 1m30s
    start_timestamp: 1000
    cluster: c9
    input_series:
      - {series: 'up{node="n1"}', values: 80+10x2}
    exp_items:
      - {name: n1, value: 88, tolerance: 2}
      - {name: c9 at 1180, value: 90}
"""


def test_correct_scorer_passes_its_cases(folder: Path) -> None:
    result = run(folder, GOOD)
    assert result.exit_code == 0, result.output
    assert "2 passed, 0 failed" in result.stdout
    # The next folder may have a module of this name.
    assert "authors_scorer" not in sys.modules
    assert str(folder) not in sys.path


def test_modules_with_the_same_name_in_two_folders_are_separate(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other")
    (other / "authors_scorer.py").write_text(SCORER.replace("values.mean()", "values.mean() + 1"))
    (other / "scorer.yaml").write_text(MANIFEST)
    (other / "second.yaml").write_text(GOOD.partition("  - name: another one")[0].replace("value: 2", "value: 3"))
    result = run(folder, GOOD, str(other / "second.yaml"))
    assert result.exit_code == 0, result.output
    assert "3 passed, 0 failed" in result.stdout


def test_environment_in_the_folder_is_imported_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Extensions such as numpy's refuse to be loaded twice."""
    site = folder / ".venv" / "lib" / "site-packages"
    site.mkdir(parents=True)
    (site / "loads_once.py").write_text("import sys\nassert not hasattr(sys, 'loaded_once')\nsys.loaded_once = 1\n")
    monkeypatch.syspath_prepend(site)
    scorer = folder / "authors_scorer.py"
    scorer.write_text("import loads_once\n" + scorer.read_text())
    (folder / "second.yaml").write_text(GOOD)
    try:
        result = run(folder, GOOD, str(folder / "second.yaml"))
        assert result.exit_code == 0, result.output
    finally:
        sys.modules.pop("loads_once", None)
        vars(sys).pop("loaded_once", None)


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("/dev/zero", "/dev/zero:1: has more than 4194304 characters"),
        ("/nonexistent/test.yaml", "No such file or directory"),
        (sys.executable, "is not text"),
    ],
)
def test_invalid_case_file_is_a_usage_error(file: str, expected: str) -> None:
    result = dsf("scorer", "test", file)
    assert result.exit_code == 2
    assert expected in result.stderr


def test_failed_case_names_file_line_case_and_both_values(folder: Path) -> None:
    text = GOOD.replace("{name: n1, value: 2}", "{name: n1, value: 3}").replace(
        "value: 88, tolerance: 2", "value: 87, tolerance: 2"
    )
    text = text.replace("      - {name: c9 at 1180, value: 90}\n", "      - {name: n2, value: 1}\n")
    report = json.loads(run(folder, text, "-o", "json").stdout)
    file = folder / "test.yaml"
    assert report["passed"] is False
    assert [failure for case in report["cases"] for failure in case["failures"]] == [
        f"{file}:9: the step is that of /config: exp_items[0] 'n1': expected 3, got 2",
        f"{file}:18: another one: exp_items[0] 'n1': expected 87 within 2, got 90",
        f"{file}:19: another one: exp_items[1] 'n2': expected 1, got no such item but 'n1', 'c9 at 1180'",
        f"{file}:17: another one: exp_items: expected no item 'c9 at 1180', got 90",
    ]


def test_junit_report_lists_cases_and_failures(folder: Path) -> None:
    text = GOOD.replace("another one", '"<&> \\u0007 \\u00e9"').replace("value: 90", "value: 91")
    result = run(folder, text, "--junit", str(folder / "junit.xml"))
    assert result.exit_code == 1
    root = ElementTree.parse(folder / "junit.xml").getroot()
    assert (root.tag, root.get("tests"), root.get("failures")) == ("testsuites", "2", "1")
    [suite] = root
    assert [case.get("name") for case in suite] == ["the step is that of /config", "<&> \\x07 é"]
    passed_case, failed_case = suite
    assert len(passed_case) == 0
    assert "expected 91, got 90" in (failed_case[0].get("message") or "")
    assert (failed_case.get("file"), failed_case.get("line")) == (str(folder / "test.yaml"), "11")
    assert run(folder, GOOD, "--junit", str(folder / "no" / "junit.xml")).exit_code == 2


def test_cases_support_several_sources(tmp_path: Path) -> None:
    query = Prometheus(query="up", range=600, step=60, host="http://prometheus.example")
    sources = {"load": query, "power": Source(type="Kubernetes")}
    app = Scorer(name="n", description="d", score_name="s", interval=30, sources=sources)

    @app.score_sources
    def both(sources: Sources) -> Iterable[Score]:
        yield Score(sum(series.values.sum() for series in sources["load"]) + 10 * len(sources["power"]), {"node": "a"})

    text = """
url: {url}
tests:
  - name: both
    dimension: ${{node}}
    input_series:
      - {{series: up, values: 1 2}}
      - {{series: up, values: 5, source: power}}
    exp_items: [{{name: a, value: 13}}]
  - name: none
    input_series: [{{series: up, values: 5, source: wind}}]
    exp_items: []
"""
    with served(app) as url:
        result = run(tmp_path, text.format(url=url))
    assert result.exit_code == 1
    assert "1 passed, 1 failed" in result.stdout
    assert "the source 'wind' of a series is not one of load, power" in result.stdout


def test_url_option_replaces_the_scorer(folder: Path) -> None:
    app = Scorer(name="n", description="d", score_name="s", interval=30)

    @app.score
    def nothing(_: list[Series]) -> list[Score]:
        return []

    with served(app) as url:
        result = run(folder, "scorer: none:app\ntests: [{name: t, exp_items: []}]", "--url", url)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ":1: is not a mapping with scorer or url, and tests"),
        ("[]", ":1: is not a mapping"),
        ("tests: {", ":1: is not YAML"),
        ("scorer: a:b", ":1: tests: is required"),
        ("tests: [{name: t, exp_items: []}]", ":1: give one of scorer (module:object) and url, or --url"),
        ("scorer: a:b\nurl: http://h\ntests: [{name: t, exp_items: []}]", ":1: give one of scorer"),
        ("scorer: ../a:b\ntests: [{name: t, exp_items: []}]", ":1: scorer: '../a:b' does not match"),
        ("url: http://h/config\ntests: [{name: t, exp_items: []}]", ":1: url: 'http://h/config' does not match"),
        ("scorer: a:b\ntests:\n- name: t\n  exp_item: []", ":4: tests[0].exp_item: is not a known field"),
        ("scorer: a:b\ntests:\n- name: t\n  exp_items: []\n  interval: 0s", ":5: tests[0].interval: must be a time"),
        ("scorer: a:b\ntests:\n- name: t\n  exp_items: []\n  interval: fast", "interval: 'fast' is not a time"),
        ("scorer: a:b\ntests:\n- name: t\n  exp_items: [{name: a, value: .inf}]", ":4: tests[0].exp_items[0].value:"),
        ("scorer: a:b\ntests:\n- name: t\n  exp_items: [{name: a, value: 1, tolerance: -1}]", "tolerance: -1 is less"),
        (
            "scorer: a:b\ntests:\n- name: t\n  exp_items: [{name: a, value: 1}, {name: a, value: 2}]",
            ":4: tests[0].exp_items: has 'a' twice",
        ),
        (
            "scorer: a:b\ntests:\n- name: t\n  exp_items: []\n  input_series: [{series: up, values: 0+1x1000000000}]",
            ":5: tests[0].input_series[0].values: '0+1x1000000000' makes more than 11000 samples",
        ),
        (
            TWICE,
            ":5: tests[0].input_series: [1] has the labels of another series",
        ),
        ("scorer: a:b\nmanifest: no.yaml\ntests: [{name: t, exp_items: []}]", ":2: manifest: "),
        ("scorer: a:b\nmanifest: test.yaml\ntests: [{name: t, exp_items: []}]", "kind: is required"),
        (
            "scorer: a:b\nmanifest: scorer.yaml\ntests:\n- {name: t, exp_items: [], dynamic_scorer: other}",
            ":4: tests[0].dynamic_scorer: 'other' is not one of load",
        ),
        (BOMB, "is too large once its aliases"),
    ],
)
def test_unusable_case_file_is_named_with_its_line(folder: Path, text: str, expected: str) -> None:
    result = run(folder, text)
    assert result.exit_code == 2, result.output
    assert expected in result.stderr
    assert result.stderr.startswith(f"{folder}/test.yaml:")


def test_very_many_samples_are_refused(folder: Path) -> None:
    series = [{"series": f'up{{node="{number}"}}', "values": "1x10999"} for number in range(100)]
    text = yaml.safe_dump({"scorer": "a:b", "tests": [{"name": "t", "exp_items": [], "input_series": series}]})
    result = run(folder, text)
    assert result.exit_code == 2
    assert "tests[0].input_series: has more than 1000000 samples" in result.stderr


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("", "no_module_of_this_name:app cannot be imported: ModuleNotFoundError"),
        ("app = 5", "is no ASGI application"),
        ("raise RuntimeError('no key')", "cannot be imported: RuntimeError: no key"),
        ("import sys; sys.exit(3)", "cannot be imported: it ends the process with 3"),
        (SCORER.partition("\n\n\n@app.score")[0], "does not start"),
        (SCORER.replace("yield one.score", "raise RuntimeError\n        yield one.score"), "HTTP 500"),
    ],
)
def test_broken_scorer_fails_its_cases_with_a_reason(folder: Path, code: str, expected: str) -> None:
    """Each case fails with a reason."""
    name = "authors_scorer" if code else "no_module_of_this_name"
    (folder / "authors_scorer.py").write_text(code)
    text = GOOD.replace("authors_scorer", name)
    result = run(folder, text)
    assert result.exit_code == 1, result.output
    assert "0 passed, 2 failed" in result.stdout
    assert expected in result.stdout


@pytest.mark.parametrize(
    ("config", "scores", "expected"),
    [
        (CONFIG, {"error": "busy"}, "answer {"),
        (CONFIG, {"results": [{"metric": {"node": "a"}, "score": 5}, {"metric": {"node": "b"}, "score": None}]}, None),
        ([], {}, "is no /config"),
    ],
)
def test_handwritten_responses_are_evaluated(
    tmp_path: Path, config: object, scores: object, expected: str | None
) -> None:
    text = "url: {}\ntests: [{{name: t, dimension: '${{node}}', exp_items: [{{name: a, value: 5}}]}}]"

    def handle(exchange: object) -> None:
        is_config = exchange.request.path == "/config"  # type: ignore[attr-defined]
        answer(config if is_config else scores)(exchange)  # type: ignore[arg-type]

    with ScriptedServer(handle) as server:
        result = run(tmp_path, text.format(server.url))
    assert result.exit_code == (0 if expected is None else 1), result.output
    assert (expected or "1 passed") in result.stdout


def test_unreachable_scorer_fails_its_cases(tmp_path: Path) -> None:
    result = run(tmp_path, "url: http://127.0.0.1:9\ntests: [{name: t, exp_items: []}]")
    assert result.exit_code == 1
    assert "http://127.0.0.1:9/config" in result.stdout
