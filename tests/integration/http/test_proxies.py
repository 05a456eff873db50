"""Requests through a proxy of the environment, and those that never use one."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from dsf import http
from dsf.errors import HttpError
from dsf.http import access, transport
from dsf.http.access import DIRECT, PLAIN, Access, make_bearer_access
from tests.support.httpserver import ScriptedServer, answer
from tests.support.tlsca import TestCa
from tests.support.wait import PATIENCE


class Proxy:
    """A forward proxy for which every name is this machine. `asked` are request lines, `authorized` the headers."""

    def __init__(self, refuse: int = 0) -> None:
        self.asked: list[str] = []
        self.authorized: list[tuple[str | None, str | None]] = []
        outer = self

        class _Handler(BaseHTTPRequestHandler):
            def _note(self) -> bool:
                outer.asked.append(f"{self.command} {self.path}")
                outer.authorized.append((self.headers["Proxy-Authorization"], self.headers["Authorization"]))
                if refuse:
                    self.send_error(refuse)
                return not refuse

            def do_GET(self) -> None:
                if not self._note():
                    return
                parts = urlsplit(self.path)
                onward = HTTPConnection("127.0.0.1", parts.port or 80, timeout=PATIENCE)
                onward.request("GET", parts.path)
                with onward.getresponse() as response:
                    body = response.read()
                self.send_response(response.status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
                onward.close()

            def do_CONNECT(self) -> None:
                if not self._note():
                    return
                with socket.create_connection(("127.0.0.1", int(self.path.rpartition(":")[2]))) as onward:
                    self.send_response(200)
                    self.end_headers()
                    back = threading.Thread(target=_copy, args=(onward, self.connection), daemon=True)
                    back.start()
                    _copy(self.connection, onward)
                    back.join()
                self.close_connection = True

            def log_message(self, *_: object) -> None:
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> Proxy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        transport.close()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while piece := source.recv(65536):
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(answer("hello")) as running:
        yield running


def by_agent(url: str, access: Access = PLAIN) -> bytes:
    return http.get(url, deadline=time.monotonic() + 60, max_bytes=1000, access=access)


def by_hub(url: str) -> bytes:
    return http.probe(url, deadline=time.monotonic() + 60, max_bytes=1000).body


@contextmanager
def over_tls(server: ScriptedServer, ca: TestCa, *names: str) -> Iterator[None]:
    certificate = ca.issue(*names)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.cert, certificate.key)
    server._server.socket = context.wrap_socket(server._server.socket, server_side=True)
    yield


@pytest.mark.parametrize("ask", [by_agent, by_hub])
@pytest.mark.parametrize("variable", ["http_proxy", "HTTP_PROXY"])
def test_http_uses_the_proxy(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, ask: Callable[[str], bytes], variable: str
) -> None:
    with Proxy() as proxy:
        monkeypatch.setenv(variable, f"http://somebody:opensesame@{proxy.address}")
        assert ask(f"http://scorer.test:{server.port}/config") == b"hello"
    assert proxy.asked == [f"GET http://scorer.test:{server.port}/config"]
    assert proxy.authorized == [("Basic c29tZWJvZHk6b3BlbnNlc2FtZQ==", None)]


@pytest.mark.parametrize("ask", [by_agent, by_hub])
def test_https_uses_a_tunnel_that_hides_the_token(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ask: Callable[..., bytes]
) -> None:
    ca = TestCa(tmp_path / "ca")
    monkeypatch.setenv("SSL_CERT_FILE", str(ca.cert))
    server = ScriptedServer(answer("hello"))
    with over_tls(server, ca, "scorer.test"), server, Proxy() as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://somebody:opensesame@{proxy.address}")
        options = {"access": make_bearer_access("t0ken")} if ask is by_agent else {}
        assert ask(f"https://scorer.test:{server.port}/config", **options) == b"hello"
        # The name that the certificate must have is still that of the server.
        with pytest.raises(HttpError, match=r"https://other\.test:.* \(through the proxy 127.*\): TLS failed"):
            ask(f"https://other.test:{server.port}/config")
        transport.close()
    assert proxy.asked[0] == f"CONNECT scorer.test:{server.port}"
    assert proxy.authorized[0] == ("Basic c29tZWJvZHk6b3BlbnNlc2FtZQ==", None)
    assert server.requests[0].headers.get("Authorization") == ("Bearer t0ken" if options else None)
    assert "Proxy-Authorization" not in server.requests[0].headers


def test_requests_to_local_names_and_aliases_bypass_the_proxy(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [(2, 1, 6, "", ("127.0.0.1", server.port))]
    with Proxy() as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.address)
        monkeypatch.setenv("NO_PROXY", "scorer.test")
        monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: rows)
        for host in ("127.0.0.1", "localhost", "scorer", "scorer.team.svc", "x.svc.cluster.local", "a.scorer.test"):
            assert by_agent(f"http://{host}:{server.port}/") == b"hello"
        # The proxy could read the token.
        assert by_agent(f"http://other.test:{server.port}/", access=make_bearer_access("t0ken")) == b"hello"
        access.set_aliases({f"alias.test:{server.port}": f"127.0.0.1:{server.port}"})
        try:
            assert by_agent(f"http://alias.test:{server.port}/") == b"hello"
        finally:
            access.set_aliases({})
        assert proxy.asked == []


@pytest.mark.parametrize("host", ["169.254.169.254", "[fd00:ec2::254]", "metadata.google.internal"])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_metadata_addresses_are_refused_before_the_proxy_is_used(
    monkeypatch: pytest.MonkeyPatch, host: str, scheme: str
) -> None:
    with Proxy() as proxy:
        monkeypatch.setenv(f"{scheme}_proxy", f"http://{proxy.address}")
        for ask in (by_agent, by_hub):
            with pytest.raises(HttpError) as caught:
                ask(f"{scheme}://{host}/latest/meta-data")
            assert caught.value.reason == "address_refused"
        assert proxy.asked == []


def test_name_of_a_metadata_address_is_refused_before_the_proxy_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(2, 1, 6, "", ("10.0.0.1", 80)), (2, 1, 6, "", ("169.254.169.254", 80))]
    with Proxy() as proxy:
        monkeypatch.setenv("http_proxy", f"http://{proxy.address}")
        monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: rows)
        with pytest.raises(HttpError, match=r"names\.test resolves to 169\.254\.169\.254"):
            by_agent("http://names.test/")
        assert proxy.asked == []


def test_refusing_or_unreachable_proxy_is_named_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with Proxy(refuse=403) as proxy:
        monkeypatch.setenv("https_proxy", f"http://somebody:opensesame@{proxy.address}")
        with pytest.raises(HttpError) as caught:
            by_agent("https://scorer.test/")
    assert (
        str(caught.value)
        == f"GET https://scorer.test/ (through the proxy {proxy.address}): the proxy answers 403 Forbidden"
    )
    assert not caught.value.retryable
    with pytest.raises(HttpError, match=r"through the proxy .*: Connection refused"):
        by_agent("https://scorer.test/")
    for proxy_url in ("socks5://somebody:opensesame@proxy:1080", "https://proxy:443", "http://proxy:port"):
        monkeypatch.setenv("https_proxy", proxy_url)
        with pytest.raises(HttpError, match="https_proxy is not the URL of a proxy as http://<host>:<port>") as caught:
            by_agent("https://scorer.test/")
        assert "opensesame" not in str(caught.value)


@pytest.mark.parametrize("drop", [b"", b"X: y\r\n"], ids=["silent", "drips"])
def test_silent_proxy_times_out_at_the_deadline(monkeypatch: pytest.MonkeyPatch, drop: bytes) -> None:
    def serve() -> None:
        with suppress(OSError), silent.accept()[0] as connection:
            connection.sendall(b"HTTP/1.1 200 OK\r\n" if drop else b"")
            while not over.wait(0.02):
                connection.sendall(drop)

    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{silent.getsockname()[1]}")
        started = time.monotonic()
        with pytest.raises(HttpError) as caught:
            http.get("https://scorer.test/", deadline=started + 1, max_bytes=100)
        assert time.monotonic() - started < PATIENCE
        over.set()
        # A machine that is too slow to connect in time has sent no request.
        with suppress(OSError):
            silent.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert caught.value.reason == "timeout"


def test_proxy_of_a_server_overrides_the_environment(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(2, 1, 6, "", ("127.0.0.1", server.port))]
    url = f"http://scorer.test:{server.port}/config"
    with Proxy() as other, Proxy() as chosen_proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://{other.address}")
        assert by_agent(url, Access(proxy=f"http://{chosen_proxy.address}")) == b"hello"
        assert (len(chosen_proxy.asked), len(other.asked)) == (1, 0)
        assert by_agent(url) == b"hello"
        assert (len(chosen_proxy.asked), len(other.asked)) == (1, 1)
        monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: rows)
        assert by_agent(url, DIRECT) == b"hello"
        assert (len(chosen_proxy.asked), len(other.asked)) == (1, 1)
