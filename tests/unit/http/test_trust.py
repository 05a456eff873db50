"""Certificates in text of any kind."""

from __future__ import annotations

import pytest

from dsf.http.trust import CERTIFICATE, period


def test_certificates_among_other_text() -> None:
    one = b"-----BEGIN CERTIFICATE-----\nTUlJ\n-----END CERTIFICATE-----"
    assert CERTIFICATE.findall(b"subject=a - b\n" + one + b"\n-----BEGIN CERTIFICATE-----\nhalf\n" + one) == [one, one]


def test_many_beginnings_without_an_end_take_no_time() -> None:
    """It took minutes for a mebibyte, in which no other thread ran: the time limit of a test would end it."""
    data = b"-----BEGIN CERTIFICATE-----\n" * 40_000
    assert CERTIFICATE.findall(data) == []
    with pytest.raises(ValueError, match="no certificate"):
        period(data)
