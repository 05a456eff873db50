"""URLs are sent as requests sends them."""

from __future__ import annotations

import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st

from dsf.http.urls import ready, with_params

URLS = (
    "http://prometheus:9090/api/v1/query_range",
    "https://user:pa%20ss@Example.com/a b/ü?tenant=a b&x=%zz",
    "http://h",
    "http://h?",
    "HTTP://[::1]:8080/~a/%7e/%2F#part?no=param",
    "http://bücher.example/?q",
)
_CHARACTERS = st.characters(exclude_categories=["Cs"])


@pytest.mark.parametrize("url", URLS)
@given(st.lists(st.tuples(st.text(_CHARACTERS, min_size=1), st.text(_CHARACTERS) | st.integers()), max_size=4))
def test_as_requests_sends_them(url: str, params: list[tuple[str, str | int]]) -> None:
    theirs = requests.Request("GET", url, params=params).prepare().url
    assert theirs is not None
    assert with_params(ready(url), params) == theirs.partition("#")[0]


@pytest.mark.parametrize("url", ["http://", "http://*.example.com", "http://h:port/", "/path"])
def test_what_is_no_url_is_refused_each_time(url: str) -> None:
    for _ in range(2):
        with pytest.raises((requests.RequestException, ValueError)):
            ready(url)
