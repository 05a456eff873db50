"""The source type `csv.example.com`: time series from a server's CSV, with one sample per line.

    time,value,node
    1718600000,210.5,n1

A column is the time in unix seconds, another one the value; all others are labels.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from pydantic import Field

from dsf.sources.plugin import Options, Plugin, Request, Series, SourceError


class CsvOptions(Options):
    """`options` of a source. In the manifest their names are `timeColumn` and so on."""

    time_column: str = "time"
    value_column: str = "value"
    delimiter: str = Field(default=",", min_length=1, max_length=1)


def fetch(request: Request[CsvOptions]) -> Iterator[Series]:
    """Return a series for each set of labels, with the samples in the range; without a range the newest one."""
    series: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = {}
    for line, row in _rows(request.get(accept="text/csv, */*;q=0.1"), request.options):
        try:
            sample = float(row.pop(request.options.time_column)), float(row.pop(request.options.value_column))
        except ValueError:
            raise SourceError(f"line {line}: time and value must be numbers") from None
        series.setdefault(tuple(row.items()), []).append(sample)
        request.check()
    is_range = request.start < request.end
    for labels, samples in series.items():
        past_samples = sorted(sample for sample in samples if sample[0] <= request.end)
        yield Series(
            dict(labels),
            [sample for sample in past_samples if sample[0] >= request.start] if is_range else past_samples[-1:],
        )


def _rows(body: bytes, options: CsvOptions) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield each line with its number. Messages never quote the response, because a server may repeat the request in
    it.
    """
    try:
        rows = csv.DictReader(io.StringIO(body.decode("utf-8-sig")), delimiter=options.delimiter)
        missing_columns = {options.time_column, options.value_column} - set(rows.fieldnames or ())
        if missing_columns:
            raise SourceError(f"the first line has no column {' and no column '.join(sorted(missing_columns))}")
        for row in rows:
            if None in row or None in row.values():
                raise SourceError(f"line {rows.line_num}: it has not as many fields as the first line")
            yield rows.line_num, row
    except (UnicodeDecodeError, csv.Error) as error:
        raise SourceError(f"the response is no CSV in UTF-8: {type(error).__name__}") from None


# The first argument is the version of the plug-in protocol.
CSV = Plugin(1, CsvOptions, fetch)
