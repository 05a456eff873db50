from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsf.api.urls import Origin, get_base_url, is_valid_url, join_url, parse_origin
from tests.cases import load


@pytest.mark.parametrize("case", load("urls"))
def test_is_valid_url(case: dict[str, Any]) -> None:
    assert is_valid_url(case["url"]) is case["expected"]


@pytest.mark.parametrize("case", load("url_joins"))
def test_join_url(case: dict[str, Any]) -> None:
    assert join_url(case["host"], case["path"]) == case["expected"]


@given(st.text() | st.text(alphabet="/.\\@:?#%a"))
def test_joined_path_never_changes_the_host(path: str) -> None:
    joined = join_url("http://good.example:9090/base", path)
    assert is_valid_url(joined)
    assert parse_origin(joined) == ("http", "good.example", 9090)


def test_origin_knows_default_ports_and_letter_case() -> None:
    assert (
        parse_origin("HTTPS://Prom.Example/x")
        == parse_origin("https://prom.example:443")
        == Origin("https", "prom.example", 443)
    )
    assert parse_origin("http://h") != parse_origin("https://h")
    assert parse_origin("http://h") != parse_origin("http://h:8080")


def test_base_url_is_the_url_as_written_without_its_path() -> None:
    assert get_base_url("http://c:8000/a/config?x=1") == "http://c:8000"
    assert get_base_url("https://[::1]/config") == "https://[::1]"


def test_host_with_a_query_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^'http://h' has a query \(\?\.\.\.\), which a host cannot have$"):
        join_url("http://h?x=1", "/p")


def test_host_without_a_scheme_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"^'prom:9090' is not a URL of the form http://host\[:port\]\[/path\] or https://\.\.\.$"
    ):
        join_url("prom:9090", "/p")
