"""The source type `OpenTelemetry`: a collector's page of metrics, scraped with GET in each cycle.

The source gives one sample per series and cycle. The path `/v1/metrics`, the standard path of OTLP/HTTP for metrics, is
for metrics that are pushed to this agent; see `dsf.otlp.plugin`.

The module has its own parser of Prometheus' text format and OpenMetrics, because the parsers of prometheus_client are
made for trusted text: they take minutes and hundreds of megabytes for a small malicious text. This parser reads each
character once and has bounds. Its errors never quote the text, because a server may echo secrets.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Final

from dsf.errors import HttpError
from dsf.otlp.selector import Selector, parse_query, with_short_names
from dsf.sources.plugin import Options, Plugin, Request, Series
from dsf.sources.window import MAX_LABEL_BYTES, measure_memory
from dsf.text import describe_request


def fetch(request: Request[Options]) -> Iterator[Series]:
    """Yield the selected series for the time range, in the order of the queries."""
    selectors = parse_query(request.query, required=True)
    with request.history() as history:
        body = request.get(accept=ACCEPT)
        try:
            samples = select_samples(body, selectors, history.now, history.oldest, request.check, request.reserve)
        except ValueError as error:
            request_text = describe_request("GET", request.url)
            raise HttpError("bad_answer", f"{request_text}: not Prometheus' text format: {error}") from None
        history.keep(samples)
    for selector in selectors:
        yield from history.series(selector.matches, request.check)


#: The Accept header of Prometheus 2, with which servers of both formats are tested. Without an escaping scheme,
#: servers replace characters outside [a-zA-Z0-9_:] in names by underscores, as selectors do.
ACCEPT: Final = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
#: Bounds of one line: bytes (labels are written with escapes), and labels.
MAX_LINE: Final = 4 * MAX_LABEL_BYTES
MAX_LABELS: Final = 128
#: Bounds of one response: lines, and selected samples.
MAX_LINES: Final = 2_000_000
MAX_SAMPLES: Final = 50_000
#: Memory in bytes of a selected sample without its labels and key, and with its entry in the history window.
_SAMPLE_MEMORY: Final = 1024

_LINE_PATTERN = re.compile(rb"[^\n]+")
_NAME_PATTERN = re.compile(rb"[ \t]*([a-zA-Z_:][a-zA-Z0-9_:]*)")
_QUOTED = r'"((?:[^"\\]|\\.)*+)"'
#: A label, or the quoted name of the metric; then its separator.
_LABEL_PATTERN = re.compile(rf"[ \t]*(?:([a-zA-Z_][a-zA-Z0-9_]*)|{_QUOTED})[ \t]*(?:=[ \t]*{_QUOTED}[ \t]*)?([,}}])")
_END_PATTERN = re.compile(r"[ \t]*\}")
_NUMBER = r"[+-]?(?:\d{1,400}(?:\.\d{0,400})?|\.\d{1,400})(?:[eE][+-]?\d{1,9})?"
#: Value and time. An exemplar of OpenMetrics may follow; it is ignored.
_VALUE_PATTERN = re.compile(
    rf"[ \t]*({_NUMBER}|[+-]?(?i:inf(?:inity)?|nan))(?:[ \t]+({_NUMBER}))?(?:[ \t]+#[ \t]*\{{.*)?[ \t]*\r?", re.ASCII
)
_ESCAPE_PATTERN = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n", "\\": "\\", '"': '"'}

Scraped = dict[Hashable, tuple[dict[str, str], float, float]]


class ScrapeError(ValueError):
    """The text is invalid, or exceeds its bounds. The message names the line, without quoting it."""


def select_samples(
    body: bytes,
    selectors: Sequence[Selector],
    now: float,
    min_time: float,
    check: Callable[[], None] = lambda: None,
    reserve: Callable[[int], None] = lambda _: None,
) -> Scraped:
    """Return {(name, *labels): (all labels, time, value)} of the selected samples.

    The time of a sample is the time in its line, at most `now`; without a time in its line, it is `now`. A sample whose
    line has a time at or before `min_time` is dropped, as by Prometheus. `check` is called regularly, and `reserve`
    with the memory in bytes of each sample; both raise to abort. Raises ScrapeError.
    """
    samples: Scraped = {}
    has_regex = any(matcher.pattern is not None for selector in selectors for matcher in selector.matchers)
    for name, labels, value, time in _iterate_samples(body, selectors, check):
        if has_regex:
            check()
        all_labels = with_short_names({"__name__": name, **labels})
        if any(selector.matches(all_labels) for selector in selectors):
            if time is not None and time <= min_time:
                continue
            key = (name, *sorted(labels.items()))
            # Python strings may need 40 times the bytes of the text, so reserve their memory.
            reserve(measure_memory((key, all_labels)) + _SAMPLE_MEMORY)
            samples[key] = (all_labels, now if time is None else min(time, now), value)
            if len(samples) > MAX_SAMPLES:
                raise ScrapeError(f"more than {MAX_SAMPLES} samples are selected; select fewer")
    if not samples:
        _check_first(body)
    return samples


def _check_first(body: bytes) -> None:
    """Raise ScrapeError if the first sample is invalid.

    Otherwise an HTML page with status 200 would look like a page without selected samples, as only selected lines are
    parsed.
    """
    for number, match in enumerate(_LINE_PATTERN.finditer(body)):
        line = match[0][:MAX_LINE]
        if line.isspace() or line.lstrip().startswith(b"#"):
            continue
        try:
            text = line.decode()
            name_match = _NAME_PATTERN.match(line)
            _parse_sample(
                text,
                name_match[1].decode() if name_match is not None else "",
                name_match.end() if name_match is not None else 0,
            )
        except ValueError:
            raise ScrapeError(f"line {number + 1}, empty ones not counted: it is no sample, nor a comment") from None
        return


def _iterate_samples(
    body: bytes, selectors: Sequence[Selector], check: Callable[[], None]
) -> Iterator[tuple[str, dict[str, str], float, float | None]]:
    """Yield the samples of lines that may be selected.

    The beginning of a line is checked first, because parsing the whole line is far slower.
    """
    names = {selector.name.encode() for selector in selectors}
    # OpenMetrics ends with this line. Its times are in seconds, those of Prometheus' text format in milliseconds.
    units_per_second = 1 if body[-32:].rstrip().endswith(b"# EOF") else 1000
    for number, match in enumerate(_LINE_PATTERN.finditer(body)):
        if number % 256 == 0:
            check()
        if number >= MAX_LINES:
            raise ScrapeError(f"it has more than {MAX_LINES} lines")
        start, end = match.span()
        name_match = _NAME_PATTERN.match(body, start, min(end, start + MAX_LINE))
        if b"" in names:
            # A selector without a name: parse all lines but comments and empty ones.
            if body.startswith((b"#", b"\r"), start):
                continue
        elif name_match[1] not in names if name_match is not None else not body.startswith(b"{", start):
            continue
        try:
            if end - start > MAX_LINE:
                raise ValueError(f"it has more than {MAX_LINE} bytes")
            line = match[0].decode()
            if line.isspace():
                continue
            name, labels, value, time = _parse_sample(
                line,
                name_match[1].decode() if name_match is not None else "",
                name_match.end() - start if name_match else 0,
            )
            yield name, labels, value, None if time is None else time / units_per_second
        except ValueError as error:
            problem = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else error
            raise ScrapeError(f"line {number + 1}, empty ones not counted: {problem}") from None


def _parse_sample(line: str, name: str, position: int) -> tuple[str, dict[str, str], float, float | None]:
    """Return name, labels, value and time of a line, with the time in the unit of the text.

    Raises ValueError, which does not quote the line.
    """
    labels: dict[str, str] = {}
    blank_count = len(line[position:]) - len(line[position:].lstrip(" \t"))
    if line.startswith("{", position + blank_count):
        name, position = _parse_labels(line, position + blank_count + 1, name, labels)
    if not name:
        raise ValueError("a sample has no name")
    value_match = _VALUE_PATTERN.fullmatch(line, position)
    if value_match is None:
        raise ValueError("after name and labels, a number, at most a time, and at most an exemplar must follow")
    return name, labels, float(value_match[1]), float(value_match[2]) if value_match[2] else None


def _parse_labels(line: str, position: int, name: str, labels: dict[str, str]) -> tuple[str, int]:
    """Add the labels of a line to `labels`. Return the metric's name and the position after the labels."""
    while (end := _END_PATTERN.match(line, position)) is None:
        part = _LABEL_PATTERN.match(line, position)
        if part is None:
            raise ValueError('its labels are not name="value"')
        label, quoted_name, value, separator = part.groups()
        position = part.end()
        if value is None:
            if quoted_name is None or name:
                raise ValueError('its labels are not name="value"')
            name = _unescape(quoted_name)
        else:
            label = label or _unescape(quoted_name)
            if label in labels:
                raise ValueError("it has a label twice")
            if len(labels) >= MAX_LABELS:
                raise ValueError(f"it has more than {MAX_LABELS} labels")
            labels[label] = _unescape(value)
        if separator == "}":
            return name, position
    return name, end.end()


def _unescape(text: str) -> str:
    return _ESCAPE_PATTERN.sub(lambda match: _ESCAPED.get(match[1], match[0]), text) if "\\" in text else text


PLUGIN: Final = Plugin(1, Options, fetch)
