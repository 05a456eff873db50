"""Concurrent scrapes share one reading."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import pytest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dsf.fleetmetrics.endpoint import Scraper
from tests.support.wait import PATIENCE, wait_for


class SlowCollector(Collector):
    """Counts readings; each waits for `go_on`."""

    def __init__(self, error: Exception | None = None) -> None:
        self.readings = 0
        self.started = threading.Event()
        self.go_on = threading.Event()
        self.error = error

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        self.readings += 1
        self.started.set()
        assert self.go_on.wait(60)
        if self.error:
            raise self.error
        return [GaugeMetricFamily("readings", "How many.", value=self.readings)]


def test_concurrent_scrapes_share_a_reading_and_later_ones_read_again() -> None:
    collector = SlowCollector()
    scraper = Scraper(collector)
    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(scraper.scrape, "")
        assert collector.started.wait(60)
        concurrent_scrapes = [pool.submit(scraper.scrape, "") for _ in range(5)]
        wait_for(lambda: all(other.running() for other in concurrent_scrapes), 10, "the other scrapes to start")
        collector.go_on.set()
        answers = {first.result(PATIENCE)[0], *(other.result(PATIENCE)[0] for other in concurrent_scrapes)}
    # Scrapes that arrived after the start of the first read share another one; without sharing there would be six.
    assert collector.readings <= len(concurrent_scrapes)
    assert any(b"readings 1.0" in answer for answer in answers)
    before = collector.readings
    scraper.scrape("")
    assert collector.readings == before + 1


def test_error_reaches_all_waiting_scrapes_and_is_not_cached() -> None:
    collector = SlowCollector(ValueError("broken"))
    collector.go_on.set()
    scraper = Scraper(collector)
    for _ in range(2):
        with pytest.raises(ValueError, match="broken"):
            scraper.scrape("")
    assert collector.readings == 2


def test_accept_header_selects_the_format() -> None:
    collector = SlowCollector()
    collector.go_on.set()
    scraper = Scraper(collector)
    _, plain = scraper.scrape("")
    body, openmetrics = scraper.scrape("application/openmetrics-text; version=1.0.0")
    assert plain.startswith("text/plain")
    assert openmetrics.startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")
