from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsf.cycle.series import Series, SeriesParts, read_series
from dsf.errors import CycleError

_LABELS = st.dictionaries(st.text(max_size=8), st.text(max_size=12), max_size=4)
_SAMPLES = st.lists(st.tuples(st.integers(0, 2**31), st.floats(allow_nan=False)), min_size=1, max_size=5)


def read(*pieces: bytes) -> list[Series]:
    return list(read_series(pieces, SeriesParts()))


def request_of(series: list[tuple[dict[str, str], list[tuple[int, float]]]], *, compact: bool) -> bytes:
    elements = [
        {"metric": labels, "values": [[time, repr(value)] for time, value in samples]} for labels, samples in series
    ]
    separators = (",", ":") if compact else (", ", ": ")
    return b'{"data":%s}' % json.dumps(elements, separators=separators, ensure_ascii=False).encode()


@given(st.lists(st.tuples(_LABELS, _SAMPLES), max_size=4), st.integers(1, 60), st.booleans())
def test_series_are_read_in_any_pieces_and_any_form(
    series: list[tuple[dict[str, str], list[tuple[int, float]]]], size: int, compact: bool
) -> None:
    request = request_of(series, compact=compact)
    pieces = [request[start : start + size] for start in range(0, len(request), size)]
    expected = [
        (labels, [value for _, value in samples], [float(time) for time, _ in samples]) for labels, samples in series
    ]
    assert [(labels, [*values], [*times]) for labels, values, times in read_series(pieces, SeriesParts())] == expected
    last = [values[-1] for _, values, _ in read_series(pieces, SeriesParts(values=False, times=False))]
    assert last == [values[-1] for _, values, _ in expected]


def test_vector_is_read_as_one_sample_per_series() -> None:
    request = b'{"data":[{"metric":{"node":"a"},"value":[1.5,"NaN"]},{"metric":{},"value":[2,"+Inf"]}]}'
    first, second = read(request)
    assert first[0] == {"node": "a"}
    assert math.isnan(first[1][0])
    assert second == ({}, (math.inf,), (2.0,))


def test_native_histograms_beside_values_are_skipped() -> None:
    series = '{"metric":{"node":"a"},"values":[[1,"2"],[3,"4"]],"histograms":[[1,{}]]}'
    only = '{"metric":{"node":"b"},"histograms":[[1,{}]]}'
    assert read(f'{{"data":[{series},{only}]}}'.encode()) == [
        ({"node": "a"}, [2.0, 4.0], [1.0, 3.0]),
        ({"node": "b"}, [], []),
    ]


def test_empty_request_has_no_series() -> None:
    assert read(b'{"data":[]}') == []


@pytest.mark.parametrize(
    "element",
    [
        b"1",
        b'{"metric":{"node":"a"},"values":[[1,"x"]]}',
        b'{"metric":{"node":1},"values":[[1,"2"]]}',
        b'{"metric":{"node":1},"value":[1,"2"]}',
        b'{"metric":[],"value":1}',
        b'{"metric":{"node":"a"},"values":[[1,"2"],',
        b'{"metric":{"node":"a"},"values":' + b"[" * 100_000,
    ],
)
def test_invalid_series_fails_the_cycle(element: bytes) -> None:
    with pytest.raises(CycleError) as error:
        read(b'{"data":[%s]}' % element)
    assert (error.value.stage, error.value.reason) == ("score", "bad_answer")
