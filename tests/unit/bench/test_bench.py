"""The table of benches and their command line, without running a bench."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from pathlib import Path

import pytest
from rich.console import Console

from bench import HEAPS
from bench import __main__ as runner
from bench.adapters import read
from bench.common import ROOT, Figure, exit_code, format_spread, make_table


def test_benches_use_the_heap_settings_of_the_images() -> None:
    image = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert {name: os.environ.get(name) for name in HEAPS} == HEAPS
    assert dict(re.findall(r"(MALLOC_\w+)=(\d+)", image)) == HEAPS


def test_figure_knows_whether_its_limit_is_met() -> None:
    assert Figure("f", "", 1.2, "x", upper_limit=1.3).is_met is True
    assert Figure("f", "", 1.31, "x", upper_limit=1.3).is_met is False
    assert Figure("f", "", 0.4, "x", lower_limit=0.5).is_met is False
    assert Figure("f", "", 0.4, "x").is_met is None
    assert Figure("f", "", 1, "x", upper_limit=1.3, lower_limit=0.5).goal == "<= 1.3 x, >= 0.5 x"


def test_missed_limit_is_an_error_only_in_strict_mode() -> None:
    missed = [Figure("f", "", 2, "x", upper_limit=1), Figure("g", "", 2, "x")]
    assert exit_code(missed, strict=False) == 0
    assert exit_code(missed, strict=True) == 1
    assert exit_code(missed[1:], strict=True) == 0


def test_rounds_are_shown_as_median_and_range() -> None:
    assert format_spread([3.0, 1.0, 2.0], "ms") == "2.00 ms (1.00-3.00)"
    assert format_spread([12.4], "/s", 0) == "12 /s"


def test_table_shows_each_figure_beside_its_limit() -> None:
    out = Console(width=160)
    with out.capture() as printed:
        out.print(
            make_table(
                [
                    Figure("CPU of a cycle", "7.10 ms", 1.37, "x", "no-op chain, 5.20 ms", upper_limit=1.4),
                    Figure("lag", "p99 300 ms", 300, "ms", upper_limit=250),
                ]
            )
        )
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in printed.get().splitlines() if "│" in line]
    assert rows == [
        ["CPU of a cycle", "no-op chain, 5.20 ms", "7.10 ms", "1.37 x", "<= 1.4 x", "ok"],
        ["lag", "", "p99 300 ms", "300 ms", "<= 250 ms", "missed"],
    ]


def test_arguments() -> None:
    arguments = runner.parse(["--quick", "--only", "stages", "--only", "memory", "--json", "f.json"])
    assert (arguments.quick, arguments.strict, arguments.json) == (True, False, Path("f.json"))
    assert [bench.name for bench in runner.selected_benches(arguments.only)] == ["stages", "memory"]
    with pytest.raises(SystemExit) as raised:
        runner.parse(["--only", "nonsense"])
    assert raised.value.code == 2


def test_all_benches_exist_and_optional_ones_are_skipped() -> None:
    assert all(importlib.util.find_spec(f"bench.{bench.name}") for bench in runner.BENCHES)
    names = {bench.name for bench in runner.selected_benches(None)}
    assert names == {bench.name for bench in runner.BENCHES if not bench.on_request}


class Scripted(runner.Bench):
    """Add a bench of a few lines of Python; `sys.argv[1]` is its file."""

    def make_command(self, file: Path, *, quick: bool) -> list[str]:
        return [sys.executable, "-c", self.name, str(file)]


def run(program: str, seconds: float = 30.0) -> runner.Report:
    report = runner.Report()
    runner.run_one(Scripted(program), report, quick=True, seconds=seconds)
    return report


def test_figures_of_a_bench_appear_in_the_report() -> None:
    figure = {
        "name": "f",
        "measured": "2 ms",
        "value": 2,
        "unit": "x",
        "upper_limit": 1,
        "against": "",
        "lower_limit": None,
    }
    report = run(f"import sys; open(sys.argv[1], 'w').write({json.dumps({'figures': [figure], 'details': 7})!r})")
    assert report.problems == {}
    [(_, measured_figure)] = report.figures
    assert measured_figure.is_met is False
    document = report.document({"cores": 2})
    assert document["figures"][0]["is_met"] is False
    assert list(document["details"].values()) == [7]


def test_failing_bench_is_reported_with_its_reason() -> None:
    report = run("raise SystemExit('no Redis here')")
    assert list(report.problems.values()) == ["no Redis here"]
    assert list(run("").problems.values()) == ["ended with 0 and said nothing"]


def test_hanging_bench_is_stopped() -> None:
    report = run("import time; time.sleep(60)", seconds=0.3)
    assert list(report.problems.values()) == ["not done in 0 s"]


def test_rows_of_other_shapes_are_read() -> None:
    row = {"series": 1, "samples": 61, "library_ms": 0.5, "bare_ms": 0.4, "ratio": 1.25, "limit": 1.5}
    [figure], details = read("scorer_overhead", [row])
    assert (figure.is_met, figure.value, details) == (True, 1.25, [row])
    dsf_result = {"objective": 10.0, "seconds": 1.0, "memory_mib": 5.0, "gap": 0.01}
    cbc = {"objective": 9.0, "seconds": 1.0, "memory_mib": 5.0}
    [figure], _ = read("optimizer", [{"size": "10x5x3", "dsf": dsf_result, "cbc": cbc}])
    assert (figure.value, figure.against) == (1.0, "CBC: 9 in 1.0 s, 5 MiB")
    [figure], _ = read("kube", {"apply_to_score_seconds": 1.0, "apply_to_score_longest": 3.5})
    assert figure.is_met is False
