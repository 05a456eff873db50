from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsf.api.promql import split_queries
from tests.cases import load

CONTENT = st.text(alphabet=" ;#'\"`\\ax\n", max_size=10)
STRINGS = st.one_of(
    *(
        CONTENT.map(lambda text, q=quote: q + text.replace("\\", "\\\\").replace(q, "\\" + q) + q)  # type: ignore[misc]
        for quote in "\"'"
    ),
    CONTENT.map(lambda text: "`" + text.replace("`", "") + "`"),
)
QUERIES = STRINGS.map(lambda string: f"a{{x={string}}}")


@pytest.mark.parametrize("case", load("queries"))
def test_split(case: dict[str, Any]) -> None:
    assert split_queries(case["text"]) == case["expected"]


@given(st.lists(QUERIES))
def test_joined_queries_are_split_unchanged(queries: list[str]) -> None:
    assert split_queries(";".join(queries)) == queries


@given(st.text() | CONTENT)
def test_splitting_never_raises_and_leaves_no_blank_query(text: str) -> None:
    assert all(query == query.strip() != "" for query in split_queries(text))
