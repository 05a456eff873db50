"""Concurrent requests share renderings, of which one runs at a time."""

from __future__ import annotations

import asyncio
import gzip
import threading
from collections.abc import Iterable

import pytest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dsf.http.metricsrenderer import MetricsRenderer, RenderedMetrics


class SlowCollector(Collector):
    """Counts readings; each waits for `go_on`."""

    def __init__(self, error: Exception | None = None) -> None:
        self.readings = 0
        self.started = threading.Event()
        self.go_on = threading.Event()
        self.error = error
        self.concurrent_readings = self.max_concurrent_readings = 0

    def collect(self) -> Iterable[Metric]:
        self.readings += 1
        self.concurrent_readings += 1
        self.max_concurrent_readings = max(self.max_concurrent_readings, self.concurrent_readings)
        self.started.set()
        assert self.go_on.wait(60)
        self.concurrent_readings -= 1
        if self.error:
            raise self.error
        return [GaugeMetricFamily("readings", "How many.", value=self.readings)]


def render_with(accept: str = "", accept_encoding: str = "") -> RenderedMetrics:
    collector = SlowCollector()
    collector.go_on.set()
    return asyncio.run(MetricsRenderer().render(collector, accept, accept_encoding))


async def render_concurrently(collector: SlowCollector, *accepts: str) -> list[RenderedMetrics | BaseException]:
    """Request the metrics with the first header, and with the others while these are read."""
    renderer = MetricsRenderer()
    first_task = asyncio.create_task(renderer.render(collector, accepts[0], ""))
    assert await asyncio.to_thread(collector.started.wait, 60)
    further_tasks = [asyncio.create_task(renderer.render(collector, accept, "")) for accept in accepts[1:]]
    # Each task begins before this one continues.
    await asyncio.sleep(0)
    collector.go_on.set()
    return await asyncio.gather(first_task, *further_tasks, return_exceptions=True)


def test_concurrent_requests_share_a_reading_that_begins_after_them() -> None:
    collector = SlowCollector()
    first_rendering, *further_renderings = asyncio.run(render_concurrently(collector, *[""] * 6))
    assert isinstance(first_rendering, RenderedMetrics)
    assert b"readings 1.0" in first_rendering.body
    assert len({id(rendering) for rendering in further_renderings}) == 1
    assert collector.readings == 2


def test_different_formats_are_rendered_one_after_another() -> None:
    collector = SlowCollector()
    formats = ["", "application/openmetrics-text; version=1.0.0", "text/plain; version=1.0.0; escaping=dots"]
    responses = asyncio.run(render_concurrently(collector, *formats))
    assert (collector.readings, collector.max_concurrent_readings) == (3, 1)
    assert (
        len({response.headers["Content-Type"] for response in responses if isinstance(response, RenderedMetrics)}) == 3
    )


def test_versions_that_a_client_invents_have_no_rendering_of_their_own() -> None:
    collector = SlowCollector()
    asyncio.run(render_concurrently(collector, "", *(f"text/plain; version=1.{number}.1" for number in range(20))))
    assert collector.readings == 2


def test_error_reaches_all_waiting_requests_and_is_not_cached() -> None:
    collector = SlowCollector(ValueError("broken"))
    errors = asyncio.run(render_concurrently(collector, "", "", ""))
    assert [str(error) for error in errors] == ["broken"] * 3
    assert collector.readings == 2


def test_cancelled_request_does_not_affect_others() -> None:
    async def cancel_one() -> RenderedMetrics:
        collector, renderer = SlowCollector(), MetricsRenderer()
        cancelled, other = (asyncio.create_task(renderer.render(collector, "", "")) for _ in range(2))
        assert await asyncio.to_thread(collector.started.wait, 60)
        cancelled.cancel()
        collector.go_on.set()
        return await other

    assert b"readings 1.0" in asyncio.run(cancel_one()).body


def test_renderer_works_in_the_event_loop_of_a_restarted_server() -> None:
    collector, renderer = SlowCollector(), MetricsRenderer()
    collector.go_on.set()

    async def render_twice() -> None:
        await asyncio.gather(renderer.render(collector, "", ""), renderer.render(collector, "", "gzip"))

    for _ in range(2):
        asyncio.run(render_twice())


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("", "text/plain; version=0.0.4; charset=utf-8"),
        ("text/html,*/*", "text/plain; version=0.0.4; charset=utf-8"),
        ("text/plain", "text/plain; version=0.0.4; charset=utf-8"),
        ("text/plain; version=abc", "text/plain; version=0.0.4; charset=utf-8"),
        ("text/plain; version=abc; version=1.0.0", "text/plain; version=0.0.4; charset=utf-8"),
        (
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=1.0.0;q=0.4",
            "application/openmetrics-text; version=1.0.0; charset=utf-8; escaping=allow-utf-8",
        ),
        (
            "application/openmetrics-text;version=3.0.0,application/openmetrics-text;version=1.0.0",
            "application/openmetrics-text; version=1.0.0; charset=utf-8; escaping=underscores",
        ),
    ],
)
def test_accept_header_selects_the_format(accept: str, content_type: str) -> None:
    assert render_with(accept).headers["Content-Type"] == content_type


def test_body_is_compressed_if_the_client_accepts_it() -> None:
    body, headers = render_with("application/openmetrics-text", "gzip")
    assert headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(body).endswith(b"# EOF\n")
