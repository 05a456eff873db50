from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsf.api.naming import is_dns_subdomain, make_label_value, sanitize_resource_name
from tests.cases import load

NAMES = st.text() | st.text(alphabet="aZ9.-_/ é", max_size=600)


# The name "..." has no usable characters, so it gets a hash like any other such name.
@pytest.mark.parametrize("case", load("resource_names"))
def test_sanitize(case: dict[str, Any]) -> None:
    assert sanitize_resource_name(case["name"]) == case["expected"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("x" * 300, "x" * 253),
        ("x" * 252 + "_y", "x" * 252),
        ("x" * 252 + ".y", "x" * 252),
        ("a." * 200, "a." * 126 + "a"),
    ],
)
def test_sanitize_cuts_to_253_and_trims_the_end(name: str, expected: str) -> None:
    assert sanitize_resource_name(name) == expected


def test_names_without_usable_characters_stay_distinct() -> None:
    assert len({sanitize_resource_name(name) for name in ("é", "日本", "___", "...", "-", "\ud800", "")}) == 7


@given(NAMES)
def test_sanitised_name_is_a_dns_subdomain_and_sanitising_is_idempotent(name: str) -> None:
    result = sanitize_resource_name(name)
    label = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
    assert re.fullmatch(rf"{label}(\.{label})*", result)
    assert len(result) <= 253
    assert is_dns_subdomain(result)
    assert sanitize_resource_name(result) == result


@pytest.mark.parametrize("name", ["", "A", "a_b", "-a", "a-", "a..b", ".a", "a.", "a\n", "a" * 254, "../a", "a/b", "é"])
def test_not_a_dns_subdomain(name: str) -> None:
    assert not is_dns_subdomain(name)


def test_label_value_keeps_short_names() -> None:
    assert make_label_value("sample-scorer") == "sample-scorer"
    assert make_label_value("x" * 63) == "x" * 63


def test_label_value_keeps_long_names_apart() -> None:
    first, second = make_label_value("x" * 64), make_label_value("x" * 64 + "y")
    assert first != second
    assert all(re.fullmatch("[a-z0-9]([-a-z0-9_.]*[a-z0-9])?", value) and len(value) <= 63 for value in (first, second))


def test_label_value_of_a_long_name_is_no_other_names() -> None:
    """The author of another scorer could otherwise name it so."""
    label = make_label_value("x" * 64)
    assert make_label_value(label) != label


@given(st.from_regex(r"[a-z0-9][-a-z0-9.]{0,251}[a-z0-9]", fullmatch=True))
def test_label_value_is_a_label_value(name: str) -> None:
    assert re.fullmatch("[a-z0-9]([-a-z0-9_.]{0,61}[a-z0-9])?", make_label_value(name))
