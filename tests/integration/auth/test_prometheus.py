"""Prometheus with its own web configuration: a password, TLS of a private CA, and certificates of clients."""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.authenticatedquery import SourceAccessHarness
from tests.support.child import Child
from tests.support.programs import find
from tests.support.redisserver import free_port
from tests.support.tlsca import TestCa
from tests.support.wait import PATIENCE, wait_for

PASSWORD = "pa55-of-reader"
#: bcrypt of it, at its lowest cost.
_HASH = "$2b$04$abcdefghijklmnopqrstuuGlj0nf4TnB9bszPhl6wHbJERZNmAhAi"
CA = {"caRef": {"name": "private-ca"}}
METHODS = {
    "basic": {"username": {"value": "reader"}, "password": {"name": "reader", "key": "password"}},
    "clientCertificate": {"secretName": "client"},
}


@pytest.fixture(scope="module")
def prometheus(ca: TestCa, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a Prometheus that requires both."""
    folder, port = tmp_path_factory.mktemp("prometheus"), free_port()
    server_certificate, client = ca.issue("127.0.0.1"), ca.issue("probe")
    web, config = folder / "web.yml", folder / "prometheus.yml"
    web.write_text(
        f"""
        tls_server_config:
          cert_file: {server_certificate.cert}
          key_file: {server_certificate.key}
          client_auth_type: RequireAndVerifyClientCert
          client_ca_file: {ca.cert}
        basic_auth_users: {{reader: "{_HASH}"}}
        """
    )
    config.write_text("scrape_configs: []\n")
    command = [
        *(str(find("prometheus")), f"--config.file={config}", f"--web.config.file={web}"),
        *(f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}"),
    ]
    child = Child(command, folder / "log")
    url = f"https://127.0.0.1:{port}"
    context = ssl.create_default_context(cafile=str(ca.cert))
    context.load_cert_chain(client.cert, client.key)

    def is_up() -> bool:
        try:
            urllib.request.urlopen(f"{url}/-/ready", context=context, timeout=PATIENCE)
        except urllib.error.HTTPError as error:
            # A prompt for a password needs a terminal.
            with error:
                return error.code == 401
        except OSError:
            return False
        return True

    try:
        wait_for(is_up, 30, child.tail())
        yield url
    finally:
        child.kill()


@pytest.fixture
def filled(bed: SourceAccessHarness, ca: TestCa) -> SourceAccessHarness:
    """With all Secrets."""
    bed.put("reader", password=PASSWORD)
    bed.put("private-ca", ca_crt=Path(ca.cert).read_bytes())
    bed.put_certificate("client", ca.issue("agent"))
    return bed


def test_prometheus_accepts_password_and_certificate(filled: SourceAccessHarness, prometheus: str) -> None:
    # Prometheus scrapes nothing, so there are no series; a refusal would be an error.
    assert filled.fetch(prometheus, METHODS, CA) == 0


def test_wrong_password_is_reported_and_its_correction_is_used_at_once(
    filled: SourceAccessHarness, prometheus: str
) -> None:
    filled.put("reader", password="wr0ng-password")
    error = filled.failure(prometheus, METHODS, CA)
    assert error.reason == "unauthorized"
    assert "wr0ng-password" not in error.message
    filled.put("reader", password=PASSWORD)
    assert filled.fetch(prometheus, METHODS, CA) == 0


def test_prometheus_refuses_a_client_without_a_certificate(filled: SourceAccessHarness, prometheus: str) -> None:
    error = filled.failure(prometheus, {"basic": METHODS["basic"]}, CA)
    assert error.reason == "connection_failed"
