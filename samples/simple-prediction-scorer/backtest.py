"""Compares the scorer's forecasts with the assumption that values stay as they are, on recorded series. The scorer's
against "it stays as it is", on recorded series.

    python samples/simple-prediction-scorer/backtest.py [FILE ...]

A file is the response of a range query of Prometheus; without one, recorded.json beside this program. In each series
the program stands at one sample after another, sees at most the 120 before it, and forecasts the 10 that follow. The
error is the mean distance from the actual values: over the 10 values, and of the highest of them, of which the score is
made. Both are in percent of the standard deviation of the series, so that series of all units count alike. The
series are put together by the label `kind` if they have one.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from dsf.scorer import Series, Skipped, forecast

#: Minimum and maximum samples of a forecast's input, and number of forecast samples.
LEAST, MOST, HORIZON = 20, 120, 10
#: Errors of one forecast: mean over all values, and of the highest one; first the scorer's, then those of persistence.
Errors = tuple[float, float, float, float]


def read(file: Path) -> list[Series]:
    """Return the series in the response of a range query."""
    matrix = json.loads(file.read_bytes())["data"]["result"]
    return [
        Series(item["metric"], *np.array([[float(at), float(value)] for at, value in item["values"]]).T)
        for item in matrix
    ]


def errors(series: Series) -> Iterator[Errors]:
    """Yield the errors of the forecasts within a series; none for a constant one."""
    times, values = series.times, series.values
    spread = float(values.std())
    if not spread:
        return
    for now in range(LEAST, len(series) - HORIZON + 1):
        past = slice(max(0, now - MOST), now)
        prediction = forecast(Series({}, times[past], values[past]), horizon=HORIZON, least=LEAST)
        if isinstance(prediction, Skipped):
            continue
        actual_values = values[now : now + HORIZON]
        guesses = prediction.values, np.full(HORIZON, values[now - 1])
        scorer_error, baseline_error = (
            (
                float(np.abs(guess - actual_values).mean()) / spread,
                abs(float(guess.max() - actual_values.max())) / spread,
            )
            for guess in guesses
        )
        yield (*scorer_error, *baseline_error)


def main() -> None:
    """Print a table."""
    files = [Path(name) for name in sys.argv[1:]] or [Path(__file__).parent / "recorded.json"]
    by_kind: dict[str, list[Errors]] = defaultdict(list)
    for series in (recorded for file in files for recorded in read(file)):
        by_kind[series.labels.get("kind", "all")] += errors(series)
    print("                           error of all 10 values        error of the highest")
    print("series        forecasts   scorer   stays  ratio        scorer   stays  ratio")
    all_rows = [row for rows in by_kind.values() for row in rows]
    for kind, rows in [*sorted(by_kind.items()), *([("together", all_rows)] if len(by_kind) > 1 else [])]:
        scorer_error, highest, baseline_error, baseline_highest = (100 * np.mean(rows, axis=0)).tolist()
        print(
            f"{kind:<14}{len(rows):>9}  {scorer_error:>6.1f}%  {baseline_error:>5.1f}%  "
            f"{scorer_error / baseline_error:>5.2f}       "
            f"{highest:>6.1f}%  {baseline_highest:>5.1f}%  {highest / baseline_highest:>5.2f}"
        )


if __name__ == "__main__":
    main()
