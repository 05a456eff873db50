"""Moments of a backtest a second on one core, and its memory over 10,000 of them.

    python -m bench.backtest [--quick] [--strict] [--json FILE]

100 series, a scoring API that answers at once, and the file that the moments are appended to. Source and scoring API
are in a process of their own and are not counted.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import psutil

from bench.common import MEGABYTE, Figure, Measurement, format_spread, run
from bench.peers import make_summary, run_server
from dsf.agent.secrets import FileSecrets, Release
from dsf.backtest import run as backtest
from dsf.backtest.recording import Question, Recording
from dsf.backtest.summary import summarize_records
from dsf.settings import Settings

SERIES, RESULTS = 100, 100
#: Moments of a round, and moments before the first measurement of memory.
ROUND, WARM = 500, 1_000


def measure(quick: bool) -> Measurement:
    """Measure CPU in rounds of consecutive moments, and memory from the first thousand moments to the last."""
    moments = 2_000 if quick else 10_000
    process = psutil.Process()
    settings = Settings(cluster="bench")
    with run_server() as url, tempfile.TemporaryDirectory() as folder:
        scorer = make_summary("bench", url, SERIES, RESULTS).model_copy(update={"score_dimension_format": "${pod}"})
        question = Question.of("bench", scorer, 300)
        moments_of_range = range(0, 300 * moments, 300)
        with Recording(Path(folder) / "moments.jsonl", writing=True) as recording:
            recording.begin_question(question)
            rates: list[float] = []
            warm = 0
            cpu_before = time.process_time()
            secrets = FileSecrets(None, Release(settings))
            for number, record in enumerate(
                backtest.run("bench", scorer, settings, secrets, moments_of_range, rate=1e9), 1
            ):
                recording.add_record(record)
                if number % ROUND == 0:
                    now = time.process_time()
                    rates.append(ROUND / (now - cpu_before))
                    cpu_before = now
                if number == WARM:
                    warm = process.memory_info().rss
            view = summarize_records(question, moments_of_range, recording.iterate_records("bench"), noise=0)
            grown = (process.memory_info().rss - warm) / MEGABYTE
    if view.outcomes != {"ok": moments} or len(view.items) != RESULTS:
        raise RuntimeError(f"the backtest went wrong: {view.outcomes}, {view.failures}, {len(view.items)} items")
    figures = [
        Figure(
            f"backtest, moments of {SERIES} series, {RESULTS} results",
            format_spread(rates, "/s", 0),
            sorted(rates)[len(rates) // 2],
            "a second a core",
            lower_limit=100,
        ),
        Figure(
            f"memory of a backtest of {moments:,} moments, with its summary",
            f"+{grown:.1f} MB",
            grown,
            "MB more than after 1,000",
            upper_limit=16,
        ),
    ]
    return figures, {"rates": rates, "grown_mb": grown}


if __name__ == "__main__":
    sys.exit(run(__doc__, measure))
