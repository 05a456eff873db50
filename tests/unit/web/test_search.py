from __future__ import annotations

import re
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsf.web.search import matches_pattern, parse_query, quote_term


def test_terms_and_words() -> None:
    query = parse_query('state:failing reason:bad_query cluster:eu-* "two words" Word nothere:x')
    assert query.list_patterns("state") == ["failing"]
    assert query.list_patterns("cluster") == ["eu-*"]
    assert query.words == ("two words", "word")
    assert query.unknown == ("nothere",)


@pytest.mark.parametrize(
    ("value", "pattern", "expected"),
    [
        ("eu-1", "eu-*", True),
        ("us-eu-1", "eu-*", False),
        ("EU-1", "eu-*", True),
        ("a[b]?c", "a[b]?c", True),
        ("ab", "a[b]", False),
        ("", "*", True),
        ("anything", "", False),
        ("abab", "ab*ab", True),
        ("aba", "ab*ba", False),
        ("a-mid-z", "a*mid*z", True),
        ("a-z-mid", "a*mid*z", False),
        ("abcb", "*b*b", True),
        ("abc", "**b****", True),
        ("a\nb", "a*b", True),
    ],
)
def test_patterns(value: str, pattern: str, expected: bool) -> None:
    assert matches_pattern(value, pattern) is expected


@given(st.text(alphabet="ab"), st.text(alphabet="ab*"))
def test_patterns_mean_what_they_say(value: str, pattern: str) -> None:
    text = re.sub(r"\*+", ".*", pattern)
    assert matches_pattern(value, pattern) is (re.fullmatch(text, value) is not None)


@pytest.mark.parametrize("pattern", ["*" * 30 + "~", "*a" * 200 + "~", "a*" * 249 + "~", "*" * 499 + "~"])
def test_no_pattern_takes_long(pattern: str) -> None:
    # Backtracking would need exponential time for these patterns.
    assert not matches_pattern("a" * 253, pattern)


def test_search_retains_no_memory() -> None:
    def search(start: int) -> None:
        for number in range(start, start + 1000):
            matches_pattern("worker01", f"{number}-{'x' * 200}*")

    search(0)
    tracemalloc.start()
    try:
        search(1000)
        assert tracemalloc.get_traced_memory()[0] < 100_000
    finally:
        tracemalloc.stop()


@given(st.text())
def test_search_parser_never_fails(text: str) -> None:
    query = parse_query(text)
    assert query.matches("cluster", "c") in (True, False)


@given(st.text(alphabet=st.characters(exclude_characters='"', exclude_categories=["Cs"]), min_size=1, max_size=50))
def test_quoted_value_is_one_term(text: str) -> None:
    query = parse_query(f"cluster:{quote_term(text)}")
    if text.strip() and ":" not in text:
        assert query.list_patterns("cluster") == [text.lower()] or len(text) > 490


def test_each_term_must_hold() -> None:
    query = parse_query("cluster:a* cluster:*b")
    assert query.matches("cluster", "ab")
    assert not query.matches("cluster", "ac")
