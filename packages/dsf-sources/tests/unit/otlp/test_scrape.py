"""The text format is read like prometheus_client reads it, and with limits."""

from __future__ import annotations

import math
import sys
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from dsf.errors import HttpError
from dsf.otlp import scrape
from dsf.otlp.scrape import ScrapeError, select_samples
from dsf.otlp.selector import Selector, parse_selectors
from dsf.sources.window import Window, WindowBudget

TOKEN = "canary-token-4f1e"

names = st.sampled_from(["a", "b_total", "ns:rule", "a_bucket"])
values = st.text(max_size=12).filter(lambda text: "\r" not in text)
numbers = st.floats(allow_nan=True) | st.integers(-(10**6), 10**6)


def escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


@st.composite
def lines(draw: st.DrawFn) -> str:
    labels = draw(st.dictionaries(st.sampled_from(["x", "le", "k8s_node_name", "_"]), values, max_size=3))
    inside = ",".join(f'{name}="{escape(value)}"' for name, value in labels.items())
    number = str(draw(numbers)).replace("inf", "Inf").replace("nan", "NaN")
    time = draw(st.sampled_from(["", " 1718600000000", " 1718600000123"]))
    if inside or draw(st.booleans()):
        inside = "{" + inside + draw(st.sampled_from(["", ","] if inside else [""])) + "}"
    return f"{draw(names)}{inside} {number}{time}"


def read(text: str, query: str = '{__name__=~".+"}') -> list[Any]:
    samples = select_samples(text.encode(), parse_selectors(query), 2e9, 0.0)
    return [(labels, time, value) for labels, time, value in samples.values()]


@given(st.lists(lines(), max_size=6))
def test_scrape_matches_prometheus_client(sample_lines: list[str]) -> None:
    text = "\n".join(["# HELP a words", "# TYPE a gauge", *sample_lines, ""])
    expected = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, *sorted(sample.labels.items()))
            expected[key] = (sample.timestamp if sample.timestamp is not None else 2e9, sample.value)
    samples = {
        (labels.pop("__name__"), *sorted((name, value) for name, value in labels.items() if name != "node")): (
            time,
            value,
        )
        for labels, time, value in read(text)
    }
    assert samples.keys() == expected.keys()
    for key, (time, value) in expected.items():
        assert samples[key][0] == time
        assert samples[key][1] == value or (math.isnan(samples[key][1]) and math.isnan(float(value)))  # type: ignore[arg-type]


def test_names_in_quotes_and_line_ends_of_windows() -> None:
    assert read('{"my.metric","my.label"="1",b="2"} 3\r\n\r\nx 4\r\n') == [
        ({"__name__": "my.metric", "my.label": "1", "b": "2"}, 2e9, 3.0),
        ({"__name__": "x"}, 2e9, 4.0),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a", "after name and labels"),
        ("a{ 1", "its labels are not"),
        ('a{x="1" y="2"} 1', "its labels are not"),
        ('a{x="1",x="2"} 1', "a label twice"),
        ('a{x="1} 1', "its labels are not"),
        ('a{"x"} 1', "its labels are not"),
        ('{x="1"} 1', "has no name"),
        ("a 1_000", "after name and labels"),
        ("a 0x1", "after name and labels"),
        ("a 1 2 3", "after name and labels"),
        ("a " + "9" * 5000, "after name and labels"),
        ("a{" + ",".join(f'l{n}="1"' for n in range(scrape.MAX_LABELS + 1)) + "} 1", "more than 128 labels"),
        ('a{x="' + "y" * scrape.MAX_LINE + '"} 1', "more than 16384 bytes"),
        ('a{x="\ud800"} 1', "not UTF-8"),
        (f'a{{Bearer {TOKEN}="1"}} 1', "its labels are not"),
        (f"a {TOKEN}", "after name and labels"),
    ],
)
def test_malformed_line_is_reported_without_its_content(text: str, words: str) -> None:
    with pytest.raises(ScrapeError) as caught:
        select_samples(b"ok 1\n" + text.encode("utf-8", "surrogatepass"), [Selector(""), Selector("a")], 1.0, 0.0)
    assert words in str(caught.value)
    assert str(caught.value).startswith("line 2, ")
    assert TOKEN not in str(caught.value)


def test_lines_that_no_selector_names_are_not_looked_at() -> None:
    text = b"other{{{{ 1\n" + b"x" * 1_000_000 + b"\n123 4\na 1\n"
    assert [value for _, _, value in select_samples(text, [Selector("a")], 1.0, 0.0).values()] == [1.0]


def test_lines_and_samples_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrape, "MAX_LINES", 10)
    monkeypatch.setattr(scrape, "MAX_SAMPLES", 3)
    with pytest.raises(ScrapeError, match="more than 10 lines"):
        select_samples(b"b 1\n" * 11, [Selector("a")], 1.0, 0.0)
    with pytest.raises(ScrapeError, match="more than 3 samples are selected"):
        select_samples(b"".join(b'a{x="%d"} 1\n' % number for number in range(4)), [Selector("a")], 1.0, 0.0)


@pytest.mark.parametrize(
    "line",
    [
        b"a{" + b'x="' * 5000,
        b"a{" + b"x" * 16_000,
        b'a{x="' + b"\\" * 16_000,
        b"a" + b" " * 16_000 + b"x",
        b"a " + b"1" * 300 + b"e" * 16_000,
        b"a{" + b" ," * 8000,
    ],
)
def test_hostile_lines_cost_no_more_than_their_length(line: bytes) -> None:
    # A quadratic parser would take minutes for 1.6 MB of labels.
    for _ in range(100):
        with pytest.raises(ScrapeError):
            select_samples(line, [Selector("a")], 1.0, 0.0)


def test_interrupted_scrape_stops_within_a_few_lines() -> None:
    checks = []

    def check() -> None:
        checks.append(None)
        if len(checks) == 3:
            raise HttpError("timeout", "over")

    with pytest.raises(HttpError, match="over"):
        select_samples(b"a 1\n" * 1_000_000, [Selector("a")], 1.0, 0.0, check)
    assert len(checks) == 3


def test_with_a_regular_expression_each_sample_is_preceded_by_the_question_whether_to_go_on() -> None:
    checks = 0

    def check() -> None:
        nonlocal checks
        checks += 1
        if checks > 3:
            raise TimeoutError

    text = "".join(f'm{{x="{n}"}} 1\n' for n in range(100)).encode()
    with pytest.raises(TimeoutError):
        select_samples(text, parse_selectors('m{x=~".*a.{9}"}'), 2e9, 0.0, check)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("<!DOCTYPE html>\n<html>log in</html>", "line 1, empty ones not counted: it is no sample, nor a comment"),
        ("\n\n# fine\nupstream connect error\n", "line 2, "),
        ("\x1f\x8b\x08\x00garbage", "line 1, "),
        ("{'error': 'no'}", "line 1, "),
    ],
)
def test_page_without_prometheus_text_is_reported(text: str, words: str) -> None:
    with pytest.raises(ScrapeError, match=words):
        select_samples(text.encode(), [Selector("a")], 1.0, 0.0)


@pytest.mark.parametrize("text", ["", "\n", "# HELP b of b\n# TYPE b gauge\nb 1\n", 'b{x="y"} 2 3\r\n', "# EOF\n"])
def test_page_without_selected_metrics_is_empty(text: str) -> None:
    assert select_samples(text.encode(), [Selector("a")], 1.0, 0.0) == {}


def test_old_sample_is_dropped() -> None:
    """Follows Prometheus: a collector may expose samples of series that have ended."""
    text = b"a{n='0'} 1\n".replace(b"'", b'"') + b"".join(
        b'a{n="%d"} 1 %d\n' % (at, 1000 * at) for at in (700, 701, 2000)
    )
    samples = select_samples(text, [Selector("a")], 1000.0, 700.0)
    assert {labels["n"]: time for labels, time, _ in samples.values()} == {"0": 1000.0, "701": 701.0, "2000": 1000.0}


@pytest.mark.parametrize("text", ["nan", "NAN", "NaN", "inf", "-inf", "+INF", "Infinity", "-infinity"])
def test_numbers_in_any_case_as_prometheus_takes_them(text: str) -> None:
    ((_, _, value),) = read(f"m {text}\n")
    assert math.isnan(value) if text.lower()[0] == "n" else value == float(text)


@pytest.mark.parametrize(
    "exemplar",
    [
        ' # {trace_id="abc"} 0.67',
        ' # {trace_id="abc",x="a # b"} 0.67 1718600000.5',
        " # {} 1",
        "\t#{} 1",
    ],
)
@pytest.mark.parametrize(
    ("time", "expected"), [("", 2e9), (" 1718600000.123", 1718600000.123), (" 1718600000", 1718600000)]
)
def test_openmetrics_exemplars_are_skipped_and_times_are_seconds(exemplar: str, time: str, expected: float) -> None:
    line = f'latency_bucket{{le="1"}} 17{time}{exemplar}'
    for page in (f"{line}\n# EOF", f"# TYPE latency histogram\n{line}\n# EOF\n", f"{line}\r\n# EOF\r\n"):
        assert read(page, "latency_bucket") == [({"__name__": "latency_bucket", "le": "1"}, expected, 17.0)]
        assert read(page, '{__name__=~".+"}') == read(page, "latency_bucket")


@given(st.lists(st.tuples(values, st.integers(0, 10**6)), max_size=4, unique_by=lambda pair: pair[0]))
def test_pages_of_prometheus_client_in_openmetrics_are_read(labelled: list[tuple[str, int]]) -> None:
    registry = CollectorRegistry()
    counter = Counter("calls", "Calls", ["path"], registry=registry)
    for path, calls in labelled:
        counter.labels(path).inc(calls, {"trace_id": "a#{}"} if calls else None)
    page = openmetrics.generate_latest(registry).decode()
    assert {labels["path"]: value for labels, _, value in read(page, "calls_total")} == dict(labelled)


@pytest.mark.parametrize(
    ("labels", "min_bytes"),
    [
        (",".join(f'l{number}="{number:03}"' for number in range(128)), 100 * 128 * 100),
        ('x="' + "a" * 3900 + '\N{GRINNING FACE}"', 100 * 3900 * 4),
    ],
    ids=["many", "astral"],
)
def test_memory_of_selected_samples_is_reserved(labels: str, min_bytes: int) -> None:
    sizes: list[int] = []
    text = "".join(f'a{{{labels},y="{number}"}} 1\n'.replace('l127="127",', "") for number in range(100))
    select_samples(text.encode(), [Selector("a")], 1.0, 0.0, reserve=sizes.append)
    assert sum(sizes) > min_bytes


def test_memory_of_samples_with_few_labels_is_reserved() -> None:
    text, sizes = "".join(f'a{{x="{number}"}} 1\n' for number in range(2_000)), []
    tracemalloc.start()
    try:
        window = Window(WindowBudget(sys.maxsize, sys.maxsize))
        before = tracemalloc.get_traced_memory()[0]
        samples = select_samples(text.encode(), [Selector("a")], 1.0, 0.0, reserve=sizes.append)
        window.update(samples, 1.0)
        used_bytes = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert used_bytes < sum(sizes) < 2 * used_bytes


def test_scrape_ends_where_no_memory_is_left() -> None:
    reserved: list[int] = []

    def reserve(size: int) -> None:
        reserved.append(size)
        if sum(reserved) > 100_000:
            raise HttpError("too_large", "enough")

    with pytest.raises(HttpError, match="enough"):
        select_samples(
            b"".join(b'a{x="%d"} 1\n' % number for number in range(10_000)), [Selector("a")], 1.0, 0.0, reserve=reserve
        )
    assert len(reserved) < 1000
