"""The notation of series in `dsf scorer test`, which promtool reads the same way."""

from __future__ import annotations

import math
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from dsf.conformance.notation import MAX_SAMPLES, make_series, parse_labels, parse_values
from dsf.conformance.testfile import TestFile
from dsf.errors import ManifestError
from tests.support import programs

GONE = None
TABLE: list[tuple[str, list[float | None]]] = [
    ("", []),
    ("5", [5]),
    ("1 2  3 ", [1, 2, 3]),
    ("-2+4x3", [-2, 2, 6, 10]),
    ("1-2x4", [1, -1, -3, -5, -7]),
    ("1x4", [1, 1, 1, 1, 1]),
    ("0+1x0", [0]),
    ("5x0", [5]),
    ("_", [GONE]),
    ("_x3", [GONE] * 3),
    ("_x0", []),
    ("1 _ 2", [1, GONE, 2]),
    ("1 _x3 stale", [1, GONE, GONE, GONE, GONE]),
    ("1x5 _ stale", [1, 1, 1, 1, 1, 1, GONE, GONE]),
    ("0.1+0.1x2", [0.1, 0.2, 0.1 + 0.1 + 0.1]),
    (".5 1. 1e3 1E-2", [0.5, 1, 1000, 0.01]),
    ("0x3", [0, 0, 0, 0]),
    ("+5 -5 +1-1x1", [5, -5, 1, 0]),
    ("NaN Inf +Inf -Inf", [math.nan, math.inf, math.inf, -math.inf]),
    ("1e308+1e308x1", [1e308, math.inf]),
]
BAD = [
    "x",
    "x3",
    "5x",
    "5 x3",
    "1+2",
    "1+x3",
    "1+2x",
    "1++2x3",
    "1,2",
    "a",
    "_ _x",
    "_3",
    "staled",
    "5_",
    "5x-1",
    "5x1.5",
    "--5",
]


@pytest.mark.parametrize(("text", "expected"), TABLE)
def test_values(text: str, expected: list[float | None]) -> None:
    assert repr(parse_values(text)) == repr([None if value is None else float(value) for value in expected])


@pytest.mark.parametrize("text", [*BAD, "1e999", "-1e999+1x2", "1" * 201])
def test_invalid_values_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not such as|is too large"):
        parse_values(text)


@pytest.mark.parametrize("text", ["0+1x1000000000", "5x11000", "_x11001", "1 _x11000", "5x99999999999999999999"])
def test_huge_series_are_refused_before_they_are_created(text: str) -> None:
    with pytest.raises(ValueError, match="makes more than 11000 samples"):
        parse_values(text)
    assert len(parse_values(f"5x{MAX_SAMPLES - 1}")) == MAX_SAMPLES


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("up", {"__name__": "up"}),
        ("job:up:sum{}", {"__name__": "job:up:sum"}),
        ('{node="n1"}', {"node": "n1"}),
        (" up { a = \"1\" , b='2', c=`\\n` , } ", {"__name__": "up", "a": "1", "b": "2", "c": "\\n"}),
        (r'{a="say \"hi\"\n\\ \u00e9, } x"}', {"a": 'say "hi"\n\\ é, } x'}),
        ('{a="", b="1"}', {"b": "1"}),
        ("{}", {}),
    ],
)
def test_labels(text: str, expected: dict[str, str]) -> None:
    assert parse_labels(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("1up", "no name of a metric"),
        ("u" * 10_001, "more than 10000 characters"),
        ("up{", "no closing brace"),
        ('up{a="1"} 5', "no closing brace"),
        ("up{a}", "a label is such as"),
        ("up{a=1}", "a label is such as"),
        ('up{a="1" b="2"}', "a comma is missing"),
        ('up{a="1",,}', "a label is such as"),
        ('up{a="1",a="2"}', "label a twice"),
        (r'up{a="\q"}', "is not one of"),
        (r'up{a="\u12"}', "is not one of"),
    ],
)
def test_invalid_labels_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_labels(text)


def test_as_a_range_query_answers() -> None:
    """Times are integers if possible, values have no exponent, and missing samples are absent."""
    values = [1.5, None, 1e21, math.nan, -math.inf, 1e-7]
    assert make_series({"a": "b"}, values, 100, 30) == {
        "metric": {"a": "b"},
        "values": [[100, "1.5"], [160, "1000000000000000000000"], [190, "NaN"], [220, "-Inf"], [250, "0.0000001"]],
    }
    assert make_series({}, [1.0], 0.5, 30)["values"] == [[0.5, "1"]]


def unit_test(values: str, samples: list[float | None]) -> dict[str, Any]:
    """Return a promtool test of these samples, ten minutes apart so that promtool does not look back at any."""
    tests: list[dict[str, Any]] = [
        {
            "expr": "up",
            "eval_time": f"{10 * number}m",
            "exp_samples": [] if value is None else [{"labels": "up", "value": value}],
        }
        for number, value in enumerate([*samples, None])
    ]
    return {"interval": "10m", "input_series": [{"series": "up", "values": values}], "promql_expr_test": tests}


def promtool(folder: Path, *files: list[dict[str, Any]]) -> subprocess.CompletedProcess[str]:
    """Run promtool on the tests of each file."""
    paths = [folder / f"{number}.yaml" for number in range(len(files))]
    for path, tests in zip(paths, files, strict=True):
        path.write_text(yaml.safe_dump({"tests": tests}))
    command = [programs.find("promtool"), "test", "rules", *paths]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_promtool_reads_it_the_same_way(tmp_path: Path) -> None:
    # NaN equals no number, not even in promtool.
    process = promtool(tmp_path, [unit_test(text, expected) for text, expected in TABLE if "NaN" not in text])
    assert process.returncode == 0, (process.stdout, process.stderr)


#: Values without quotes, which YAML would parse as other types, and their samples.
PLAIN: list[tuple[str, list[float | None]]] = [
    ("0x20", [0] * 21),
    ("0x10", [0] * 11),
    ("1e2", [100]),
    # Octal, also for promtool, unless a digit is not.
    ("010", [8]),
    ("-010+010x1", [-8, 0]),
    ("08 018", [8, 18]),
    ("00 -00", [0, 0]),
    ("0777777777777777777777777", [7.77777777777777777777777e23]),
    ("-1.50", [-1.5]),
    ("1x3", [1] * 4),
    ("'0x1'", [0, 0]),
    ("stale", [GONE]),
    ("_", [GONE]),
    (".5", [0.5]),
]


def test_values_without_quotes_are_read_as_by_promtool(tmp_path: Path) -> None:
    lines = [
        "scorer: a:b\ntests:\n- name: all\n  exp_items: []\n  input_series:\n",
        *(f"  - {{series: up{number}, values: {text}}}\n" for number, (text, _) in enumerate(PLAIN)),
    ]
    file = tmp_path / "test.yaml"
    file.write_text("".join(lines))
    (case,) = TestFile(file).cases
    assert [series.values for series in case.input_series] == [samples for _, samples in PLAIN]
    # The text itself is in promtool's file, too.
    tests = [unit_test(f"VALUES{number}", samples) for number, (_, samples) in enumerate(PLAIN)]
    text = yaml.safe_dump({"tests": tests})
    for number, (values, _) in enumerate(PLAIN):
        text = text.replace(f"values: VALUES{number}\n", f"values: {values}\n")
    assert "VALUES" not in text
    rules = tmp_path / "rules.yaml"
    rules.write_text(text)
    command = [programs.find("promtool"), "test", "rules", rules]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, (process.stdout, process.stderr)


@pytest.mark.parametrize("text", ["0b101", "1_000", "0o17", "true", "~", "[1, 2]", "1:30"])
def test_values_that_only_yaml_reads_are_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "test.yaml"
    file.write_text(
        f"scorer: a:b\ntests:\n- name: t\n  exp_items: []\n  input_series: [{{series: up, values: {text}}}]\n"
    )
    with pytest.raises(ManifestError, match=r"test.yaml:5: tests\[0\].input_series\[0\].values"):
        TestFile(file)


def test_promtool_refuses_the_same(tmp_path: Path) -> None:
    process = promtool(tmp_path, *([unit_test(text, [])] for text in BAD))
    assert (process.stdout.count("SUCCESS"), process.stderr.count("FAILED")) == (0, len(BAD)), process.stdout
