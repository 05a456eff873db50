"""Test series: generated for the API's own /config, or recorded.

Generated series are not random, so that two checks of one API send the same requests.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from dsf.api.promql import split_queries
from dsf.api.remoteconfig import RemoteConfig
from dsf.api.types import USED_LABELS
from dsf.errors import ManifestError

Sample = list[Any]
RawSeries = dict[str, Any]

#: Number of series of the item `many-series`.
MANY: Final = 20
#: Maximum and minimum samples of a generated series.
_MAX_SAMPLES, _MIN_SAMPLES = 720, 2
#: Maximum series of a Prometheus server that are used.
_MAX_REAL_SERIES = 1000
_GROUPING_PATTERN = re.compile(r"\bby\s*\(([^)]*)\)", re.IGNORECASE)
#: Matches a query that multiplies by 100, so that it gives percent.
_PERCENT_PATTERN = re.compile(r"(?<![\w.])100(?![\w.])")
#: The end of a `label_replace` that sets a label to the same value on all series of a query.
_CONSTANT_LABEL_PATTERN = re.compile(
    r"""(?P<q>["'`])(?P<label>\w+)(?P=q)\s*,\s*(?P=q)(?P<value>[^"'`$]+)(?P=q)\s*,
    \s*(?P=q)(?P=q)\s*,\s*(?P=q)(?:\.\*|\(\.\*\))?(?P=q)\s*\)""",
    re.VERBOSE,
)
#: Labels of the series of a query that does not name the labels that it keeps.
_DEFAULT_LABELS: Final = ("__name__", "instance", "job", "node", "namespace", "pod", "container")


def load(path: Path) -> list[RawSeries]:
    """Return recorded series, read from a file with a scoring request or a response of Prometheus.

    Raises ManifestError, which names the file.
    """
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise ManifestError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise ManifestError(f"{path}: is not JSON") from None
    data = document.get("data") if isinstance(document, dict) else None
    series = data.get("result") if isinstance(data, dict) else data
    if not isinstance(series, list) or not series or not all(_is_series(item) for item in series):
        raise ManifestError(
            f'{path}: is neither a scoring request, {{"data": [{{"metric": ..., "values": ...}}]}}, nor the response '
            "of a range query of Prometheus, or it has no series"
        )
    return [{"metric": item["metric"], "values": item["values"]} for item in series]


def are_series(items: list[Any]) -> bool:
    """True if these are series of a range query."""
    return all(map(_is_series, items))


def _is_series(item: Any) -> bool:
    return (
        isinstance(item, dict)
        and isinstance(item.get("metric"), dict)
        and isinstance(item.get("values"), list)
        and all(isinstance(sample, list) and len(sample) == 2 for sample in item["values"])
    )


def make_request(series: list[RawSeries], sources: Iterable[str] = ()) -> bytes:
    """Return the scoring request with these series, as an agent sends it. Each of several sources gets the series."""
    series_by_source = dict.fromkeys(sources, series)
    request = {"data": series, "sources": series_by_source} if series_by_source else {"data": series}
    return json.dumps(request, separators=(",", ":")).encode()


class Samples:
    """The series of each item of the check."""

    def __init__(
        self,
        config: RemoteConfig | None,
        recorded: list[RawSeries] | None = None,
        series_by_query: list[list[RawSeries]] | None = None,
    ) -> None:
        """Use the `recorded` series, else `series_by_query` of /config, else generated series."""
        params = config.first_source.params if config is not None else None
        self._step = params.step if params is not None and params.step > 0 else 60
        length = params.range // self._step + 1 if params is not None and params.range > 0 else 61
        self._length = min(max(length, _MIN_SAMPLES), _MAX_SAMPLES)
        queries = split_queries(params.query) if params is not None else ()
        self._labels = [_find_labels(query) for query in queries] or [list(_DEFAULT_LABELS)]
        self._constants = [_find_constants(query) for query in queries] or [{}]
        kinds = {
            (*sorted(labels), *constants.items())
            for labels, constants in zip(self._labels, self._constants, strict=True)
        }
        #: Number of series that belong together: one series of each query, if labels tell the queries apart.
        self._group_size = len(kinds) if len(kinds) == len(self._labels) else 1
        #: Generated values are around half of this.
        self._largest_value = 100.0 if params is not None and _PERCENT_PATTERN.search(params.query) else 1.0
        self._series_by_query = None if recorded is not None else series_by_query
        self._recorded = recorded if self._series_by_query is None else _interleave_series(self._series_by_query)
        self.are_recorded = self._recorded is not None

    def one(self) -> list[RawSeries]:
        """Return one series without gaps, or one series of each query if labels tell the queries apart."""
        if self._series_by_query is not None:
            return _match_series(self._series_by_query)
        return self.many()[: 1 if self.are_recorded else self._group_size]

    def many(self) -> list[RawSeries]:
        """Return several series, which differ in each label."""
        if self._recorded is not None:
            return self._recorded
        return [self._series(index, self._length) for index in range(MANY)]

    def many_of_other_unit(self) -> list[RawSeries]:
        """Return the series of `many` in the other unit: in percent instead of fractions of 1, or the reverse."""
        unit = 1.0 if self._largest_value > 1 else 100.0
        return [self._series(index, self._length, unit) for index in range(MANY)]

    def gaps(self) -> list[RawSeries]:
        """Return series with missing samples.

        The first series lacks every third sample, the second the middle, and the third the first half. The fourth has
        only the last sample, and the fifth has no samples.
        """
        filters: list[Callable[[list[Sample]], list[Sample]]] = [
            lambda values: [sample for index, sample in enumerate(values) if index % 3],
            lambda values: values[: len(values) // 4] + values[-(len(values) // 4) :],
            lambda values: values[len(values) // 2 :],
            lambda values: values[-1:],
            lambda _: [],
        ]
        many = self.many()
        return [
            {"metric": original["metric"], "values": select_samples(original["values"])}
            for original, select_samples in zip((many * len(filters))[: len(filters)], filters, strict=True)
        ]

    def nan(self) -> list[RawSeries]:
        """Return series with values that are not finite.

        In the first series all values are NaN, in the second every other value, in the third the last value. The fourth
        has +Inf and -Inf.
        """
        spoilt: list[Callable[[int, int, str], str]] = [
            lambda index, length, value: "NaN",
            lambda index, length, value: "NaN" if index % 2 else value,
            lambda index, length, value: "NaN" if index == length - 1 else value,
            lambda index, length, value: ("+Inf", "-Inf", value)[index % 3],
        ]
        many = self.many()
        series = []
        for original, spoil in zip((many * len(spoilt))[: len(spoilt)], spoilt, strict=True):
            values = original["values"]
            spoilt_values = [[at, spoil(index, len(values), value)] for index, (at, value) in enumerate(values)]
            series.append({"metric": original["metric"], "values": spoilt_values})
        return series

    def unknown_labels(self) -> list[RawSeries]:
        """Return series with unusual labels.

        The series have no labels, labels that no query has, or label values that are long, empty, not ASCII or need
        quoting.
        """
        base_series = self.one()[0]
        odd_labels = [
            {},
            {"an_unknown_label": "x"},
            {**base_series["metric"], "an_unknown_label": "x"},
            dict.fromkeys(base_series["metric"], ""),
            dict.fromkeys(base_series["metric"], "é 雪 \U0001f600"),
            dict.fromkeys(base_series["metric"], 'say "hi" \\ {}; <b> ${node} %s'),
            dict.fromkeys(base_series["metric"], "x" * 1000),
        ]
        return [{"metric": labels, "values": base_series["values"]} for labels in odd_labels]

    def large(self) -> list[RawSeries]:
        """Return many more series than a typical request has."""
        count, length = 1000, 120
        if self._recorded is None:
            return [self._series(index, length) for index in range(count)]
        repeated_series = (self._recorded * math.ceil(count / len(self._recorded)))[:count]
        return [{"metric": item["metric"], "values": item["values"][-length:]} for item in repeated_series]

    def _series(self, index: int, length: int, unit: float | None = None) -> RawSeries:
        unit = unit or self._largest_value
        query_index = index % len(self._labels)
        labels, label_number = self._labels[query_index], index // self._group_size
        start = 1_718_600_000 - (length - 1) * self._step
        values: list[Sample] = [
            [start + position * self._step, f"{unit * (0.5 + 0.4 * math.sin(index + position / 7)):.6f}"]
            for position in range(length)
        ]
        metric = {label: f"{label.strip('_')}-{label_number}" for label in labels} | self._constants[query_index]
        return {"metric": metric, "values": values}


def _interleave_series(series_by_query: list[list[RawSeries]]) -> list[RawSeries]:
    """Return the first series of all queries, alternating."""
    rounds = itertools.zip_longest(*series_by_query)
    return [series for series_of_round in rounds for series in series_of_round if series is not None][:_MAX_REAL_SERIES]


def _match_series(series_by_query: list[list[RawSeries]]) -> list[RawSeries]:
    """Return one series of each query, with the same used labels as the first query's series where there is one."""
    wanted_values = select_used_values(series_by_query[0][0]["metric"])
    return [
        next(
            (series for series in query_series if select_used_values(series["metric"]) == wanted_values),
            query_series[0],
        )
        for query_series in series_by_query
    ]


def _find_constants(query: str) -> dict[str, str]:
    """Return the labels that a query gives to all of its series."""
    return {match["label"]: match["value"] for match in _CONSTANT_LABEL_PATTERN.finditer(query)}


def _find_labels(query: str) -> list[str]:
    """Return the labels that a query keeps: the labels of its first grouping, which is the outermost."""
    match = _GROUPING_PATTERN.search(query)
    if match is None:
        return list(_DEFAULT_LABELS)
    return [label for part in match[1].split(",") if (label := part.strip())]


def select_used_values(labels: dict[str, str]) -> tuple[str, ...]:
    """Return the values of the labels that the framework uses."""
    return tuple(labels.get(name, "") for name in USED_LABELS)
