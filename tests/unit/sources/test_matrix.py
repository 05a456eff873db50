"""Cutting the series out of a response equals parsing it, for every shape of JSON."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsf.sources.prometheus import MatrixError, extract_series

SERIES = {"metric": {"__name__": "up", "pod": "a"}, "values": [[1718600000, "1"], [1718600060.5, "NaN"]]}
HISTOGRAM = {
    "metric": {"le": "}]}"},
    "histograms": [[1718600000, {"count": "1", "sum": "2", "buckets": [[0, "1", "2", "3"]]}]],
}

texts = st.text(max_size=20) | st.sampled_from(
    ['{"metric":{', ',{"metric":{', '"result":[', "]}", "\\", '\\"', '"]}]}}', "[", "}", "é", "\x00", "\U0001f600"]
)
labels = st.dictionaries(texts, texts, max_size=4)
points = st.lists(st.tuples(st.floats(0, 2e9) | st.integers(0, 2**31), texts).map(list), max_size=4)
series = st.lists(
    st.fixed_dictionaries({"metric": labels, "values": points}) | st.sampled_from([SERIES, HISTOGRAM]), max_size=5
)
extras = st.dictionaries(
    st.sampled_from(["warnings", "infos", "stats", "isPartial", "trace"]),
    st.lists(texts, max_size=3) | texts | st.dictionaries(texts, texts | st.lists(texts), max_size=3) | st.booleans(),
    max_size=3,
)


def response_document(result: Any, **extra: Any) -> dict[str, Any]:
    return {"status": "success", "data": {"resultType": "matrix", "result": result}, **extra}


def dump_compact(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")


def parse_matrix(body: bytes) -> Any:
    return json.loads(b"[" + bytes(extract_series(body).items) + b"]")


@given(series, extras, extras, st.randoms(use_true_random=False), st.sampled_from([None, 1, 4]), st.booleans())
def test_any_valid_answer_is_cut_like_it_would_be_parsed(
    result: list[Any], top: dict[str, Any], inner: dict[str, Any], random: Any, indent: int | None, ascii_only: bool
) -> None:
    document = response_document(result)
    data = list({**document["data"], **inner}.items())
    random.shuffle(data)
    fields = list({**document, **top, "data": dict(data)}.items())
    random.shuffle(fields)
    separators = (",", ":") if indent is None else None
    text = json.dumps(dict(fields), indent=indent, separators=separators, ensure_ascii=ascii_only)
    try:
        body = text.encode()
    except UnicodeEncodeError:
        return
    assert parse_matrix(body) == json.loads(text)["data"]["result"]
    assert extract_series(body).series == len(result)


@given(series, extras, st.integers(1, 200))
def test_truncated_answer_is_refused(result: list[Any], extra: dict[str, Any], missing_bytes: int) -> None:
    body = json.dumps(response_document(result, **extra), separators=(",", ":")).encode()
    with pytest.raises(MatrixError):
        extract_series(body[: -min(missing_bytes, len(body))])


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not JSON"),
        (b"<html>", "not JSON"),
        (b"[]", "the response is not {"),
        (b'{"status":"success"}', "the response is not {"),
        (b'"\\"result\\":["', "the response is not {"),
        (
            dump_compact({"status": "success", "data": {"resultType": "vector", "result": []}}),
            "'vector' and not a matrix",
        ),
        (
            dump_compact({"status": "success", "data": {"resultType": "scalar", "result": 1}}),
            "'scalar' and not a matrix",
        ),
        (dump_compact({"status": "error", "errorType": "timeout", "error": "too slow"}), "timeout: too slow"),
        (dump_compact({"status": "error", "data": {"resultType": "matrix", "result": []}}), "the response is not {"),
        (dump_compact({"data": {"resultType": "matrix"}, "other": {"result": [SERIES]}}), "the response is not {"),
        (dump_compact(response_document([SERIES])) + b"x", "not JSON"),
        (dump_compact(response_document([SERIES]))[:-1] + b',"warnings":["]}}', "not JSON"),
        (dump_compact(response_document([SERIES]))[:-4], "ends within the series"),
    ],
)
def test_non_matrix_answer_is_refused_with_its_reason(body: bytes, words: str) -> None:
    with pytest.raises(MatrixError) as caught:
        extract_series(body)
    assert words in str(caught.value)


def test_second_array_of_series_is_not_mistaken_for_the_first() -> None:
    document = response_document([SERIES, SERIES])
    document["exemplars"] = [{"metric": {"x": "y"}}]
    body = dump_compact(document)
    assert parse_matrix(body) == [SERIES, SERIES]
    assert extract_series(body).series == 2


COMPACT = b'{"metric":{},"values":[]}'


@pytest.mark.parametrize(
    ("between", "series"),
    [
        (b'{"metric" :{},"values":[]}', 3),
        (b'{"values":[],"metric":{}}', 3),
        (b"{}", 3),
        (b"[]", 3),
        (b'{"metric":{},"values":[{}]}', 3),
        (b"1", 2),
    ],
)
def test_series_of_unusual_form_are_counted(between: bytes, series: int) -> None:
    inside = COMPACT + b"," + between + b"," + COMPACT
    cut_series = extract_series(b'{"status":"success","data":{"resultType":"matrix","result":[' + inside + b"]}}")
    assert cut_series.series == series
    assert bytes(cut_series.items) == inside


def test_bytes_besides_the_series_are_bounded() -> None:
    junk = b"[" + b"[]," * 1_000_000 + b"[]]"
    body = b'{"status":"success","warnings":%b,"data":{"resultType":"matrix","result":[]}}' % junk
    with pytest.raises(MatrixError, match="bytes besides the series"):
        extract_series(body)


def test_huge_series_is_extracted_in_little_memory_and_can_be_interrupted() -> None:
    values = b"[0,0]," * 1_000_000 + b"[0,0]"
    inside = b'{"metric":{},"values":[' + values + b"]}"
    body = b'{"status":"success","data":{"resultType":"matrix","result":[' + inside + b"]}}"
    assert extract_series(body).series == 1

    def check() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        extract_series(body, check)


def test_deep_nesting_is_refused() -> None:
    body = b'{"status":"success","data":{"resultType":"matrix","result":[' + b"[" * 100_000 + b"]}}"
    with pytest.raises(MatrixError):
        extract_series(body)


def test_memory_stays_small() -> None:
    many = dump_compact(response_document([SERIES] * 5_000))
    spaced = json.dumps(response_document([SERIES] * 5_000)).encode()
    for body in (many, spaced):
        tracemalloc.start()
        matrix = extract_series(body)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert matrix.series == 5_000
        assert peak < 200_000


def test_null_instead_of_the_array_is_empty() -> None:
    """Go writes null for an array without elements."""
    cut_series = extract_series(b'{"status":"success","data":{"resultType":"matrix","result":null}}')
    assert (bytes(cut_series.items), cut_series.series) == (b"", 0)
    for body in (b'{"status":"error","data":{"result":null}}', b'{"status":"success","data":{"result":nul}}'):
        with pytest.raises(MatrixError):
            extract_series(body)


@pytest.mark.parametrize(
    ("beside", "warnings"),
    [
        (b"", ()),
        (b',"isPartial":false,"warnings":null,"infos":["a hint"]', ()),
        (b',"warnings":["one",2,"three"]', ("one", "three")),
        (b',"isPartial":true', ("isPartial: servers behind the source did not respond, and their data is missing",)),
        (b',"warnings":["1","2","3","4"]', ("1", "2", "3")),
    ],
)
def test_server_warnings_are_kept(beside: bytes, warnings: tuple[str, ...]) -> None:
    body = b'{"status":"success"%s,"data":{"resultType":"matrix","result":[]}}' % beside
    assert extract_series(body).warnings == warnings
