"""Regular expressions: equal to Python's where both know the syntax, and never slow."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsf.sources.pattern import Pattern, PatternError

atoms = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", r"\d", r"\.", "^", "$", ""])
repeats = st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{0,2}", "{2,}", "{0}", "*?"])
expressions = st.recursive(
    atoms,
    lambda inner: (
        st.tuples(inner, inner).map("".join)
        | st.tuples(inner, inner).map(lambda two: f"({two[0]}|{two[1]})")
        | st.tuples(inner, repeats).map(lambda two: f"(?:{two[0]}){two[1]}")
    ),
    max_leaves=8,
)


@given(expressions, st.lists(st.text("ab1.\n", max_size=6), min_size=1, max_size=5))
def test_it_matches_what_pythons_engine_matches(text: str, values: list[str]) -> None:
    pattern = Pattern(text)
    for value in values:
        # Python's `$` is also before a newline at the end; RE2's is not.
        expected = re.fullmatch(text.replace("$", r"\Z"), value, re.DOTALL) is not None
        assert pattern.matches(value) is expected, (text, value)


@pytest.mark.parametrize(
    ("text", "value", "matches"),
    [
        ("", "", True),
        ("web-.*", "web-1", True),
        ("web", "web-1", False),
        ("prod|staging", "staging", True),
        ("(?i)PROD", "prod", True),
        (r"10\.0\..*", "10a0.1", False),
        ("[[:alpha:]]", "a", None),
        ("é.", "éa", True),
    ],
)
def test_examples(text: str, value: str, matches: bool | None) -> None:
    if matches is None:
        with pytest.raises(PatternError):
            Pattern(text)
    else:
        assert Pattern(text).matches(value) is matches


@pytest.mark.parametrize("text", ["(a*)*b", "(a|a)*b", "(a?){30}a{30}b", "(.*)(.*)(.*)(.*)(.*)x"])
def test_it_takes_no_longer_than_the_value_is_long(text: str) -> None:
    began = time.perf_counter()
    assert not Pattern(text).matches("a" * 2000)
    assert time.perf_counter() - began < 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("(", "a ( has no )"),
        (")", "a ) has no ("),
        ("*a", "nothing for * to repeat"),
        ("a**", "repeats a repetition"),
        ("a{3,2}", "no number of repetitions"),
        ("a{2000}", "no number of repetitions"),
        ("(a{900}){900}", "too large"),
        (r"(a)\1", "not supported"),
        ("(?=a)", "nothing for ? to repeat"),
        ("[a-", "a [ has no ]"),
        (r"\pL", "bad escape"),
        ("(" * 60 + ")" * 60, "deep"),
        ("a" * 1001, "more than 1000 characters"),
    ],
)
def test_what_it_does_not_know_is_refused(text: str, words: str) -> None:
    with pytest.raises(PatternError) as caught:
        Pattern(text)
    assert words in str(caught.value)
