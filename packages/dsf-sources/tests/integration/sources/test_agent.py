"""A whole agent: metrics are pushed to it or pulled by it, and its scoring API gets a matrix."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

from tests.integration.agent.harness import Agent, summary
from tests.support.httpserver import ScriptedServer, answer
from tests.support.redisserver import free_port
from tests.support.wait import wait_for


@pytest.fixture
def scorer() -> Iterator[ScriptedServer]:
    with ScriptedServer(answer({"results": [{"metric": {"pod": "a"}, "score": 1}]})) as server:
        yield server


def series(request: Any) -> dict[str, list[Any]]:
    return {sent_series["metric"]["__name__"]: sent_series["values"] for sent_series in request.json()["data"]}


def test_pushed_and_pulled_metrics_reach_the_scoring_api(
    tmp_path: Path, redis_url: str, scorer: ScriptedServer
) -> None:
    port = free_port()
    with (
        ScriptedServer(answer("pulled 3\n", Content_Type="text/plain")) as exporter,
        Agent(tmp_path, redis_url, otlp_port=port, listen_host="127.0.0.1") as agent,
    ):
        common = {"sourceType": "OpenTelemetry", "sourceRange": 20, "sourceStep": 1}
        agent.configure(
            summary("pushed", "http://agent/v1/metrics", scorer.url, sourceQuery="queue.length", **common),
            summary("pulled", f"{exporter.url}/metrics", scorer.url, sourceQuery="pulled", **common),
        )
        wait_for(lambda: agent.metrics("dynamic_scoring_config_scorers 2"), 10, "both scorers are known")
        # By default the exporter gives up after ten seconds.
        sender = OTLPMetricExporter(endpoint=f"http://127.0.0.1:{port}/v1/metrics", timeout=300)
        provider = MeterProvider([PeriodicExportingMetricReader(sender, 60_000)], shutdown_on_exit=False)
        provider.get_meter("test").create_gauge("queue.length").set(42)
        assert provider.force_flush(300_000)
        provider.shutdown()
        agent.tick("pushed")
        assert agent.result().outcome == "ok"
        assert series(scorer.requests[-1])["queue_length"][-1][1] == "42"
        agent.tick("pulled")
        assert agent.result().outcome == "ok"
        assert series(scorer.requests[-1])["pulled"][-1][1] == "3"
        assert agent.metrics("dynamic_scoring_window_series") == ["dynamic_scoring_window_series 2.0"]
        assert agent.metrics('dynamic_scoring_otlp_samples_total{result="kept"}')


def test_unsupported_source_error_names_the_setting(tmp_path: Path, redis_url: str, scorer: ScriptedServer) -> None:
    with Agent(tmp_path, redis_url) as agent:
        agent.configure(
            summary("pushed", "http://agent/v1/metrics", scorer.url, sourceType="OpenTelemetry", sourceQuery="m"),
            summary("cluster", "", scorer.url, sourceType="Kubernetes"),
        )
        for name, setting in (("pushed", "DSF_OTLP_PORT"), ("cluster", "DSF_AGENT_KUBE")):
            agent.tick(name)
            result = agent.result()
            assert (result.outcome, result.stage, result.reason) == ("error", "fetch", "unsupported_source")
            assert setting in result.message


def test_port_in_use_is_named_and_bound_as_soon_as_it_is_free(
    tmp_path: Path, redis_url: str, scorer: ScriptedServer
) -> None:
    common = {"sourceType": "OpenTelemetry", "sourceQuery": "m"}
    with (
        # The kernel does not assign this port to a connection in the meantime.
        socket.create_server(("127.0.0.1", free_port())) as other,
        ScriptedServer(answer("m 3\n", Content_Type="text/plain")) as exporter,
        Agent(tmp_path, redis_url, otlp_port=(port := other.getsockname()[1]), listen_host="127.0.0.1") as agent,
    ):
        agent.configure(
            summary("pushed", "http://agent/v1/metrics", scorer.url, **common),
            summary("pulled", f"{exporter.url}/metrics", scorer.url, **common),
        )
        agent.tick("pushed")
        result = agent.result()
        assert (result.outcome, result.stage, result.reason) == ("error", "fetch", "plugin_failed")
        assert f"DSF_OTLP_PORT: cannot listen on 127.0.0.1:{port} (Address already in use)" in result.message
        agent.tick("pulled")
        assert agent.result().outcome == "ok"
        other.close()
        agent.tick("pushed")
        assert agent.result().outcome == "ok"
        socket.create_connection(("127.0.0.1", port), timeout=300).close()


def test_otlp_receiver_starts_with_the_first_pushed_scorer(
    tmp_path: Path, redis_url: str, scorer: ScriptedServer
) -> None:
    port = free_port()

    def listens() -> bool:
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port), timeout=300):
            return True
        return False

    with (
        ScriptedServer(answer("m 3\n", Content_Type="text/plain")) as exporter,
        Agent(tmp_path, redis_url, otlp_port=port, listen_host="127.0.0.1") as agent,
    ):
        pulled = summary("pulled", f"{exporter.url}/metrics", scorer.url, sourceType="OpenTelemetry", sourceQuery="m")
        agent.configure(pulled)
        agent.tick("pulled")
        assert agent.result().outcome == "ok"
        assert (listens(), has_loaded_protobuf(agent)) == (False, False)
        # Pushed before its first cycle, which would have no series otherwise.
        pushed = summary("pushed", "http://agent/v1/metrics", scorer.url, sourceType="OpenTelemetry", sourceQuery="m")
        agent.configure(pulled, pushed)
        wait_for(listens, 30, "the receiver")
        assert has_loaded_protobuf(agent)


def has_loaded_protobuf(agent: Agent) -> bool:
    """Whether the agent's process has loaded the library that OTLP's messages are read with."""
    assert agent.process is not None
    return "google/_upb" in Path(f"/proc/{agent.process.pid}/maps").read_text()
