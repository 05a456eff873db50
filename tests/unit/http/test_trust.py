"""Certificates inside other text, and caching of CAs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dsf.http import trust
from dsf.http.access import TlsOptions
from dsf.http.trust import CERTIFICATE, parse_validity


def test_certificates_among_other_text() -> None:
    certificate = b"-----BEGIN CERTIFICATE-----\nTUlJ\n-----END CERTIFICATE-----"
    assert CERTIFICATE.findall(
        b"subject=a - b\n" + certificate + b"\n-----BEGIN CERTIFICATE-----\nhalf\n" + certificate
    ) == [certificate, certificate]


def test_many_beginnings_without_an_end_take_no_time() -> None:
    """Backtracking took minutes for a mebibyte, during which no other thread ran; the test's time limit catches it."""
    data = b"-----BEGIN CERTIFICATE-----\n" * 40_000
    assert CERTIFICATE.findall(data) == []
    with pytest.raises(ValueError, match="no certificate"):
        parse_validity(data)


def test_threads_that_begin_at_once_read_the_cas_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(lambda _: trust.context(), range(8)))) == 1


def test_servers_with_tls_options_do_not_change_the_shared_context() -> None:
    usual = trust.context()
    # A CA with another text is loaded again.
    for number in range(17):
        trust.context(TlsOptions(ca=b"\n" * number, verify=False))
    assert trust.context(TlsOptions(server_name="other")) is usual
