"""Certificates inside other text, and caching of CAs."""

from __future__ import annotations

import ssl
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from kubernetes import client

from dsf.http import trust
from dsf.http.access import TlsOptions
from dsf.http.trust import PEM_CERTIFICATE_PATTERN, parse_validity
from dsf.kube.access import Certificates
from dsf.redislink import connection
from tests.support.tlsca import TestCa


def test_certificates_among_other_text() -> None:
    certificate = b"-----BEGIN CERTIFICATE-----\nTUlJ\n-----END CERTIFICATE-----"
    assert PEM_CERTIFICATE_PATTERN.findall(
        b"subject=a - b\n" + certificate + b"\n-----BEGIN CERTIFICATE-----\nhalf\n" + certificate
    ) == [certificate, certificate]


def test_many_beginnings_without_an_end_take_no_time() -> None:
    """Backtracking took minutes for a mebibyte, during which no other thread ran; the test's time limit catches it."""
    data = b"-----BEGIN CERTIFICATE-----\n" * 40_000
    assert PEM_CERTIFICATE_PATTERN.findall(data) == []
    with pytest.raises(ValueError, match="no certificate"):
        parse_validity(data)


def test_threads_that_begin_at_once_read_the_cas_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(lambda _: trust.get_ssl_context(), range(8)))) == 1


def test_servers_with_tls_options_do_not_change_the_shared_context() -> None:
    usual = trust.get_ssl_context()
    # A CA with another text is loaded again.
    for number in range(17):
        trust.get_ssl_context(TlsOptions(ca=b"\n" * number, verify=False))
    assert trust.get_ssl_context(TlsOptions(server_name="other")) is usual


def test_ca_without_a_key_usage_is_trusted_on_each_python(tmp_path: Path) -> None:
    """Python 3.13 refuses such a CA by default, with which servers worked on 3.12."""
    ca = TestCa(tmp_path / "ca", extensions="plain")
    certificate = ca.issue("localhost")
    configuration = client.Configuration(host="https://localhost")
    configuration.ssl_ca_cert = str(ca.cert)
    for context in (
        trust.get_ssl_context(TlsOptions(ca=ca.cert.read_bytes())),
        Certificates(configuration).context,
        connection._make_context(str(ca.cert), None, None),
    ):
        _shake_hands(context, certificate.cert, certificate.key)


def _shake_hands(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    """Make a TLS connection in memory. Raises ssl.SSLError if the certificate is refused."""
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(certificate, key)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        context.wrap_bio(to_client, to_server, server_hostname="localhost"),
        server_context.wrap_bio(to_server, to_client, server_side=True),
    ]
    while sides:
        try:
            sides[0].do_handshake()
            del sides[0]
        except ssl.SSLWantReadError:
            sides.reverse()
