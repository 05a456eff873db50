"""Host names for scraping metrics without a login."""

from __future__ import annotations

import pytest

from dsf.http.hosts import may_scrape, parse_host_name


@pytest.mark.parametrize(
    ("host", "is_allowed"),
    [
        ("10.1.2.3:8080", True),
        ("[2001:db8::1]:8080", True),
        ("localhost:8080", True),
        ("exporter:8080", True),
        ("dynamic-scoring-web.ocm.svc:8080", True),
        ("dynamic-scoring-web.ocm.svc.cluster.local:8080", True),
        ("attacker.example.com:8080", False),
        ("svc.example.com", False),
        ("[::1", False),
    ],
)
def test_scrapers_ask_by_names_that_no_web_page_has(host: str, is_allowed: bool) -> None:
    assert may_scrape(parse_host_name(host)) is is_allowed
