"""Words for failed HTTP exchanges."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsf.http import failures


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://host:9090/path?query=secret", "GET http://host:9090/path"),
        ("https://user:secret@host/path", "GET https://host/path"),
        ("http://[::1]:80/x#secret", "GET http://[::1]:80/x"),
        ("nonsense", "GET ://nonsense"),
        ("https://user:secret@[:]", "GET (not a URL)"),
        ("http://host/\u202e\x9bpath", "GET http://host/ path"),
    ],
)
def test_places_have_no_secrets(url: str, expected: str) -> None:
    assert failures.place("GET", url) == expected


@given(st.binary(max_size=400))
def test_an_excerpt_is_one_printable_line(body: bytes) -> None:
    text = failures.excerpt(body)
    assert text.isprintable()
    assert len(text) <= 200


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        ("7", 7.0),
        (" 0 ", 0.0),
        ("99999999999999999999", 600.0),
        ("-1", None),
        ("soon", None),
        ("", None),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 600.0),
        ("7.5", None),
        ("\u0667", None),
    ],
)
def test_retry_after(value: str | None, expected: float | None) -> None:
    assert failures.retry_after(value) == expected


def test_retry_after_as_a_date() -> None:
    seconds = failures.retry_after(format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True))
    assert seconds is not None
    assert 57 < seconds <= 60
