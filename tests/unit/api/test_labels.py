from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsf import metrics
from dsf.api.scoringresponse import make_gauge_label_values, truncate_label
from tests.cases import load

ANY_TEXT = st.text(alphabet=st.characters(), max_size=400)


@pytest.mark.parametrize("case", load("labels"))
def test_cut_label(case: dict[str, Any]) -> None:
    assert truncate_label(case["value"]) == case["expected"]


@given(ANY_TEXT, st.just(256) | st.integers(0, 20))
def test_truncated_label_is_the_longest_prefix_that_fits(value: str, limit: int) -> None:
    cut = truncate_label(value, limit)
    whole = value.encode("utf-8", "replace").decode()
    assert whole.startswith(cut)
    assert len(cut.encode()) <= limit
    assert cut == whole or len(whole[: len(cut) + 1].encode()) > limit


def test_gauge_labels() -> None:
    values = make_gauge_label_values("c1", "my_score", {"node": "n", "meta": "m" * 300, "foreign": "x"})
    assert dict(zip(metrics.SCORE.labels, values, strict=True)) == {
        "ds_cluster": "c1",
        "ds_node": "n",
        "ds_device": "",
        "ds_namespace": "",
        "ds_app": "",
        "ds_pod": "",
        "ds_container": "",
        "ds_meta": "m" * 256,
        "ds_score_name": "my_score",
    }


def test_same_value_under_two_label_names_gives_two_gauges() -> None:
    assert make_gauge_label_values("c", "s", {"node": "x"}) != make_gauge_label_values("c", "s", {"device": "x"})
