"""Publication of changed items: `spec.execution.hold`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsf.api.scorerule import HeldValue, hold_back, hold_back_value

#: (seconds, value) of one item, and the value that is published then.
Story = list[tuple[float, int | None, int | None]]


def replay(story: Story, min_change: int, for_seconds: float) -> list[int | None]:
    """Return the published value of one item after each event; None in the story means that the item is absent."""
    published: dict[str, int] = {}
    waiting: dict[str, HeldValue] = {}
    published_values = []
    for at, value, _ in story:
        measured = {} if value is None else {"a": value}
        published, waiting = hold_back(published, measured, waiting, at, min_change=min_change, for_seconds=for_seconds)
        published_values.append(published.get("a"))
    return published_values


@pytest.mark.parametrize(
    ("min_change", "for_seconds", "story"),
    [
        pytest.param(5, 60, [(0, 50, 50)], id="the first value at once"),
        pytest.param(5, 0, [(0, 50, 50), (30, 54, 50), (60, 55, 55), (90, 51, 55), (120, 50, 50)], id="at once"),
        pytest.param(
            5, 60, [(0, 50, 50), (30, 60, 50), (60, 61, 50), (89, 70, 50), (90, 59, 59)], id="the newest after the time"
        ),
        pytest.param(
            5,
            60,
            [(0, 50, 50), (30, 60, 50), (60, 54, 50), (90, 60, 50), (149, 60, 50), (150, 60, 60)],
            id="a value that is near starts the time anew",
        ),
        pytest.param(
            5,
            60,
            [(0, 50, 50), (30, 60, 50), (60, 40, 50), (90, 60, 50), (120, 60, 50), (150, 60, 60)],
            id="so does one on the other side",
        ),
        pytest.param(5, 60, [(0, 50, 50), (30, 60, 50), (60, 50, 50), (90, 60, 50)], id="and the published one"),
        pytest.param(
            5, 60, [(0, 50, 50), (30, 60, 50), (60, None, None), (90, 60, 60)], id="an item that went comes at once"
        ),
        pytest.param(3, 0, [(0, 0, 0), (1, 2, 0), (2, 4, 4), (3, 6, 4), (4, 8, 8)], id="a slow drift, in steps"),
        pytest.param(
            5,
            60,
            [(100, 50, 50), (130, 60, 50), (70, 60, 50), (129, 60, 50), (130, 60, 60)],
            id="a clock that is set back starts it anew",
        ),
        pytest.param(5, 60, [(0, 50, 50), (30, 60, 50), (9000, 60, 60)], id="cycles that are missing count"),
        pytest.param(1, 0, [(0, 50, 50), (1, 51, 51), (2, 50, 50)], id="one point and no time holds nothing"),
        pytest.param(200, 0, [(0, -100, -100), (1, 99, -100), (2, 100, 100)], id="the whole range"),
    ],
)
def test_hold_publishes_changes_of_an_item_by_its_rule(min_change: int, for_seconds: float, story: Story) -> None:
    assert replay(story, min_change, for_seconds) == [expected for _, _, expected in story]


@pytest.mark.parametrize(
    ("before", "min_change", "for_seconds", "expected"),
    [
        # The value 60 was measured at 0, when 5 points were enough; now it is 100 s later.
        (HeldValue(60, 0.0, 6), 5, 60, None),
        (HeldValue(60, 0.0, 6), 6, 60, None),
        (HeldValue(60, 0.0, 6), 7, 60, HeldValue(60, 100.0, 10)),
        (HeldValue(60, 0.0, 6), 5, 120, HeldValue(60, 0.0, 6)),
        (HeldValue(60, 0.0, 6), 11, 60, HeldValue(60, None, 10)),
        (HeldValue(54, None, 4), 4, 60, HeldValue(60, 100.0, 10)),
    ],
)
def test_hold_applies_a_changed_rule_to_a_waiting_change(
    before: HeldValue, min_change: int, for_seconds: float, expected: HeldValue | None
) -> None:
    assert hold_back_value(50, 60, before, 100.0, min_change=min_change, for_seconds=for_seconds) == expected


def test_items_are_judged_apart_and_keep_their_order() -> None:
    values, waiting = hold_back({"b": 1, "a": 2}, {"c": 9, "a": 3, "b": 50}, {}, 0, min_change=5, for_seconds=0)
    assert list(values.items()) == [("c", 9), ("a", 2), ("b", 50)]
    assert waiting == {"a": HeldValue(3, None, 1)}


def published_by_rule(values: list[tuple[float, int]], min_change: int, for_seconds: float) -> list[int]:
    """Apply the rule of docs/scoring-api.md to the whole history instead of a state."""
    published = values[0][1]
    published_values = []
    start = 0
    for number, (at, value) in enumerate(values):
        distances = [
            (earlier - published) * (1 if value > published else -1) for _, earlier in values[start : number + 1]
        ]
        first_number = number
        while first_number > start and distances[first_number - 1 - start] >= min_change:
            first_number -= 1
        if distances[-1] >= min_change and at - values[first_number][0] >= for_seconds:
            published, start = value, number
        published_values.append(published)
    return published_values


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(-100, 100)), min_size=1, max_size=40),
    st.integers(1, 200),
    st.integers(0, 100),
)
def test_as_the_words_say(steps: list[tuple[int, int]], min_change: int, for_seconds: int) -> None:
    values, at = [], 0.0
    for step, value in steps:
        at += step
        values.append((at, value))
    assert replay([(at, value, None) for at, value in values], min_change, for_seconds) == published_by_rule(
        values, min_change, for_seconds
    )


@given(st.lists(st.tuples(st.floats(0, 1e4), st.integers(-100, 100)), min_size=2, max_size=30), st.integers(1, 50))
def test_published_value_was_measured_and_moved_by_min_change(values: list[tuple[float, int]], min_change: int) -> None:
    """Holds for clocks that jump, too."""
    published_values = replay([(at, value, None) for at, value in values], min_change, 30)
    for before, after, (_, value) in zip(published_values, published_values[1:], values[1:], strict=False):
        assert after == before or (after == value and abs(after - (before or 0)) >= min_change)
