"""Source and scoring API of the benches: a separate process that responds at once, with prepared bodies.

`GET /get/<series>` is a Prometheus answer with so many series, `GET /single/<series>` one of one sample each,
`GET /vector/<series>` the response to an instant query, `POST /post/<results>` a scoring response with so many
results.
"""

from __future__ import annotations

import json
import socketserver
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bench.common import ROOT
from dsf.api.summary import ScorerSummary

#: Samples of each series: an hour, one a minute.
POINTS = 61


def make_matrix(series: int) -> bytes:
    """Return a response of Prometheus to a range query: 200 KB for 100 series."""
    result = [
        {
            "metric": {
                "__name__": "container_memory_working_set_bytes",
                "namespace": f"team-{number % 20}",
                "node": f"node-{number % 50}.example.internal",
                "pod": f"workload-{number}-7c5d8f9b6d-x{number % 97:02d}z",
                "container": "main",
            },
            "values": [
                [1718600000 + 60 * k, f"{(number * 7919 + k * 104729) % 10**9 / 997:.13g}"] for k in range(POINTS)
            ],
        }
        for number in range(series)
    ]
    document = {"status": "success", "data": {"resultType": "matrix", "result": result}}
    return json.dumps(document, separators=(",", ":")).encode()


def make_single_samples(series: int) -> bytes:
    """Return the same series, each with only its last sample."""
    document = json.loads(make_matrix(series))
    for element in document["data"]["result"]:
        element["values"] = element["values"][-1:]
    return json.dumps(document, separators=(",", ":")).encode()


def make_vector(series: int) -> bytes:
    """Return the same series with their last sample, as the response to an instant query."""
    document = json.loads(make_matrix(series))
    document["data"]["resultType"] = "vector"
    for element in document["data"]["result"]:
        element["value"] = element.pop("values")[-1]
    return json.dumps(document, separators=(",", ":")).encode()


def make_scores(number: int) -> bytes:
    """Return a response of a scoring API with this many results."""
    results = [{"metric": {"namespace": "team", "pod": f"workload-{i}"}, "score": i % 100 + 0.5} for i in range(number)]
    return json.dumps({"results": results}, separators=(",", ":")).encode()


class Peer(socketserver.StreamRequestHandler):
    """Handles the requests of one connection, with minimal work."""

    disable_nagle_algorithm = True
    responses: dict[str, bytes]
    #: Seconds that a response takes.
    seconds = 0.0

    def handle(self) -> None:
        """Read requests and respond to them."""
        while line := self.rfile.readline():
            path = line.split()[1].split(b"?")[0].decode()
            length = 0
            while (header := self.rfile.readline()) not in (b"\r\n", b""):
                name, _, value = header.partition(b":")
                if name.lower() == b"content-length":
                    length = int(value)
            remaining_bytes = length
            while remaining_bytes:
                remaining_bytes -= len(self.rfile.read1(remaining_bytes))
            if path not in self.responses:
                self.responses[path] = make_response(path)
            body = self.responses[path]
            if self.seconds:
                time.sleep(self.seconds)
            head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            self.connection.sendall(head.encode() + body)


def make_response(path: str) -> bytes:
    """Return the response of a path; empty for `/healthz` and paths without a number."""
    kind, _, number = path.strip("/").partition("/")
    make = {"get": make_matrix, "single": make_single_samples, "vector": make_vector}.get(kind, make_scores)
    return make(int(number)) if number else b"{}"


def serve() -> None:
    """Serve, and print the port."""

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        allow_reuse_address = True
        # Upstream's agent starts all its scorers at the same moment, each with new connections.
        request_queue_size = 128

        def handle_error(self, *_: object) -> None:
            """Ignore errors, because measurements end in the middle of an exchange."""

    Peer.responses = {}
    with Server(("127.0.0.1", 0), Peer) as server:
        print(server.server_address[1], flush=True)
        server.serve_forever()


@contextmanager
def run_server(*command: str) -> Iterator[str]:
    """Run a server of a bench, a module with arguments that prints its port, and yield its URL. Default: the peers."""
    with subprocess.Popen(
        [sys.executable, "-m", *(command or ("bench.peers",))], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.terminate()


def make_summary(name: str, url: str, series: int, results: int) -> ScorerSummary:
    """Return a scorer whose source and scoring API are the peers at `url`."""
    return ScorerSummary(
        name=name,
        score_name=f"{name}-score",
        source_type="Prometheus",
        source_endpoint=f"{url}/get/{series}",
        source_query="container_memory_working_set_bytes",
        source_range=3600,
        source_step=60,
        scoring_endpoint=f"{url}/post/{results}",
        scoring_interval=300,
    )


if __name__ == "__main__":
    serve()
