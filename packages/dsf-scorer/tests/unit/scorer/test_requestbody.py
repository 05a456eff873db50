"""Parsing of bodies into series: fast for JSON of Prometheus, with equal results for any other equal JSON."""

from __future__ import annotations

import json
import math
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsf.scorer import Limits, Series, requestbody
from dsf.scorer.errors import RefusedError

LIMITS = Limits()


def dump_compact(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def request_document(*samples: list[Any], **labels: str) -> dict[str, Any]:
    return {"data": [{"metric": labels, "values": list(samples)}]}


def parse(document: Any, limits: Limits = LIMITS) -> list[Series]:
    return requestbody.parse(document if isinstance(document, bytes) else dump_compact(document), limits)


def refusal(document: Any, limits: Limits = LIMITS) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        parse(document, limits)
    return caught.value


def make_comparable(series: list[Series]) -> list[Any]:
    return [(entry.labels, entry.times.tolist(), [str(value) for value in entry.values.tolist()]) for entry in series]


def test_labels_times_and_values() -> None:
    (series,) = parse(request_document([1718600000, "0.5"], [1718600060.781, "-1e3"], pod="web"))
    assert series.labels == {"pod": "web"}
    assert series.times.tolist() == [1718600000.0, 1718600060.781]
    assert series.values.tolist() == [0.5, -1000.0]
    assert series.times.dtype == series.values.dtype == np.float64
    assert series.values.flags.owndata
    assert series.values.flags.writeable


@pytest.mark.parametrize("text", ["NaN", "+Inf", "-Inf", "Inf", "1e999"])
def test_non_finite_sample_becomes_nan(text: str) -> None:
    (series,) = parse(request_document([1, text], [2, "7"]))
    assert math.isnan(series.values[0])
    assert series.values[1] == 7


def test_fast_path_parses_bodies_of_prometheus(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*_: object) -> None:
        raise AssertionError("the slow path was taken")

    monkeypatch.setattr(requestbody, "_convert_samples", slow)
    assert len(parse(request_document([1718600000, "0.5"], [1718600060.781, "NaN"], pod="[[]]"))) == 1


SPACED = json.dumps(request_document([1, "2"], [2, "3"])).encode()


@pytest.mark.parametrize(
    "body",
    [
        SPACED,
        dump_compact(request_document([1, 2], [2, 3.0])),
        b'{"data":[{"values":[[1,"2"],[2,"3"]],"metric":{},"more":{"values":"x"}}],"data2":[]}',
        b' \n{"data":[{"metric":{},"values":[ [1,"2"],[2,"3"] ]}]}\n',
    ],
)
def test_other_forms_of_the_same(body: bytes) -> None:
    (series,) = parse(body)
    assert (series.times.tolist(), series.values.tolist()) == ([1, 2], [2, 3])


def test_series_of_native_histograms_has_no_samples() -> None:
    (series,) = parse({"data": [{"metric": {}, "histograms": [[1, {"count": "1"}]]}]})
    assert series.is_empty


@pytest.mark.parametrize("body", [b'{"data":[]}', b'{"data":null}', b'{"data": null, "more": 1}'])
def test_no_series(body: bytes) -> None:
    """Go writes a slice without elements as null, and upstream's agent is written in Go."""
    assert parse(body) == []


@pytest.mark.parametrize("absent", ['"values":null', '"values":null,"histograms":[]', '"values":[]'])
def test_series_without_samples_is_read_as_go_writes_it(absent: str) -> None:
    first, second = parse(f'{{"data":[{{"metric":null,{absent}}},{{"metric":{{}},"values":[[1,"2"]]}}]}}'.encode())
    assert (first.labels, first.is_empty) == ({}, True)
    assert second.values.tolist() == [2]


@pytest.mark.parametrize(
    "label", ['"values":[[1,"2"]]', 'a","values":[[', "\\", '\\"values":[[', "[[", "]]", "é", "{}", "\u2028"]
)
def test_labels_that_look_like_samples(label: str) -> None:
    (series, other) = parse(
        {"data": [request_document([1, "2"], x=label)["data"][0], request_document([1, "3"], **{label: ""})["data"][0]]}
    )
    assert series.labels == {"x": label}
    assert other.labels == {label: ""}
    assert (series.values[0], other.values[0]) == (2, 3)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
numbers = st.floats(-1e9, 1e9) | st.integers(-(10**6), 10**6)
values = st.sampled_from(["NaN", "+Inf", "-Inf", "0"]) | numbers.map(repr)
series_lists = st.lists(
    st.fixed_dictionaries(
        {
            "metric": st.dictionaries(texts, texts, max_size=3),
            "values": st.lists(st.tuples(numbers, values).map(list), max_size=5),
        }
    ),
    max_size=4,
)


@given(series_lists)
def test_both_paths_agree(data: list[dict[str, Any]]) -> None:
    expected = [
        (
            entry["metric"],
            [float(at) for at, _ in entry["values"]],
            ["nan" if not math.isfinite(float(value)) else str(float(value)) for _, value in entry["values"]],
        )
        for entry in data
    ]
    assert make_comparable(parse({"data": data})) == expected
    for blanks in (None, 1):
        assert make_comparable(parse(json.dumps({"data": data}, indent=blanks).encode())) == expected


@given(
    st.binary(max_size=40) | series_lists.map(lambda data: dump_compact({"data": data})),
    st.integers(0, 400),
    st.binary(max_size=3),
)
def test_any_bytes_are_parsed_or_refused(body: bytes, position: int, inserted: bytes) -> None:
    position = min(position, len(body))
    try:
        parse(body[:position] + inserted + body[position:])
        status = 200
    except RefusedError as error:
        status = error.status
    assert status in (200, 400, 422)


@pytest.mark.parametrize(
    ("body", "status", "detail"),
    [
        (b"", 400, "not JSON"),
        (b"{", 400, "not JSON"),
        (b"a,b", 400, "not JSON"),
        (b'{"data":[{"metric":{},"values":[[1,"2"]', 400, "not JSON"),
        (b'{"data":[{"metric":{},"values":[[1,"2"],]}]}', 400, "not JSON"),
        (b'{"data":[{"metric":{},"values":[[1,NaN]]}]}', 400, "not JSON"),
        (b'{"data":[{"metric":{"a":"\\ud800"},"values":[]}]}', 400, "not JSON"),
        (b'\xff{"data":[]}', 400, "not JSON"),
        (b"[" * 100_000, 400, "not JSON"),
        ([], 422, 'the request is not {"data": [...]}'),
        ({}, 422, 'the request is not {"data": [...]}'),
        (None, 422, 'the request is not {"data": [...]}'),
        ({"data": [5]}, 422, "data[0] is not an object"),
        ({"data": [{"values": []}]}, 422, "data[0].metric is not an object of labels"),
        ({"data": [{"metric": {"a": 1}, "values": []}]}, 422, "data[0].metric['a'] is not text"),
        ({"data": [{"metric": {}}]}, 422, "data[0].values is not a list"),
        ({"data": [{"metric": {}, "value": [1, "2"]}]}, 422, "data[0].values is not a list"),
        ({"data": [{"metric": {}, "values": "x"}]}, 422, "data[0].values is not a list"),
        (request_document([1, "2", "3"]), 422, "data[0].values[0] is not [unix seconds, value]"),
        (request_document([1, "2"], ["1", "2"]), 422, "data[0].values[1][0] is not a number of seconds"),
        (request_document([1, "x"]), 422, "data[0].values[0][1] is not a number as text"),
        (request_document([1, ""]), 422, "data[0].values[0][1] is not a number as text"),
        (request_document([1, "1_0"]), 422, "data[0].values[0][1] is not a number as text"),
        (request_document([1, " 1"]), 422, "data[0].values[0][1] is not a number as text"),
        (request_document([1, "1,2"]), 422, "data[0].values[0][1] is not a number as text"),
        (request_document([1, True]), 422, "data[0].values[0][1] is not a number as text"),
        (request_document([True, "1"]), 422, "data[0].values[0][0] is not a number of seconds"),
        (request_document([1, None]), 422, "data[0].values[0][1] is not a number as text"),
        (request_document([10**400, "1"]), 422, "data[0].values has a time beyond 9000000000"),
        (request_document([1718600000000, "1"]), 422, "milliseconds perhaps?"),
    ],
)
def test_refusals_say_where(body: Any, status: int, detail: str) -> None:
    error = refusal(body)
    assert error.status == status
    assert detail in error.detail


def test_placeholder_for_samples_cannot_be_sent() -> None:
    assert refusal(b'{"data":[{"metric":{},"values":0},{"metric":{},"values":[[1,"2"]]}]}').status == 422
    (series, _) = parse(b'{"data":[{"metric":{},"values":[]},{"metric":{},"values":[[1,"2"]]}]}')
    assert series.is_empty


@pytest.mark.parametrize(
    "document", [request_document([1, "2"], [2, "3"], [3, "4"]), SPACED.replace(b"]]", b'], [3, "4"]]')]
)
def test_samples_are_limited(document: Any) -> None:
    assert len(parse(document, Limits(samples=3, series=1))) == 1
    error = refusal(document, Limits(samples=1, series=1))
    assert (error.status, "more than 1 samples" in error.detail) == (413, True)


@pytest.mark.parametrize("sample", ['[1, "2" ]', "[ 1,2]", '[1,"2"] '])
def test_samples_in_another_format_than_prometheus_are_limited(sample: str) -> None:
    limits = Limits(series=1, labels=300)
    bodies = [f'{{"data":[{{"metric":{{}},"values":[{",".join([sample] * count)}]}}]}}' for count in (100, 102)]
    (series,) = parse(bodies[0].encode(), limits)
    assert series.values.tolist() == [2] * 100
    error = refusal(bodies[1].encode(), limits)
    assert (error.status, "not written as Prometheus does" in error.detail) == (413, True)
    # Samples that the fast parser reads are counted elsewhere.
    assert len(parse(request_document(*[[1, "2"]] * 1000), limits)[0]) == 1000


@pytest.mark.parametrize("blank", ["", " "])
def test_labels_of_a_request_are_limited(blank: str) -> None:
    def make_body(label_count: int) -> bytes:
        labels = {f"l{number}": "v" for number in range(label_count)}
        document = {"data": [{"metric": labels, "values": [[1, "2"]]}] * 100}
        return json.dumps(document, separators=(f",{blank}", f":{blank}")).encode()

    limits = Limits(labels=4_000)
    assert len(parse(make_body(40), limits)) == 100
    error = refusal(make_body(44), limits)
    assert (error.status, "more than 4000 labels" in error.detail) == (413, True)


@pytest.mark.parametrize("character", ["\N{GRINNING FACE}", "\\ud83d\\ude00", "\\uD83D\\uDE00"])
def test_labels_with_wide_characters_have_half_of_the_bytes(character: str) -> None:
    limits = Limits(bytes=2_000)
    bodies = [
        f'{{"data":[{{"metric":{{"a":"{first}{"x" * 1_500}"}},"values":[]}}]}}' for first in ("\u00e9", character)
    ]
    assert len(parse(bodies[0].encode(), limits)) == 1
    error = refusal(bodies[1].encode(), limits)
    assert (error.status, "more than 1000 bytes besides samples" in error.detail) == (413, True)


def test_long_names_are_shortened_in_refusals() -> None:
    name = "x" * 100_000
    assert len(refusal({"data": [{"metric": {name: 1}, "values": []}]}).detail) < 1_000
    for sources in ({name: []}, {"load": [], name: 1}, {"load": [], name: [1]}):
        with pytest.raises(RefusedError) as caught:
            requestbody.parse_sources(dump_compact({"data": [], "sources": sources}), LIMITS, ["load"])
        assert len(caught.value.detail) < 1_000


def test_series_are_limited() -> None:
    document = {"data": request_document([1, "2"])["data"] * 3}
    assert len(parse(document, Limits(series=3))) == 3
    error = refusal(document, Limits(series=2))
    assert (error.status, "more than 2 series" in error.detail) == (413, True)


def test_labels_cannot_contain_parser_placeholders() -> None:
    body = b'{"data":[{"metric":{"node":"n1","values":[[1,"2"]]},"values":[[1,"2"]]}]}'
    assert refusal(body).status == 422
    for text in (f"{requestbody._NONCE}99", f"{requestbody._NONCE}x"):
        assert refusal({"data": [{"metric": {}, "values": text}]}).status == 422


def test_source_without_series_may_be_null() -> None:
    series_by_source = requestbody.parse_sources(
        dump_compact({"data": [], "sources": {"load": None}}), LIMITS, ["load"]
    )
    assert series_by_source == {"load": []}


@given(st.lists(st.tuples(numbers, numbers).map(list), max_size=5))
def test_values_may_be_numbers(samples: list[Any]) -> None:
    expected = [[float(at) for at, _ in samples], [float(value) for _, value in samples]]
    for body in (dump_compact(request_document(*samples)), json.dumps(request_document(*samples)).encode()):
        (series,) = parse(body)
        assert [series.times.tolist(), series.values.tolist()] == expected


@pytest.mark.parametrize("sample", [b"[1,NaN]", b"[1,+5]", b"[1,Infinity]", b"[1,1-2]", b"[1,]", b"[,1]", b"[1, 2 3]"])
def test_numbers_that_json_lacks_are_refused(sample: bytes) -> None:
    for between in (b",", b", "):
        body = b'{"data":[{"metric":{},"values":%s[[1,2]%s%s]}]}' % (between[1:], between, sample)
        assert refusal(body).status == 400


@pytest.mark.parametrize(
    "data",
    [
        "[" + "1," * 300_000 + "1]",
        "{" + ",".join(f'"{number}":1' for number in range(100_000)) + "}",
        '[{"metric":{},"values":[[1,"2"]],"further":[' + '"",' * 300_000 + '""]}]',
    ],
    ids=["numbers", "names", "texts"],
)
def test_values_besides_samples_are_refused_before_they_are_parsed(data: str) -> None:
    body = f'{{"data":{data}}}'.encode()
    tracemalloc.start()
    try:
        with pytest.raises(RefusedError, match="values that are neither samples nor labels") as caught:
            parse(body)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (caught.value.status, peak < len(body)) == (413, True)


def test_series_with_many_labels_is_read() -> None:
    labels = {f"label_{number}": "a,b,c" for number in range(128)}
    (series,) = parse({"data": [{"metric": labels, "values": [[1, "2"]]}]})
    assert dict(series.labels) == labels


@pytest.mark.parametrize("blank", ["", " "])
@pytest.mark.parametrize("quote", ["", '"'])
def test_long_series_takes_little_more_memory_than_its_request(blank: str, quote: str) -> None:
    samples = f",{blank}".join(
        f"[{1_718_600_000 + number},{blank}{quote}{number}.5{quote}]" for number in range(300_000)
    )
    body = f'{{"data":[{{"metric":{{}},"values":{blank}[{samples}]}}]}}'.encode()
    tracemalloc.start()
    try:
        (series,) = parse(body, Limits())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (len(series), series.values[-1]) == (300_000, 299_999.5)
    # Memory holds the arrays, and one piece as Python objects.
    assert peak < 2 * len(body)
