"""The demo's screen fits any terminal, and the cause of a failure is on it."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from dsf.demo.report import PairLine
from dsf.demo.screen import Screen

SIZES = [(80, 24), (110, 30), (200, 50)]
SCORERS = (
    *("example-performance-scorer", "example-powerconsumption-scorer", "resource-usage-scorer", "sample-scorer"),
    "simple-prediction-scorer",
)
CAUSE = 'invalid parameter "query": 1:8: parse error: unexpected end of input in aggregation, expected ")"'
FAILURE = f"fetch bad_query: GET http://127.0.0.1:9090/api/v1/query_range: HTTP 400: {CAUSE}"
FOOTER = [
    "Ctrl-C ends everything.",
    "  dsf status",
    *(f"place {number}  http://{number}" for number in range(12)),
]


def line(cluster: str, scorer: str, failure: str = "") -> PairLine:
    return PairLine(cluster, scorer, 3, -100, 100, 12.0, 1e12 if failure else None, int(bool(failure)), failure, 1.0)


def lines(clusters: int = 2, failing: tuple[str, ...] = ()) -> list[PairLine]:
    names = [f"worker{number:02}" for number in range(1, clusters + 1)]
    return [line(name, scorer, FAILURE if scorer in failing else "") for name in names for scorer in SCORERS]


def render_lines(size: tuple[int, int], screen: Screen) -> list[str]:
    """Return the lines that a terminal of (columns, lines) displays."""
    output = io.StringIO()
    Console(file=output, width=size[0], height=size[1], color_system=None).print(screen)
    rendered_lines = output.getvalue().splitlines()
    assert len(rendered_lines) < size[1]
    assert all(len(text) <= size[0] for text in rendered_lines)
    return rendered_lines


@pytest.mark.parametrize("size", SIZES)
def test_demo_with_all_its_scorers_fits(size: tuple[int, int]) -> None:
    rendered_lines = render_lines(size, Screen(lines(), (), FOOTER))
    assert rendered_lines[0].split() == ["CLUSTER", "SCORER", "ITEMS", "LOW", "HIGH", "AGE", "NEXT", "FAILED"]
    assert [tuple(text.split()[:2]) for text in rendered_lines[1:11]] == [
        (pair_line.cluster, pair_line.scorer) for pair_line in lines()
    ]
    assert rendered_lines[12] == FOOTER[0]


@pytest.mark.parametrize("size", SIZES)
def test_cause_of_a_single_failure_is_complete(size: tuple[int, int]) -> None:
    rendered_lines = render_lines(size, Screen(lines(failing=("sample-scorer",)), (), FOOTER))
    # Where its lines are broken is a matter of the width.
    text = "".join(rendered_lines[11:]).replace(" ", "")
    assert f"sample-scorer on worker01, worker02: fetch bad_query: HTTP 400: {CAUSE}".replace(" ", "") in text
    assert "(GEThttp://127.0.0.1:9090/api/v1/query_range)" in text


@pytest.mark.parametrize("size", SIZES)
def test_failing_pairs_are_shown_first(size: tuple[int, int]) -> None:
    rendered_lines = render_lines(size, Screen(lines(20, failing=("sample-scorer",)), (), FOOTER))
    assert rendered_lines[1].split()[:2] == ["worker01", "sample-scorer"]
    assert any("`dsf scores` shows all" in text for text in rendered_lines)
    assert any("fetch bad_query" in text for text in rendered_lines)
    assert FOOTER[0] in rendered_lines


@pytest.mark.parametrize("size", SIZES)
def test_many_problems_are_truncated_with_a_note(size: tuple[int, int]) -> None:
    rendered_lines = render_lines(
        size, Screen(lines(3, failing=SCORERS), [f"hub {number} ended" for number in range(100)], FOOTER)
    )
    assert "... `dsf status` shows everything" in rendered_lines


def test_screen_strips_control_sequences_of_foreign_services() -> None:
    rendered_lines = render_lines(
        (80, 24), Screen([line("worker01", "s", "score bad: \x1b[2J\nroot$")], ["\x1b[31m"], ())
    )
    assert not any("\x1b" in text for text in rendered_lines)


def test_screen_before_the_first_pair_says_so() -> None:
    assert render_lines((80, 24), Screen([], (), FOOTER))[:3] == ["waiting for the hub", "", FOOTER[0]]
