from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from dsf.api.summary import ScorerSummary, dump_summaries, parse_summaries
from dsf.errors import ManifestError

UPSTREAM_KEYS = [
    "name",
    "scoreName",
    "sourceType",
    "sourceEndpoint",
    "sourceEndpointAuthName",
    "sourceEndpointAuthKey",
    "sourceQuery",
    "sourceRange",
    "sourceStep",
    "scoringEndpoint",
    "scoringInterval",
    "scoringEndpointAuthName",
    "scoringEndpointAuthKey",
    "location",
    "scoreDestination",
    "scoreDimensionFormat",
]
TEXT = st.text(max_size=20)
NUMBERS = st.integers(0, 2**31 - 1)
SUMMARIES = st.builds(
    ScorerSummary,
    name=TEXT.filter(bool),
    score_name=TEXT.filter(bool),
    source_type=TEXT,
    source_endpoint=TEXT,
    source_query=TEXT,
    source_range=NUMBERS,
    source_step=NUMBERS,
    scoring_endpoint=TEXT,
    scoring_interval=NUMBERS,
    score_dimension_format=TEXT,
    max_retries=NUMBERS,
)


def test_former_16_keys_come_first_and_in_order_even_if_empty() -> None:
    (element,) = json.loads(dump_summaries([ScorerSummary(name="scorer-a", score_name="latency")]))
    assert list(element) == [*UPSTREAM_KEYS, "timeoutSeconds", "maxRetries", "validitySeconds"]
    assert [element[key] for key in UPSTREAM_KEYS] == [
        "scorer-a", "latency", "", "", "", "", "", 0, 0, "", 0, "", "", "", "", "",
    ]  # fmt: skip


def test_no_summaries_are_an_empty_array() -> None:
    assert dump_summaries([]) == "[]"
    assert parse_summaries("[]") == []


def test_equal_sets_are_equal_texts() -> None:
    a, b = ScorerSummary(name="a", score_name="z"), ScorerSummary(name="b", score_name="y")
    assert dump_summaries([b, a]) == dump_summaries([a, b])
    assert parse_summaries(dump_summaries([b, a])) == [a, b]


@given(st.lists(SUMMARIES, max_size=5))
def test_summaries_survive_dump_and_parse(summaries: list[ScorerSummary]) -> None:
    read = parse_summaries(dump_summaries(summaries))
    assert read == sorted(summaries, key=lambda summary: (summary.name, summary.score_name))


def test_summary_of_another_version_is_read() -> None:
    text = '[{"name": "a", "scoreName": "s", "scoringInterval": 200, "sourceType": "Martian", "new": [1]}]'
    (summary,) = parse_summaries(text)
    assert (summary.source_type, summary.timeout_seconds, summary.max_retries) == ("Martian", 30, 2)
    assert summary.validity_seconds == 600


def test_summary_is_hashable_and_immutable() -> None:
    summary = ScorerSummary(name="a", score_name="s")
    assert len({summary, ScorerSummary(name="a", score_name="s")}) == 1
    with pytest.raises(ValidationError, match="frozen"):
        summary.name = "b"  # type: ignore[misc]


GOOD: dict[str, Any] = {"name": "a", "scoreName": "s"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("not json", "summaries: not JSON (Expecting value: line 1 column 1 (char 0))"),
        ("", "summaries: not JSON (Expecting value: line 1 column 1 (char 0))"),
        ("{}", "summaries: not a JSON array"),
        (json.dumps([GOOD, 5]), "summaries[1]: 5 is not a mapping of fields"),
        (json.dumps([GOOD, {"name": "b"}]), "summaries[1].scoreName: is required"),
        (json.dumps([{**GOOD, "name": ""}]), "summaries[0].name: must not be empty"),
        (json.dumps([{**GOOD, "sourceRange": "60"}]), "summaries[0].sourceRange: '60' is not a whole number"),
        (json.dumps([{**GOOD, "scoringInterval": -1}]), "summaries[0].scoringInterval: -1 is less than 0"),
        (json.dumps([{**GOOD, "location": None}]), "summaries[0].location: None is not text"),
        (
            json.dumps([{**GOOD, "sourceStep": 1.5, "location": 3}]),
            "summaries[0].sourceStep: 1.5 is not a whole number; summaries[0].location: 3 is not text",
        ),
    ],
)
def test_bad_summary_names_its_element_and_field(text: str, message: str) -> None:
    with pytest.raises(ManifestError) as raised:
        parse_summaries(text)
    assert str(raised.value) == message
