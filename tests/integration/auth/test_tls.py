"""Client certificates and CAs on real TLS, and the messages when they do not match."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from datetime import timedelta

import pytest

from tests.support.authenticatedquery import GOOD, SourceAccessHarness, server_context
from tests.support.httpserver import ScriptedServer, answer
from tests.support.tlsca import TestCa

CA = {"caRef": {"name": "private-ca", "key": "ca.crt"}}
CERTIFICATE = {"clientCertificate": {"secretName": "client"}}


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> TestCa:
    """The CA of clients."""
    return TestCa(tmp_path_factory.mktemp("clients"), "clients")


@pytest.fixture
def private(ca: TestCa, local: ssl.SSLContext, bed: SourceAccessHarness) -> Iterator[ScriptedServer]:
    """A server with a certificate of the private CA, which is in a ConfigMap."""
    bed.put("private-ca", ca_crt=ca.cert.read_bytes())
    with ScriptedServer(GOOD, tls=local) as running:
        yield running


@pytest.fixture
def mutual(ca: TestCa, clients: TestCa, bed: SourceAccessHarness) -> Iterator[ScriptedServer]:
    """The same; it wants certificates."""
    bed.put("private-ca", ca_crt=ca.cert.read_bytes())
    with ScriptedServer(GOOD, tls=server_context(ca.issue("127.0.0.1"), clients)) as running:
        yield running


def test_private_ca_is_trusted_for_its_own_server_only(bed: SourceAccessHarness, private: ScriptedServer) -> None:
    assert bed.fetch(private.url, tls=CA) == 1
    error = bed.failure(private.url)
    assert error.reason == "connection_failed"
    assert "TLS failed" in error.message


def test_ca_that_did_not_sign_the_server_is_refused(
    bed: SourceAccessHarness, private: ScriptedServer, clients: TestCa
) -> None:
    bed.put("private-ca", ca_crt=clients.cert.read_bytes())
    error = bed.failure(private.url, tls=CA)
    assert error.reason == "connection_failed"
    assert "TLS failed" in error.message
    assert "certificate" in error.message


@pytest.mark.parametrize(
    ("content", "expected_message"), [(b"no PEM", "has no certificate in PEM"), (None, "is missing")]
)
def test_unusable_ca_is_named(
    bed: SourceAccessHarness, private: ScriptedServer, content: bytes | None, expected_message: str
) -> None:
    if content is None:
        (bed.folder / "private-ca" / "ca.crt").unlink()
    else:
        bed.put("private-ca", ca_crt=content)
    error = bed.failure(private.url, tls=CA)
    assert error.reason == ("secret_missing" if content is None else "secret_invalid")
    assert f"key 'ca.crt' of ConfigMap 'private-ca' {expected_message}" in error.message


def test_server_name_overrides_the_host_in_the_certificate_check(bed: SourceAccessHarness, ca: TestCa) -> None:
    bed.put("private-ca", ca_crt=ca.cert.read_bytes())
    with ScriptedServer(GOOD, tls=server_context(ca.issue("prometheus.internal"))) as server:
        assert "TLS failed" in bed.failure(server.url, tls=CA).message
        assert bed.fetch(server.url, tls={**CA, "serverName": "prometheus.internal"}) == 1
        assert "TLS failed" in bed.failure(server.url, tls={**CA, "serverName": "other.internal"}).message


def test_unverified_server_is_reported(bed: SourceAccessHarness, private: ScriptedServer) -> None:
    assert bed.fetch(private.url, tls={"insecureSkipVerify": True}) == 1
    assert "the server's certificate is not verified" in bed.display_lines
    # A client that verifies certificates does not reuse that connection.
    assert "TLS failed" in bed.failure(private.url).message


def test_token_server_certificate_is_always_verified(
    bed: SourceAccessHarness, private: ScriptedServer, local: ssl.SSLContext
) -> None:
    bed.put("client", secret="s3cret-of-client")
    token_response = answer({"access_token": "t0ken", "token_type": "Bearer"})
    with ScriptedServer(token_response, tls=local) as tokens:
        secret = {"name": "client", "key": "secret"}
        oauth2 = {"tokenURL": f"{tokens.url}/token", "clientID": {"value": "a"}, "clientSecret": secret}
        error = bed.failure(private.url, {"oauth2": oauth2}, {"insecureSkipVerify": True})
        assert (error.reason, "TLS failed" in error.message, tokens.requests) == ("auth_failed", True, [])
        assert bed.fetch(private.url, {"oauth2": oauth2}, {**CA, "insecureSkipVerify": True}) == 1


def test_client_certificate_is_sent_and_its_rotation_opens_a_new_connection(
    bed: SourceAccessHarness, mutual: ScriptedServer, clients: TestCa
) -> None:
    bed.put_certificate("client", clients.issue("agent-one"))
    for _ in range(5):
        assert bed.fetch(mutual.url, CERTIFICATE, CA) == 1
    # All five fetches share one connection.
    assert mutual.connections == 1
    assert any(line.startswith("client certificate of Secret client, valid until 2") for line in bed.display_lines)
    bed.put_certificate("client", clients.issue("agent-two"))
    assert bed.fetch(mutual.url, CERTIFICATE, CA) == 1
    assert mutual.connections == 2


def test_missing_client_certificate_is_refused_by_the_server(bed: SourceAccessHarness, mutual: ScriptedServer) -> None:
    error = bed.failure(mutual.url, None, CA)
    assert error.reason == "connection_failed"


@pytest.mark.parametrize(
    ("start", "end", "expected_message"),
    [
        (timedelta(days=-3), timedelta(days=-1), "the client certificate expired at 2"),
        (timedelta(days=1), timedelta(days=2), "the client certificate is valid from 2"),
    ],
)
def test_client_certificate_outside_its_validity_is_not_sent(
    bed: SourceAccessHarness,
    mutual: ScriptedServer,
    clients: TestCa,
    start: timedelta,
    end: timedelta,
    expected_message: str,
) -> None:
    bed.put_certificate("client", clients.issue("agent", start=start, end=end))
    error = bed.failure(mutual.url, CERTIFICATE, CA)
    assert (error.reason, mutual.requests) == ("secret_invalid", [])
    assert f"key 'tls.crt' of Secret 'client': {expected_message}" in error.message


def test_client_key_that_does_not_match_its_certificate_is_refused(
    bed: SourceAccessHarness, mutual: ScriptedServer, clients: TestCa
) -> None:
    first_certificate, other = clients.issue("one"), clients.issue("other")
    bed.put("client", tls_crt=first_certificate.cert.read_bytes(), tls_key=other.key.read_bytes())
    error = bed.failure(mutual.url, CERTIFICATE, CA)
    assert error.reason == "secret_invalid"
    assert "the key is not that of the certificate" in error.message
    bed.put("client", tls_key=b"no key")
    assert bed.failure(mutual.url, CERTIFICATE, CA).reason == "secret_invalid"
    bed.put("client", tls_crt=b"no certificate")
    assert "no certificate in PEM" in bed.failure(mutual.url, CERTIFICATE, CA).message


def test_client_certificate_requires_https(bed: SourceAccessHarness, clients: TestCa) -> None:
    bed.put_certificate("client", clients.issue("agent"))
    assert "https://" in bed.failure("http://127.0.0.1:1", CERTIFICATE).message
