"""The OTLP receiver: samples a second, and memory when it holds as much as it may.

    python -m bench.otlp [--quick] [--json FILE]

A receiver as an agent has it, in a process of its own, gets requests of 1,000 points over one kept connection: all of
them selected by a scorer, or none. Held against the same requests when protobuf only parses them, in this process and
in turns. CPU is that of the receiver's process. Then it is filled until it refuses: 10,000 series, 1,000,000 samples.
"""

from __future__ import annotations

import http.client
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import psutil
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

from bench.common import MEGABYTE, Figure, Measurement, format_spread, read_cpu_seconds, run

#: Series in one request, and of all requests when memory is measured.
BATCH, SERIES = 1_000, 10_000
#: Maximum samples of the receiver.
SAMPLES = 1_000_000
#: Seconds that the receiver keeps a sample; all samples are from the last minutes.
RANGE = 3_600


def serve(channel: Connection) -> None:
    """Run the receiver: send its port, and the numbers of stored series and samples whenever the channel has a
    message.
    """
    from dsf.api.summary import ScorerSummary
    from dsf.otlp.received import Received
    from dsf.otlp.receiver import Receiver
    from dsf.sources.memory import SourceMemory
    from dsf.sources.window import WindowBudget

    scorer = ScorerSummary(
        name="bench",
        score_name="bench",
        source_type="OpenTelemetry",
        source_endpoint="http://agent/v1/metrics",
        source_query='bench.wanted{k8s_node_name=~"node-.*"}',
        source_range=RANGE,
        source_step=60,
    )
    summaries = {"bench": scorer}
    memory = SourceMemory(WindowBudget(SERIES, SAMPLES), lambda: summaries)
    received = Received(memory.budget, lambda: summaries)
    receiver = Receiver(received, "127.0.0.1", 0, max_bytes=8 * MEGABYTE)
    receiver.start()
    channel.send(receiver.address[1])
    while channel.recv():
        channel.send((memory.budget.series, memory.budget.samples))
    receiver.stop()


class Server(NamedTuple):
    """The receiver's process, as its clients see it."""

    port: int
    process: psutil.Process
    channel: Any

    def stored_counts(self) -> tuple[int, int]:
        """Return the numbers of series and samples."""
        self.channel.send(True)
        stored_counts: tuple[int, int] = self.channel.recv()
        return stored_counts


@contextmanager
def server() -> Iterator[Server]:
    """Yield a new receiver."""
    context = multiprocessing.get_context("spawn")
    channel, receiver_channel = context.Pipe()
    process = context.Process(target=serve, args=(receiver_channel,), daemon=True)
    process.start()
    try:
        yield Server(channel.recv(), psutil.Process(process.pid), channel)
        channel.send(False)
        process.join(10)
    finally:
        process.kill()
        process.join()


def request(name: str, first_index: int, seconds: float) -> bytes:
    """Return a request with a gauge of many series, at one time, as a collector sends it."""
    export_request = ExportMetricsServiceRequest()
    resource = export_request.resource_metrics.add()
    for key, text in (("k8s.node.name", "node-1"), ("k8s.cluster.name", "bench"), ("service.name", "collector")):
        resource.resource.attributes.add(key=key).value.string_value = text
    metric = resource.scope_metrics.add().metrics.add(name=name)
    for index in range(first_index, first_index + BATCH):
        point = metric.gauge.data_points.add(as_double=index + 0.5, time_unix_nano=int(seconds * 1e9))
        for key, text in (("k8s.namespace.name", f"team-{index % 50}"), ("k8s.pod.name", f"pod-{index:06d}")):
            point.attributes.add(key=key).value.string_value = text
    return export_request.SerializeToString()


def push(connection: http.client.HTTPConnection, body: bytes) -> int:
    """Send one request, and return the number of rejected points."""
    connection.request("POST", "/v1/metrics", body, {"Content-Type": "application/x-protobuf"})
    response = connection.getresponse()
    data = response.read()
    if response.status != 200:
        raise RuntimeError(f"{response.status}: {data[:200]!r}")
    return int(ExportMetricsServiceResponse.FromString(data).partial_success.rejected_data_points)


def measure_speed(bodies: dict[str, list[list[bytes]]]) -> dict[str, list[dict[str, float]]]:
    """Return the samples per second by kind. Each round of requests is pushed and, right after it, only parsed."""
    rows_by_kind: dict[str, list[dict[str, float]]] = {}
    with server() as receiver:
        connection = http.client.HTTPConnection("127.0.0.1", receiver.port, timeout=60)
        for kind, rounds in bodies.items():
            for batch in rounds:
                points = BATCH * len(batch)
                started_at, cpu_before = time.perf_counter(), read_cpu_seconds(receiver.process)
                rejected = sum(push(connection, body) for body in batch)
                seconds, cpu_before = time.perf_counter() - started_at, read_cpu_seconds(receiver.process) - cpu_before
                if rejected:
                    raise RuntimeError(f"{rejected} points were rejected")
                started_at = time.process_time()
                for body in batch:
                    ExportMetricsServiceRequest.FromString(body)
                parsing = time.process_time() - started_at
                row = {
                    "per_second": points / seconds,
                    "cpu_us": cpu_before / points * 1e6,
                    "parse_us": parsing / points * 1e6,
                }
                rows_by_kind.setdefault(kind, []).append(row)
        connection.close()
    return rows_by_kind


def measure_memory() -> dict[str, float]:
    """Push until the receiver accepts no more, and ten thousand points beyond that."""
    with server() as receiver:
        connection = http.client.HTTPConnection("127.0.0.1", receiver.port, timeout=60)
        empty = request("bench.unwanted", 0, time.time())
        push(connection, empty)
        bytes_before = receiver.process.memory_info().rss
        at = time.time() - RANGE / 2
        rejected = 0
        for second in range(SAMPLES // SERIES + 1):
            for first_index in range(0, SERIES, BATCH):
                rejected += push(connection, request("bench.wanted", first_index, at + second))
        bytes_after = receiver.process.memory_info().rss
        series, samples = receiver.stored_counts()
        connection.close()
    return {
        "series": series,
        "samples": samples,
        "rejected": rejected,
        "mb": (bytes_after - bytes_before) / MEGABYTE,
        "process_mb": bytes_after / MEGABYTE,
    }


def measure(quick: bool) -> Measurement:
    """Return all figures."""
    rounds, batches = (3, 10) if quick else (9, 30)
    start = time.time() - RANGE / 2
    times = iter(range(rounds * batches))
    bodies = {
        "wanted": [[request("bench.wanted", 0, start + next(times)) for _ in range(batches)] for _ in range(rounds)],
        "unwanted": [[request("bench.unwanted", 0, start)] * batches for _ in range(rounds)],
    }
    rows_by_kind = measure_speed(bodies)
    bound = measure_memory()
    figures = []
    for kind, lower_limit in (("wanted", 20_000), ("unwanted", 100_000)):
        rates = [row["per_second"] for row in rows_by_kind[kind]]
        parsing = [row["parse_us"] for row in rows_by_kind[kind]]
        cpu_times = [row["cpu_us"] for row in rows_by_kind[kind]]
        figures.append(
            Figure(
                f"OTLP receiver, points a second, {kind}",
                f"{format_spread(rates, '/s', 0)}; CPU {format_spread(cpu_times, 'us')} a point",
                sorted(rates)[len(rates) // 2],
                "/s",
                f"parsing alone {format_spread(parsing, 'us')} a point",
                lower_limit=lower_limit,
            )
        )
    figures.append(
        Figure(
            "OTLP receiver, memory at its bounds",
            f"{bound['mb']:.0f} MB for {bound['series']:.0f} series, {bound['samples']:.0f} samples",
            bound["mb"],
            "MB",
            f"16 bytes a sample are {bound['samples'] * 16 / MEGABYTE:.0f} MB; then {bound['rejected']:.0f} rejected",
            upper_limit=64,
        )
    )
    return figures, {"speed": rows_by_kind, "bound": bound, "pid": os.getpid()}


if __name__ == "__main__":
    sys.exit(run(__doc__, measure))
