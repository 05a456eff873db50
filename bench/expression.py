"""CPU of fetch + score with an expression, against a scoring API that answers at once.

    python -m bench.expression [--quick] [--strict] [--json FILE]

Both fetch the same series and give a score for each. The agent parses the series for an expression; to a scoring API it
forwards them, and parses the response. Source and scoring API are in a process of their own and are not counted. Every
size runs in its own process, so that one does not warm up the next.

Two more figures are the feature's share of an agent's memory and image: the compiler with 100 compiled expressions, and
the bytes of its modules. No package comes with it.
"""

from __future__ import annotations

import importlib.util
import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from bench.common import MEGABYTE, ROOT, Figure, Measurement, format_spread, make_parser, report
from bench.peers import POINTS, make_summary, run_server
from bench.stages import CLUSTER, measure_call
from dsf.agent.secrets import FileSecrets, Release
from dsf.api.summary import ScorerSummary
from dsf.cycle.stages import Cycle, FilePayload, Stages, store_payload
from dsf.process import gctuning
from dsf.settings import Settings

#: Series -> maximum CPU relative to a scoring API, for range queries.
LIMITS: Final = {100: 1.0, 1_000: 2.0, 10_000: 3.0}
#: The same for instant queries, whose responses are not sent to a scoring API.
INSTANT_LIMIT: Final = 1.0
EXPRESSION: Final = "100 - last"
#: Maximum MiB that the feature adds to an agent's memory, and to its image.
MOST_MIB: Final = 10.0
#: Number of expressions in the figure of the memory.
EXPRESSIONS: Final = 100
#: Modules of the feature in the agent's image.
MODULES: Final = (
    *("dsf/expression/*.py", "dsf/api/expressions.py", "dsf/agent/resultserver.py"),
    *("dsf/cycle/composite.py", "dsf/cycle/evaluation.py", "dsf/cycle/series.py"),
)
#: Prints the bytes of memory. The process has already imported everything else that an agent imports.
_MEMORY: Final = """
import ast, dataclasses, math, operator, re, sys, typing
import psutil
import dsf.errors

process = psutil.Process()
before = process.memory_info().rss
from dsf.expression import DOUBLE, LABELS, NUMBERS, compile_expression

types = {"last": DOUBLE, "mean": DOUBLE, "values": NUMBERS, "labels": LABELS}
text = "labels.node.startsWith('gpu') && mean > 0.N ? clamp(100 * last / N, 0, 100) : scale(values[0], N, 0)"
compiled = [compile_expression(text.replace("N", str(number)), types) for number in range(1, int(sys.argv[1]) + 1)]
print(process.memory_info().rss - before)
"""


def stages(url: str, series: int, expression: str, rounds: int, seconds: float) -> dict[str, Any]:
    """Measure one size: CPU of both in every round, with an expression for a range query, and for an instant one."""
    # As in an agent, which collects garbage less often than Python's default.
    gctuning.set_thresholds()
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(cluster=CLUSTER)
        stage_runner = Stages(settings, FileSecrets(None, Release(settings)))
        posted = make_summary("bench", url, series, series)
        scored = posted.model_copy(update={"scoring_endpoint": "", "expression": expression})
        instant = {"source_endpoint": f"{url}/vector/{series}", "source_range": 0, "source_step": 0}
        # A scoring API gets no response to an instant query, so a range of one sample with as many bytes stands for
        # it.
        single = posted.model_copy(update={"source_endpoint": f"{url}/single/{series}"})

        def cycle(scorer: ScorerSummary) -> Callable[[], None]:
            def run() -> None:
                cycle = Cycle(scorer.name, "run", scorer, math.inf)
                request = store_payload(Path(folder), stage_runner.fetch(cycle).pieces)
                stage_runner.score(cycle, request)
                if isinstance(request, FilePayload):
                    request.close()

            # The peers generate their responses at the first request.
            run()
            return run

        works = [cycle(scorer) for scorer in (posted, scored, single, scored.model_copy(update=instant))]
        gctuning.freeze_objects()
        measured = [[measure_call(work, seconds) for work in works] for _ in range(rounds)]
    return {
        "series": series,
        "expression": expression,
        "post_ms": [row[0] for row in measured],
        "expression_ms": [row[1] for row in measured],
        "ratios": [row[1] / row[0] for row in measured],
        "single_ms": [row[2] for row in measured],
        "instant_ms": [row[3] for row in measured],
        "instant_ratios": [row[3] / row[0] for row in measured],
        "single_ratios": [row[3] / row[2] for row in measured],
    }


def measure_memory() -> dict[str, float]:
    """Return the MiB that the compiler and compiled expressions add to an agent, and those of the modules."""
    output = subprocess.run(
        [sys.executable, "-c", _MEMORY, str(EXPRESSIONS)], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    modules = [path for pattern in MODULES for path in ROOT.glob(pattern)]
    compiled_files = [Path(importlib.util.cache_from_source(str(module))) for module in modules]
    size = sum(file.stat().st_size for file in (*modules, *compiled_files) if file.exists())
    return {"memory_mib": int(output) / MEGABYTE, "image_mib": size / MEGABYTE}


def memory_figures(measured: dict[str, float]) -> list[Figure]:
    """Return the rows for memory and image."""
    against = f"compiler and {EXPRESSIONS} compiled expressions"
    return [
        Figure("memory that expressions add to an agent", against, measured["memory_mib"], "MiB", "", MOST_MIB),
        Figure("size that they add to its image", "modules", measured["image_mib"], "MiB", "no package", MOST_MIB),
    ]


def measure_in_process(*values: object) -> dict[str, Any]:
    """Run the measurement of one size in a separate process."""
    command = [sys.executable, "-m", "bench.expression", "--stages", *map(str, values)]
    output = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    measured: dict[str, Any] = json.loads(output)
    return measured


def figures(row: dict[str, Any]) -> list[Figure]:
    """Return the rows of the table for one size."""
    series, expression = row["series"], row["expression"]
    is_limited = expression == EXPRESSION
    return [
        Figure(
            f"CPU of fetch + `{expression}`, {series:,} x {POINTS} samples",
            format_spread(row["expression_ms"], "ms"),
            statistics.median(row["ratios"]),
            "x",
            f"POST to an instant scoring API, {format_spread(row['post_ms'], 'ms')}",
            upper_limit=LIMITS[series] if is_limited else None,
        ),
        *(_instant(row) if is_limited else ()),
    ]


def _instant(row: dict[str, Any]) -> list[Figure]:
    name = f"CPU of instant fetch + `{row['expression']}`, {row['series']:,} series"
    return [
        Figure(
            name,
            format_spread(row["instant_ms"], "ms"),
            statistics.median(row["instant_ratios"]),
            "x",
            f"POST of {POINTS} samples each, {format_spread(row['post_ms'], 'ms')}",
            upper_limit=INSTANT_LIMIT,
        ),
        Figure(
            name,
            format_spread(row["instant_ms"], "ms"),
            statistics.median(row["single_ratios"]),
            "x",
            f"POST of one sample each, {format_spread(row['single_ms'], 'ms')}",
        ),
    ]


def measure(quick: bool) -> Measurement:
    """Return all sizes."""
    rounds, seconds = (5, 0.2) if quick else (11, 0.6)
    expressions = (EXPRESSION,) if quick else (EXPRESSION, "100 * mean", "trend(values, 600)")
    with run_server() as url:
        rows = [measure_in_process(url, series, text, rounds, seconds) for text in expressions for series in LIMITS]
    memory = measure_memory()
    return [*(figure for row in rows for figure in figures(row)), *memory_figures(memory)], [*rows, memory]


def main() -> int:
    """Measure and print."""
    parser = make_parser(__doc__)
    parser.add_argument("--stages", nargs=5, help="one measurement, as this program starts it itself")
    arguments = parser.parse_args()
    if arguments.stages:
        url, series, expression, rounds, seconds = arguments.stages
        print(json.dumps(stages(url, int(series), expression, int(rounds), float(seconds))))
        return 0
    return report(arguments, measure(arguments.quick))


if __name__ == "__main__":
    sys.exit(main())
