"""Requests that use the proxy of the environment."""

from __future__ import annotations

import pytest

from dsf.http.access import PLAIN, find_alias, find_proxy


@pytest.mark.parametrize(
    ("no_proxy", "url", "expected"),
    [
        ("", "http://api.example.com/", True),
        ("", "http://10.0.0.1/", True),
        ("", "http://svc.example.com/", True),
        ("", "http://mysvc/", False),
        ("", "http://scorer.team.svc:8000/", False),
        ("", "http://scorer.team.svc.cluster.local./", False),
        ("", "http://127.9.9.9/", False),
        ("", "http://[::1]/", False),
        ("*", "http://api.example.com/", False),
        ("example.com", "http://api.example.com/", False),
        ("example.com", "http://example.com/", False),
        ("example.com", "http://evilexample.com/", True),
        (".example.com", "http://example.com/", True),
        ("*.example.com", "http://api.EXAMPLE.com/", False),
        ("other.test, EXAMPLE.com:8080", "http://example.com:8080/", False),
        ("example.com:8080", "http://example.com/", True),
        ("example.com:80", "http://example.com/", False),
        ("10.0.0.0/8", "http://10.1.2.3/", False),
        ("10.0.0.0/8", "http://11.1.2.3/", True),
        ("10.0.0.0/8", "http://10.example.com/", True),
        ("fd00::/8", "http://[fd00::1]/", False),
        ("[fd00::1]:80", "http://[fd00::1]/", False),
        ("[fd00::1]:81", "http://[fd00::1]/", True),
        (" , ,", "http://api.example.com/", True),
    ],
)
def test_no_proxy(monkeypatch: pytest.MonkeyPatch, no_proxy: str, url: str, expected: bool) -> None:
    monkeypatch.setenv("http_proxy", "proxy:3128")
    monkeypatch.setenv("no_proxy", no_proxy)
    monkeypatch.delenv("NO_PROXY", raising=False)
    proxy = find_proxy(url, PLAIN)
    assert (proxy.display_address if proxy else None) == ("proxy:3128" if expected else None)


def test_invalid_address_has_no_alias() -> None:
    assert find_alias("http://[fd00:1:2]:9090/api") == ""
    assert find_alias("http://prometheus:99999/") == ""
