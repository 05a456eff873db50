"""Error texts of failed HTTP exchanges."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsf.http import failures
from dsf.text import describe_request


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://host:9090/path?query=secret", "GET http://host:9090/path"),
        ("https://user:secret@host/path", "GET https://***@host/path"),
        ("http://[::1]:80/x#secret", "GET http://[::1]:80/x"),
        ("nonsense", "GET nonsense"),
        ("https://user:secret@[:]", "GET https://***@[:]"),
        ("http://host/\u202e\x9bpath", "GET http://host/ path"),
    ],
)
def test_places_have_no_secrets(url: str, expected: str) -> None:
    assert describe_request("GET", url) == expected


@given(st.binary(max_size=400))
def test_excerpt_is_one_printable_line(body: bytes) -> None:
    text = failures.make_excerpt(body)
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
    assert failures.parse_retry_after(value) == expected


@pytest.fixture(params=["UTC", "Asia/Tokyo"])
def _zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", request.param)
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("_zone")
@pytest.mark.parametrize("zone", ["GMT", "-0000", ""])
def test_retry_after_as_a_date(zone: str) -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)
    seconds = failures.parse_retry_after(date.replace("GMT", zone).strip())
    assert seconds is not None
    assert 50 < seconds <= 60


@pytest.mark.parametrize("ahead", [-3600, 0, 3600])
def test_retry_after_as_a_date_is_a_time_of_the_servers_clock(ahead: int) -> None:
    """Otherwise a machine whose clock is behind would wait for an hour."""
    server_now = datetime.now(UTC) + timedelta(seconds=ahead)
    headers = {
        "Retry-After": format_datetime(server_now + timedelta(seconds=60), usegmt=True),
        "Date": format_datetime(server_now, usegmt=True),
    }
    seconds = failures.make_status_error("GET http://a", 503, headers, b"").retry_after
    assert seconds == pytest.approx(60, abs=2)


@pytest.mark.parametrize("date", ["", "soon"])
def test_retry_after_as_a_date_needs_no_date_of_the_server(date: str) -> None:
    value = format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)
    assert failures.parse_retry_after(value, date) == pytest.approx(60, abs=2)


@pytest.mark.parametrize(
    ("status", "seconds", "clock_text"),
    [
        (401, 3600, " 3600 s ahead of that of who asks"),
        (403, -3600, " 3600 s behind that of who asks"),
        (400, 86400, " 86400 s ahead of"),
        # The difference may be the duration of the request; the second status is no refusal of credentials.
        (401, -20, ""),
        (500, 3600, ""),
    ],
)
def test_refusal_mentions_a_differing_clock(
    monkeypatch: pytest.MonkeyPatch, status: int, seconds: int, clock_text: str
) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    monkeypatch.setattr(failures.time, "time", now.timestamp)
    headers = {"Date": format_datetime(now + timedelta(seconds=seconds), usegmt=True)}
    text = str(failures.make_status_error("GET http://a", status, headers, b"no"))
    assert ("clock" in text) == bool(clock_text)
    assert clock_text in text


@pytest.mark.parametrize("date", ["", "soon", "Wed, 99 Oct 2015 07:28:00 GMT", "\u0667"])
def test_refusal_without_a_valid_date_mentions_no_clock(date: str) -> None:
    assert str(failures.make_status_error("GET http://a", 401, {"Date": date}, b"no")).endswith("HTTP 401: no")


def test_refusal_includes_the_error_of_its_challenge() -> None:
    challenge = 'Bearer realm="r", error="invalid_token", error_description="token s3cret-token is over"'
    text = str(failures.make_status_error("GET http://a", 401, {"WWW-Authenticate": challenge}, b"", ["s3cret-token"]))
    assert text.endswith('error="invalid_token", error_description="token *** is over"')
    # The body already explains the refusal; a challenge without an error adds no text.
    body = b'{"error": "invalid_token"}'
    assert str(failures.make_status_error("GET http://a", 401, {"WWW-Authenticate": challenge}, body)).endswith(
        body.decode()
    )
    assert str(failures.make_status_error("GET http://a", 401, {"WWW-Authenticate": "Basic"}, b"")).endswith("HTTP 401")
