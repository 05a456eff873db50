"""Prometheus' text format, as an OpenTelemetry collector's `prometheus` exporter serves it."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Sequence

from prometheus_client.parser import text_string_to_metric_families

from dsf.sources.labels import with_short_names
from dsf.sources.selector import Selector

_NAME = re.compile(rb"[a-zA-Z_:][a-zA-Z0-9_:]*")

Found = dict[Hashable, tuple[dict[str, str], float, float]]


def scraped(body: bytes, selectors: Sequence[Selector], now: float, oldest: float) -> Found:
    """The selected samples: (labels, time, value) by a key.

    A sample's own time counts when it has one between `oldest` and `now`, else it is of `now`. Raises ValueError when
    the text is not of the format.
    """
    found: Found = {}
    for name, labels, value, time in _samples(_lines(body, selectors)):
        all_labels = with_short_names({"__name__": name, **labels})
        if any(selector.matches(all_labels) for selector in selectors):
            own = time is not None and oldest < time <= now
            found[(name, *sorted(labels.items()))] = (all_labels, time if own and time is not None else now, value)
    return found


def _samples(text: str) -> Iterator[tuple[str, dict[str, str], float, float | None]]:
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            # A native histogram has no plain value; the text format has none either.
            yield sample.name, sample.labels, float(sample.value), sample.timestamp  # type: ignore[misc]


def _lines(body: bytes, selectors: Sequence[Selector]) -> str:
    """The lines that may be selected: parsing takes far longer than looking for the beginning of a line."""
    names = {selector.name.encode() for selector in selectors}
    if b"" in names:
        return body.decode()
    kept = [
        line
        for line in body.split(b"\n")
        if ((match := _NAME.match(line)) is not None and match[0] in names) or line.startswith(b"{")
    ]
    return b"\n".join(kept).decode() + "\n"
