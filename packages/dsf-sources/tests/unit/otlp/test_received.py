"""Pushed samples while a request is ingested."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from dsf.api.summary import ScorerSummary
from dsf.otlp.received import Received
from dsf.sources.window import WindowBudget
from tests.support.wait import PATIENCE


def test_agent_does_not_wait_for_a_large_request() -> None:
    is_taking, may_end = threading.Event(), threading.Event()

    def read_summaries() -> Mapping[str, ScorerSummary]:
        if threading.current_thread() is request:
            is_taking.set()
            may_end.wait(PATIENCE)
        return {}

    received = Received(WindowBudget(1, 1), read_summaries)
    request = threading.Thread(target=received.ingest, args=(ExportMetricsServiceRequest(),))
    tidying = threading.Thread(target=received.tidy)
    request.start()
    try:
        assert is_taking.wait(PATIENCE)
        tidying.start()
        tidying.join(5)
        assert not tidying.is_alive()
    finally:
        may_end.set()
        request.join()
