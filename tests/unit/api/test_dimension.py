from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsf.api.score import DEFAULT_FORMAT, DimensionFormat
from dsf.api.types import USED_LABELS
from tests.cases import load

FORMATS = st.text() | st.lists(
    st.sampled_from(["${cluster}", "${node}", "${pod}", "${scoreName}", "${", "}", "$", "%", "%s", "{0}", "x"])
).map("".join)
LABELS = st.dictionaries(st.sampled_from(USED_LABELS), FORMATS)


@pytest.mark.parametrize("case", load("dimensions"))
def test_render(case: dict[str, Any]) -> None:
    assert DimensionFormat(case["format"], case["cluster"], case["score"]).render(case["labels"]) == case["expected"]


def test_default_format_is_the_score_name() -> None:
    assert DEFAULT_FORMAT == "${scoreName}"


@given(FORMATS, FORMATS, FORMATS, LABELS)
def test_rendering_never_raises_and_is_one_pass(fmt: str, cluster: str, score: str, labels: dict[str, str]) -> None:
    # Reference implementation: walk the format from left to right, never looking at inserted values.
    values = {"cluster": cluster, "scoreName": score, **{name: labels.get(name, "") for name in USED_LABELS}}
    rest, expected = fmt or "${scoreName}", ""
    while rest:
        for name, value in values.items():
            placeholder = "${" + name + "}"
            if rest.startswith(placeholder):
                expected, rest = expected + value, rest[len(placeholder) :]
                break
        else:
            expected, rest = expected + rest[0], rest[1:]
    used_values = [values[name] for name in USED_LABELS if "${" + name + "}" in fmt]
    if used_values and not any(used_values) and not any(map(str.isalnum, expected)):
        # The format consists of separators only.
        expected = ""
    assert DimensionFormat(fmt, cluster, score).render(labels) == expected


def test_dimension_format_renders_repeatedly() -> None:
    dimension = DimensionFormat("${cluster}/${node}", "c", "s")
    assert [dimension.render({"node": node}) for node in ("a", "b")] == ["c/a", "c/b"]
