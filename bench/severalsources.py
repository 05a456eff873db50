"""A scorer with four sources, against the same scorer with one: CPU and time of its fetch.

    python -m bench.severalsources [--quick] [--strict] [--json FILE]

Both in turns in one process. The sources are one server in a process of its own that is not counted. The server takes
50 ms for each response, as a Prometheus that evaluates a query: sequential queries would take four times as long.
"""

from __future__ import annotations

import socketserver
import statistics
import sys
import time

from bench.common import Figure, Measurement, format_spread, make_parser, report
from bench.peers import POINTS, Peer, make_response, make_summary, run_server
from dsf.agent.secrets import FileSecrets, Release
from dsf.api.summary import ScorerSummary, SourceSummary
from dsf.cycle.stages import Cycle, Stages
from dsf.settings import Settings

SOURCES, SERIES = 4, 100
#: Seconds until a source responds.
ANSWER = 0.05
#: Maximum CPU and time relative to one source. The series of the first source are sent twice, which makes one more.
CPU_LIMIT, TIME_LIMIT = 5.0, 1.5


def scorers(url: str) -> dict[int, ScorerSummary]:
    """Return scorers by their number of sources."""
    alone = make_summary("one", url, SERIES, 0)
    additional_sources = tuple(
        SourceSummary(
            name=f"s{number}",
            type=alone.source_type,
            endpoint=alone.source_endpoint,
            query=alone.source_query,
            range=alone.source_range,
            step=alone.source_step,
        )
        for number in range(1, SOURCES)
    )
    return {1: alone, SOURCES: alone.model_copy(update={"source_name": "s0", "sources": additional_sources})}


def measure(quick: bool) -> Measurement:
    """Measure one source and four in turns."""
    rounds, calls = (7, 10) if quick else (15, 30)
    cpu: dict[int, list[float]] = {1: [], SOURCES: []}
    milliseconds: dict[int, list[float]] = {1: [], SOURCES: []}
    with run_server("bench.severalsources", "--serve") as url:
        settings = Settings()
        stages = Stages(settings, FileSecrets(None, Release(settings)))

        def fetch(scorer_summary: ScorerSummary) -> None:
            payload = stages.fetch(Cycle(scorer_summary.name, "run", scorer_summary, float("inf")))
            assert payload.series == SERIES * len(scorer_summary.each_source)

        summaries = scorers(url)
        for scorer_summary in summaries.values():
            fetch(scorer_summary)
        for _ in range(rounds):
            for number, scorer_summary in summaries.items():
                started, cpu_before = time.monotonic(), time.process_time()
                for _ in range(calls):
                    fetch(scorer_summary)
                cpu[number].append(1000 * (time.process_time() - cpu_before) / calls)
                milliseconds[number].append(1000 * (time.monotonic() - started) / calls)
    what = f"{SOURCES} sources of {SERIES} x {POINTS} samples"
    figures = [
        Figure(
            f"{name} of a fetch from {what}",
            format_spread(values[SOURCES], "ms"),
            statistics.median(several / alone for several, alone in zip(values[SOURCES], values[1], strict=True)),
            "x",
            f"one of them, {format_spread(values[1], 'ms')}",
            upper_limit=limit,
        )
        for name, values, limit in (("CPU", cpu, CPU_LIMIT), ("time", milliseconds, TIME_LIMIT))
    ]
    return figures, {"cpu_ms": cpu, "time_ms": milliseconds}


class _Slow(Peer):
    seconds = ANSWER


def serve() -> None:
    """Serve the sources, and print the port."""

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        allow_reuse_address = True

        def handle_error(self, *_: object) -> None:
            """Ignore errors, because measurements end in the middle of an exchange."""

    path = f"/get/{SERIES}"
    _Slow.responses = {path: make_response(path)}
    with Server(("127.0.0.1", 0), _Slow) as listening:
        print(listening.server_address[1], flush=True)
        listening.serve_forever()


def main() -> int:
    """Measure and print."""
    parser = make_parser(__doc__)
    parser.add_argument("--serve", action="store_true", help="be the sources, as this program starts them itself")
    arguments = parser.parse_args()
    if arguments.serve:
        serve()
        return 0
    return report(arguments, measure(arguments.quick))


if __name__ == "__main__":
    sys.exit(main())
