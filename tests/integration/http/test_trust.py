"""Private CAs in addition to public ones, for requests of agents and for the hub's health checks."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dsf import http
from dsf.api.types import ConfigSyncMode
from dsf.errors import HttpError, SettingsError
from dsf.http import addresses, deadline, transport, trust
from dsf.http.deadline import assign_exchange_owner
from dsf.hub import health
from tests.support.httpserver import ScriptedServer, answer
from tests.support.tlsca import TestCa
from tests.support.wait import PATIENCE, wait_for


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> TestCa:
    return TestCa(tmp_path_factory.mktemp("private-ca"))


@pytest.fixture(scope="module")
def server(ca: TestCa) -> Iterator[int]:
    """The port of a server with a certificate of the private CA, for localhost only."""
    certificate = ca.issue("localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.cert, certificate.key)
    with ScriptedServer(answer("ok"), tls=context) as running:
        yield running.port


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    trusted_folder = tmp_path / "trusted"
    trusted_folder.mkdir()
    yield trusted_folder
    trust.use_folder(None)
    transport.close()


def by_agent(url: str) -> bytes:
    try:
        return http.get(url, deadline=time.monotonic() + 60, max_bytes=100)
    finally:
        # A kept connection needs no certificate again.
        transport.close()


def by_hub(url: str) -> bytes:
    return http.probe(url, deadline=time.monotonic() + 60, max_bytes=1000).body


def in_time(ask: Callable[[str], bytes], url: str, *, is_refused: bool = False) -> None:
    """Wait until the server is trusted, or no longer trusted if `is_refused`.

    A process sees a changed file within a second.
    """

    def has_expected_trust() -> bool:
        try:
            return ask(url) == b"ok" and not is_refused
        except HttpError as error:
            return is_refused and "TLS failed" in str(error)

    wait_for(has_expected_trust, message="what is trusted")


@pytest.mark.parametrize("ask", [by_agent, by_hub])
def test_private_ca_is_trusted_while_its_file_is_in_the_folder(
    ca: TestCa, server: int, folder: Path, ask: Callable[[str], bytes]
) -> None:
    url = f"https://localhost:{server}/healthz"
    with pytest.raises(HttpError, match="TLS failed"):
        ask(url)
    trust.use_folder(folder)
    with pytest.raises(HttpError, match="TLS failed"):
        ask(url)
    # As Kubernetes mounts it: a link to a file in a hidden folder. No restart is needed.
    (folder / "..data").mkdir()
    (folder / "..data" / "ca.crt").write_text(ca.cert.read_text())
    (folder / "ca.crt").symlink_to("..data/ca.crt")
    in_time(ask, url)
    # A name that is not in the certificate is refused all the same.
    with pytest.raises(HttpError, match="TLS failed"):
        ask(f"https://127.0.0.1:{server}/healthz")
    # An invalid file does not affect the others.
    before = trust.get_ssl_context()
    (folder / "broken.crt").write_text("not PEM")
    wait_for(lambda: trust.get_ssl_context() is not before, message="another context")
    assert ask(url) == b"ok"
    (folder / "ca.crt").unlink()
    in_time(ask, url, is_refused=True)


def test_health_check_error_names_the_trusted_ca(ca: TestCa, server: int, folder: Path) -> None:
    target = health.HealthTarget(f"https://localhost:{server}/config", ConfigSyncMode.None_)
    failure = health.check(target, timeout=300).health_failure
    assert failure is not None
    assert "TLS failed" in failure.message
    assert failure.message.endswith("it trusts the CAs of trustedCA (docs/sources.md#what-the-hub-asks)")
    (folder / "ca.crt").write_text(ca.cert.read_text())
    trust.use_folder(folder)
    assert health.check(target, timeout=300).health_failure is None


@pytest.mark.parametrize(
    ("variable", "form"),
    [
        ("SSL_CERT_FILE", "{folder}/private.crt"),
        ("SSL_CERT_DIR", "/nowhere:{folder}"),
        ("REQUESTS_CA_BUNDLE", "{folder}/private.crt"),
        ("CA_BUNDLE_FILE_PATH", "{folder}/private.crt"),
    ],
)
def test_private_ca_named_by_the_environment_is_trusted(
    ca: TestCa,
    server: int,
    folder: Path,
    variable: str,
    form: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = f"https://localhost:{server}/healthz"
    monkeypatch.setenv(variable, form.format(folder=folder))
    with pytest.raises(HttpError, match="TLS failed"):
        by_agent(url)
    # Any name will do, unlike for OpenSSL.
    (folder / "private.crt").write_text(ca.cert.read_text())
    in_time(by_agent, url)
    # The public ones stay.
    assert len(trust.get_ssl_context().get_ca_certs()) > 100
    monkeypatch.delenv(variable)
    with pytest.raises(HttpError, match="TLS failed"):
        by_agent(url)


def test_private_ca_in_the_system_store_is_trusted(
    ca: TestCa, server: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "README").write_text("not PEM")
    (folder / "private.crt").write_text(ca.cert.read_text())
    monkeypatch.setattr(trust, "_SYSTEM_STORES", (Path("/nowhere"), folder))
    assert by_agent(f"https://localhost:{server}/") == b"ok"


def test_unusable_ca_folder_is_refused_at_the_start(ca: TestCa, folder: Path, tmp_path: Path) -> None:
    (folder / "a.crt").write_text(ca.cert.read_text())
    trust.use_folder(folder)
    (folder / "b.crt").write_text("-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n")
    with pytest.raises(SettingsError, match=r"DSF_TRUSTED_CA_DIR: .*b\.crt has no certificate in PEM"):
        trust.use_folder(folder)
    with pytest.raises(SettingsError, match=r"DSF_TRUSTED_CA_DIR: cannot read .*nowhere"):
        trust.use_folder(tmp_path / "nowhere")


@contextlib.contextmanager
def listening(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """The URL of a server that does this with its only connection."""

    def run() -> None:
        with contextlib.suppress(OSError), listener.accept()[0] as connection:
            serve(connection)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield f"https://localhost:{listener.getsockname()[1]}/"
        # Clients that never got a connection stop waiting.
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_tls_handshake_may_exceed_the_connect_timeout(
    ca: TestCa, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(addresses, "CONNECT_TIMEOUT", 0.5)
    (folder / "ca.crt").write_text(ca.cert.read_text())
    trust.use_folder(folder)
    certificate = ca.issue("localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.cert, certificate.key)

    def serve(connection: socket.socket) -> None:
        # The kernel accepts for a process that does something else.
        time.sleep(1.5)
        with context.wrap_socket(connection, server_side=True) as tls:
            tls.recv(65536)
            tls.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    with listening(serve) as url:
        assert by_agent(url) == b"ok"


def test_endless_tls_handshake_times_out_at_the_deadline() -> None:
    def serve(connection: socket.socket) -> None:
        connection.sendall(b"\x16\x03\x03\x3f\xff")
        while True:
            connection.sendall(b"\0")
            time.sleep(0.02)

    with listening(serve) as url:
        started = time.monotonic()
        with pytest.raises(HttpError) as caught:
            http.get(url, deadline=started + 1, max_bytes=100)
        assert time.monotonic() - started < PATIENCE
    assert caught.value.reason == "timeout"


def _drip(head: bytes, drop: bytes) -> Callable[[socket.socket], None]:
    def serve(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(head)
        while True:
            connection.sendall(drop)
            time.sleep(0.02)

    return serve


@pytest.mark.parametrize(
    ("serve", "body"),
    [
        (_drip(b"HTTP/1.1 200 OK\r\nX: ", b"y"), b"{}"),
        (_drip(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", b"y"), b"{}"),
        (_drip(b"HTTP/1.0 200 OK\r\n\r\n", b"y"), b"{}"),
        (_drip(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\ny\r\n"), b"{}"),
        # More than the buffers of a connection hold while nobody reads.
        (lambda _: None, bytes(20_000_000)),
    ],
    ids=["headers", "body", "body without length", "chunks", "unread"],
)
def test_tls_exchange_meets_the_deadline(
    ca: TestCa, folder: Path, serve: Callable[[socket.socket], None], body: bytes
) -> None:
    (folder / "ca.crt").write_text(ca.cert.read_text())
    trust.use_folder(folder)
    certificate = ca.issue("localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.cert, certificate.key)
    greeted, over = threading.Event(), threading.Event()

    def over_tls(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as tls:
            greeted.set()
            serve(tls)
            over.wait()

    # More where the time was over before the handshake was: machines are busy.
    for seconds in (2, 10, 60):
        over.clear()
        with listening(over_tls) as url:
            started = time.monotonic()
            with pytest.raises(HttpError) as caught:
                http.post(url, body, deadline=started + seconds, max_bytes=10_000_000)
            assert time.monotonic() - started < seconds + PATIENCE
            over.set()
        if greeted.is_set():
            break
    assert caught.value.reason == "timeout"
    assert greeted.is_set()


@dataclass
class _Owner:
    deadline: float


def test_tls_handshake_is_cut_with_its_owner() -> None:
    owner = _Owner(time.monotonic() + 600)
    accepted = threading.Event()

    def serve(connection: socket.socket) -> None:
        # Its greeting has arrived: the handshake continues.
        connection.recv(65536)
        accepted.set()
        while connection.recv(65536):
            pass

    def cut() -> None:
        accepted.wait(PATIENCE)
        owner.deadline = time.monotonic()
        deadline.end_exchanges(owner)

    with listening(serve) as url, assign_exchange_owner(owner):
        thread = threading.Thread(target=cut)
        thread.start()
        started = time.monotonic()
        with pytest.raises(HttpError) as caught:
            http.get(url, deadline=started + 600, max_bytes=100)
        assert time.monotonic() - started < PATIENCE
        thread.join()
    assert caught.value.reason == "timeout"


def test_new_connection_does_not_reload_the_ca(
    ca: TestCa, server: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "ca.crt").write_text(ca.cert.read_text())
    trust.use_folder(folder)
    url = f"https://localhost:{server}/"
    assert by_agent(url) == b"ok"
    read: list[object] = []
    load = ssl.SSLContext.load_verify_locations

    def noted(*arguments: Any, **options: Any) -> None:
        read.append(options)
        load(*arguments, **options)

    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", noted)
    assert by_agent(url) == b"ok"
    assert not read
