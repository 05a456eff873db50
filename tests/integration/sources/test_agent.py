"""A whole agent: metrics are pushed to it or pulled by it, and its scoring API gets a matrix."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

from dsf.errors import SettingsError
from dsf.settings import Settings
from tests.conftest import SettingsFactory
from tests.integration.agent.harness import Agent, summary
from tests.support.httpserver import ScriptedServer, answer
from tests.support.redisserver import free_port
from tests.support.wait import wait_for

pytestmark = pytest.mark.xdist_group("sources_agent")


@pytest.fixture
def scorer() -> Iterator[ScriptedServer]:
    with ScriptedServer(answer({"results": [{"metric": {"pod": "a"}, "score": 1}]})) as server:
        yield server


def series(request: Any) -> dict[str, list[Any]]:
    return {one["metric"]["__name__"]: one["values"] for one in request.json()["data"]}


def test_pushed_and_pulled_metrics_reach_the_scoring_api(
    tmp_path: Path, redis_url: str, scorer: ScriptedServer
) -> None:
    port = free_port()
    with (
        ScriptedServer(answer("pulled 3\n", Content_Type="text/plain")) as exporter,
        Agent(tmp_path, redis_url, otlp_port=port, otlp_host="127.0.0.1") as agent,
    ):
        common = {"sourceType": "OpenTelemetry", "sourceRange": 20, "sourceStep": 10}
        agent.configure(
            summary("pushed", "http://agent/v1/metrics", scorer.url, sourceQuery="queue.length", **common),
            summary("pulled", f"{exporter.url}/metrics", scorer.url, sourceQuery="pulled", **common),
        )
        wait_for(lambda: agent.metrics("dynamic_scoring_config_scorers 2"), 10, "both scorers are known")
        sender = OTLPMetricExporter(endpoint=f"http://127.0.0.1:{port}/v1/metrics")
        provider = MeterProvider([PeriodicExportingMetricReader(sender, 60_000)], shutdown_on_exit=False)
        provider.get_meter("test").create_gauge("queue.length").set(42)
        assert provider.force_flush()
        provider.shutdown()
        agent.tick("pushed")
        assert agent.result().outcome == "ok"
        assert series(scorer.requests[-1])["queue_length"][-1][1] == "42"
        agent.tick("pulled")
        assert agent.result().outcome == "ok"
        assert series(scorer.requests[-1])["pulled"][-1][1] == "3"
        assert agent.metrics("dynamic_scoring_window_series") == ["dynamic_scoring_window_series 2.0"]
        assert agent.metrics('dynamic_scoring_otlp_samples_total{result="kept"}')


def test_a_source_that_this_agent_cannot_have_is_an_error_with_words(
    tmp_path: Path, redis_url: str, scorer: ScriptedServer
) -> None:
    with Agent(tmp_path, redis_url) as agent:
        agent.configure(
            summary("pushed", "http://agent/v1/metrics", scorer.url, sourceType="OpenTelemetry", sourceQuery="m"),
            summary("cluster", "", scorer.url, sourceType="Kubernetes"),
        )
        for name, words in (("pushed", "DSF_OTLP_PORT"), ("cluster", "DSF_AGENT_KUBE")):
            agent.tick(name)
            result = agent.result()
            assert (result.outcome, result.stage, result.reason) == ("error", "fetch", "unsupported_source")
            assert words in result.message


def test_the_extra_is_named_when_it_is_missing(
    settings_factory: SettingsFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    from prometheus_client import CollectorRegistry

    from dsf.agent import sources

    def absent(_: str) -> None:
        raise ModuleNotFoundError

    monkeypatch.setattr(sources.importlib.util, "find_spec", absent)
    settings: Settings = settings_factory(otlp_port=0)
    with pytest.raises(SettingsError, match=r"dynamic-scoring-framework\[otel\]"):
        sources.SourceState(settings, dict, None, CollectorRegistry())


def test_a_port_in_use_is_named(settings_factory: SettingsFactory) -> None:
    from prometheus_client import CollectorRegistry

    from dsf.agent.sources import SourceState

    first = SourceState(settings_factory(otlp_port=0, otlp_host="127.0.0.1"), dict, None, CollectorRegistry())
    first.start()
    taken = settings_factory(otlp_port=first.otlp_port, otlp_host="127.0.0.1")
    second = SourceState(taken, dict, None, CollectorRegistry())
    with pytest.raises(SettingsError, match="DSF_OTLP_PORT: cannot listen"):
        second.start()
    first.stop()
    second.stop()
