"""Cost of the library per scoring request, beside a bare FastAPI endpoint that does the same.

    python bench/scorer_overhead.py [--rounds 5] [--seconds 1.0] [--json FILE]

Both are served by uvicorn in a process of their own and asked over one kept connection each, in turns, so that what
else happens on the machine meets both. The bare endpoint is what people write: pydantic models for the request, a dict
for the response, the mean of each series in plain Python; it checks no sizes, leaves out no NaN and measures nothing.
Time is that of the client per request, the median of all. Limits, in the same run: the library takes at most one and a
half times as long for an empty request and for one series (the fixed part, fractions of a millisecond), and not longer
for 100 series and more.
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import multiprocessing
import socket
import statistics
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

#: (series, samples of each) -> maximum duration relative to the bare endpoint.
LIMITS = {(0, 0): 1.5, (1, 61): 1.5, (100, 61): 1.0, (1000, 120): 1.0}


def library() -> Any:
    """Return the application with the library."""
    from dsf.scorer import Score, Scorer, Series

    app = Scorer(name="mean", description="", score_name="mean", interval=30)

    @app.score
    def mean(series: list[Series]) -> Iterable[Score]:
        for item in series:
            yield item.score(item.values.mean())

    return app


def bare() -> Any:
    """Return the same application without the library."""
    from fastapi import FastAPI
    from pydantic import BaseModel

    class OneSeries(BaseModel):
        metric: dict[str, str]
        values: list[tuple[float, float]]

    class Request(BaseModel):
        data: list[OneSeries]

    app = FastAPI()

    def scoring(request: Request) -> dict[str, list[dict[str, Any]]]:
        return {
            "results": [
                {"metric": item.metric, "score": sum(value for _, value in item.values) / len(item.values)}
                for item in request.data
            ]
        }

    # Annotations are text in this module, and the models are local.
    scoring.__annotations__ = {"request": Request, "return": dict[str, list[dict[str, Any]]]}
    app.post("/scoring")(scoring)
    return app


APPS = {"library": library, "bare": bare}


def serve(name: str, listening: socket.socket) -> None:
    """Run a server process."""
    import uvicorn

    uvicorn.Server(uvicorn.Config(APPS[name](), log_level="warning", access_log=False)).run(sockets=[listening])


def body(series: int, samples: int) -> bytes:
    """Return a request as an agent sends it."""
    data = [
        {
            "metric": {"node": f"node-{index % 7}", "namespace": "default", "pod": f"web-{index}"},
            "values": [[1718600000 + 60 * at, repr(5 + math.sin(index + at))] for at in range(samples)],
        }
        for index in range(series)
    ]
    return json.dumps({"data": data}, separators=(",", ":")).encode()


class Client:
    """A connection to a server."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        deadline = time.monotonic() + 30
        while True:
            try:
                self._connection.connect()
                self.send(b'{"data":[]}')
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
            else:
                break

    def send(self, request: bytes) -> bytes:
        """Send a request and return its response."""
        self._connection.request("POST", "/scoring", request, {"Content-Type": "application/json"})
        response = self._connection.getresponse()
        text = response.read()
        if response.status != 200:
            raise RuntimeError(text[:200])
        return text

    def measure_durations(self, request: bytes, seconds: float) -> list[float]:
        """Return the duration of each request in seconds, during `seconds` seconds."""
        durations: list[float] = []
        end = time.perf_counter() + seconds
        while (started_at := time.perf_counter()) < end or len(durations) < 3:
            self.send(request)
            durations.append(time.perf_counter() - started_at)
        return durations

    def close(self) -> None:
        """End the connection."""
        self._connection.close()


def are_equal(response_a: bytes, response_b: bytes) -> bool:
    """True if two responses have the same scores, apart from rounding."""
    first, second = (
        [(r["metric"], round(r["score"], 9)) for r in json.loads(text)["results"]] for text in (response_a, response_b)
    )
    return first == second


def measure(clients: dict[str, Client], size: tuple[int, int], rounds: int, seconds: float) -> dict[str, Any]:
    """Return a row of the table."""
    request = body(*size)
    if not are_equal(clients["library"].send(request), clients["bare"].send(request)):
        raise RuntimeError("the two do not answer the same")
    times: dict[str, list[float]] = {name: [] for name in clients}
    for _ in range(rounds):
        for name, client in clients.items():
            times[name] += client.measure_durations(request, seconds)
    medians = {name: statistics.median(durations) * 1000 for name, durations in times.items()}
    return {
        "series": size[0],
        "samples": size[1],
        "request_kb": len(request) / 1000,
        "library_ms": medians["library"],
        "bare_ms": medians["bare"],
        "overhead_ms": medians["library"] - medians["bare"],
        "ratio": medians["library"] / medians["bare"],
        "limit": LIMITS[size],
        "requests": sum(map(len, times.values())),
    }


def main() -> int:
    """Print the table, and return 1 if a ratio is above its limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each server")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a turn")
    parser.add_argument("--json", type=Path, help="also write the figures there")
    arguments = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    processes = []
    ports = {}
    for name in APPS:
        # With the protocol named: asyncio disables Nagle's delay only for such sockets.
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listening.bind(("127.0.0.1", 0))
        ports[name] = listening.getsockname()[1]
        process = context.Process(target=serve, args=(name, listening), daemon=True)
        process.start()
        listening.close()
        processes.append(process)
    try:
        clients = {name: Client(port) for name, port in ports.items()}
        print("series x samples   request   library      bare  overhead  ratio  limit")
        rows = []
        for size in LIMITS:
            row = measure(clients, size, arguments.rounds, arguments.seconds)
            rows.append(row)
            print(
                f"{row['series']:6d} x {row['samples']:<7d} {row['request_kb']:7.0f} kB {row['library_ms']:6.2f} ms"
                f" {row['bare_ms']:6.2f} ms {row['overhead_ms']:6.2f} ms  {row['ratio']:5.2f}  {row['limit']:5.2f}",
                flush=True,
            )
        for client in clients.values():
            client.close()
    finally:
        for process in processes:
            process.terminate()
            process.join(10)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    return int(any(row["ratio"] > row["limit"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
