"""Connections to servers that close them, do not answer, or stop in the middle of a response."""

from __future__ import annotations

import contextlib
import gc
import select
import socket
import ssl
import struct
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import redis
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider
from redis.retry import Retry

from dsf.redislink import broker
from dsf.redislink import connection as connection_module
from dsf.redislink.connection import (
    KEEPALIVE,
    MasterConnection,
    PlainConnection,
    SentinelConnection,
    TlsConnection,
)
from dsf.redislink.link import Link, Sentinels
from dsf.store import client as store_client
from dsf.store.client import connect
from tests.support.fixtures import SettingsFactory
from tests.support.forwarder import Forwarder
from tests.support.redisserver import RedisServer
from tests.support.tlsca import TestCa
from tests.support.wait import PATIENCE, wait_for


def test_connection_reset_before_tls_leaves_no_socket_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        class Reset(TlsConnection):
            def _wrap_socket_with_ssl(self, sock: socket.socket) -> ssl.SSLSocket:
                # A server that is killed resets waiting connections.
                accepted, _ = server.accept()
                accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                accepted.close()
                assert select.select([sock], [], [], 10)[0]
                return super()._wrap_socket_with_ssl(sock)

        connection = Reset(host="127.0.0.1", port=server.getsockname()[1], retry=Retry(NoBackoff(), 0))
        # Sockets that earlier tests left open would count for this test.
        gc.collect()
        with warnings.catch_warnings(record=True) as caught_warnings:
            warnings.simplefilter("always")
            with pytest.raises(redis.ConnectionError, match="cannot be reached"):
                connection.connect()
            gc.collect()
    assert [str(warning.message) for warning in caught_warnings] == []


def test_partially_received_response_is_awaited() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        connection = PlainConnection(
            host="127.0.0.1",
            port=server.getsockname()[1],
            protocol=2,
            socket_timeout=PATIENCE,
            retry=Retry(NoBackoff(), 0),
        )
        connection.connect()
        other, _ = server.accept()
        with other:
            other.sendall(b"+PO")
            assert connection.can_read(10)
            later = threading.Timer(0.2, other.sendall, [b"NG\r\n"])
            later.start()
            # Subscribers read this way.
            assert connection.read_response(timeout=0, push_request=True, disconnect_on_error=False) == b"PONG"
            later.join()
        connection.disconnect()


def test_non_redis_server_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        # A proxy that requires TLS sends this.
        def alert() -> None:
            other, _ = server.accept()
            with other:
                other.recv(100)
                other.sendall(b"\x15\x03\x01\x00\x02\x02\x28")

        thread = threading.Thread(target=alert)
        thread.start()
        connection = PlainConnection(
            host="127.0.0.1",
            port=server.getsockname()[1],
            protocol=3,
            socket_timeout=PATIENCE,
            retry=Retry(NoBackoff(), 0),
        )
        with pytest.raises(redis.ConnectionError, match="does it want TLS"):
            connection.connect()
        thread.join()


class _Interrupted(float):
    """A number whose conversion to text is interrupted by a signal handler that raises."""

    def __repr__(self) -> str:
        raise SystemExit


@pytest.mark.parametrize("kind", [PlainConnection, TlsConnection, SentinelConnection])
def test_signal_while_packing_a_command_does_not_crash_the_process(kind: type[PlainConnection]) -> None:
    connection = kind()
    # The packer of hiredis would crash with a segmentation fault.
    with pytest.raises(SystemExit):
        connection.pack_command("EXPIRE", "key", _Interrupted(1.5))
    assert connection.pack_command("SET", "key", b"\xff", 7, -1.5, "é") == [
        b"*6\r\n$3\r\nSET\r\n$3\r\nkey\r\n$1\r\n\xff\r\n$1\r\n7\r\n$4\r\n-1.5\r\n$2\r\n\xc3\xa9\r\n"
    ]


@pytest.mark.parametrize("tries", [1, 0])
def test_server_that_became_a_replica_is_disconnected(tries: int) -> None:
    """A new primary may be behind the same address."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        received_commands: list[int] = []

        def serve() -> None:
            for number, reply in enumerate([b"-READONLY You can't write against a read only replica.\r\n", b"+OK\r\n"]):
                other, _ = server.accept()
                with other:
                    other.recv(1000)
                    received_commands.append(number)
                    other.sendall(reply)

        threading.Thread(target=serve, daemon=True).start()
        pool = redis.ConnectionPool(
            connection_class=PlainConnection,
            host="127.0.0.1",
            port=server.getsockname()[1],
            protocol=2,
            socket_timeout=PATIENCE,
            retry=Retry(NoBackoff(), tries),
        )
        client = redis.Redis.from_pool(pool)
        if not tries:
            with pytest.raises(redis.ConnectionError, match="is a replica and takes no writes"):
                client.set("key", "value")
        assert client.set("key", "value")
        assert received_commands == [0, 1]
        client.close()


class _Named(CredentialProvider):
    """Returns `address` as the server that Sentinel names."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.address = address
        self.lookups = 0

    def get_credentials(self) -> tuple[()]:  # type: ignore[override]
        return ()

    def find_server(self) -> tuple[str, int]:
        self.lookups += 1
        return self.address


def test_retry_connects_to_the_server_named_by_sentinel() -> None:
    with RedisServer() as first, RedisServer() as second:
        provider = _Named(("127.0.0.1", first.port))
        connection = MasterConnection(credential_provider=provider, retry=Retry(NoBackoff(), 1))
        connection.connect()
        # Each connection looks up the server once.
        assert provider.lookups == 1

        def run_id() -> str:
            connection.send_command("INFO", "server")
            return connection.read_response().decode().partition("run_id:")[2].partition("\r\n")[0]

        before = run_id()
        first.kill()
        provider.address = ("127.0.0.1", second.port)
        after = connection.retry.call_with_retry(run_id, lambda _: connection.disconnect())
        assert (before != after, provider.lookups) == (True, 2)
        assert after == second.client().info("server")["run_id"]
        connection.disconnect()


def test_idle_connections_to_a_server_that_is_lost_are_closed(
    settings_factory: SettingsFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RedisServer() as first, RedisServer() as second:
        primaries = [("127.0.0.1", first.port)]
        monkeypatch.setattr(Sentinels, "discover_master", lambda *_: primaries[-1])
        link = Link(settings_factory(redis_url="sentinel://a:1/0", redis_sentinel_master="hub"))
        with (
            contextlib.closing(link.make_client()) as first_client,
            contextlib.closing(link.make_client()) as second_client,
        ):
            assert first_client.ping()
            assert second_client.info("server")["tcp_port"] == first.port
            primaries.append(("127.0.0.1", second.port))
            first_client.connection_pool.disconnect()
            assert first_client.ping()
            # The pool of the second client replaces its connection, which still works.
            assert second_client.info("server")["tcp_port"] == second.port


def test_connection_in_use_during_a_failover_is_not_reused(
    settings_factory: SettingsFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RedisServer() as first, RedisServer() as second:
        primaries = [("127.0.0.1", first.port)]
        monkeypatch.setattr(Sentinels, "discover_master", lambda *_: primaries[-1])
        link = Link(settings_factory(redis_url="sentinel://a:1/0", redis_sentinel_master="hub"))
        with contextlib.closing(link.make_client()) as client:
            old_connection = client.connection_pool.get_connection()
            primaries.append(("127.0.0.1", second.port))
            assert client.ping()
            client.connection_pool.release(old_connection)
            # The connection that was released last would be used first.
            assert client.info("server")["tcp_port"] == second.port


def test_no_connection_to_a_sentinel_stays_open(settings_factory: SettingsFactory) -> None:
    with RedisServer() as server:
        server_client = server.client()
        before = server_client.info("clients")["connected_clients"]
        link = Link(settings_factory(redis_url=f"sentinel://127.0.0.1:{server.port}/0", redis_sentinel_master="hub"))
        with contextlib.closing(link.make_client(retry=Retry(NoBackoff(), 0))) as client:
            # The server answers although it is no Sentinel.
            with pytest.raises(redis.ConnectionError, match="unknown command"):
                client.ping()
            wait_for(lambda: server_client.info("clients")["connected_clients"] == before, 10, "it to be closed")


def test_threads_that_ask_at_once_lose_no_sentinel() -> None:
    sentinels = Sentinels([], {}, False)
    names, together = ["a", "b", "c"], threading.Barrier(2)

    def answer(name: str) -> dict[str, Any]:
        if name == "a":
            raise redis.ConnectionError(name)
        together.wait(PATIENCE)
        state = {"is_master": True, "is_sdown": False, "is_odown": False, "num-other-sentinels": 2}
        return {"m": {"ip": "h", "port": 1} | state}

    sentinel_clients = [mock.MagicMock(**{"sentinel_masters.side_effect": partial(answer, name)}) for name in names]
    sentinels.sentinels = list(sentinel_clients)
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(lambda _: sentinels.discover_master("m"), range(2))) == [("h", 1)] * 2
    assert sentinels.sentinels == [sentinel_clients[1], sentinel_clients[0], sentinel_clients[2]]


@pytest.mark.parametrize("issuer", ["ours", "system"])
def test_server_is_verified_only_by_the_configured_ca(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, issuer: str
) -> None:
    authorities = {name: TestCa(tmp_path / name) for name in ("ours", "system")}
    monkeypatch.setenv("SSL_CERT_FILE", str(authorities["system"].cert))
    certificate = authorities[issuer].issue("127.0.0.1")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate.cert, certificate.key)

    def shake_hands() -> None:
        with contextlib.suppress(OSError), server.accept()[0] as accepted:
            context.wrap_socket(accepted, server_side=True).close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=shake_hands)
        thread.start()
        where = server.getsockname()
        connection = TlsConnection(host=where[0], port=where[1], ssl_ca_certs=str(authorities["ours"].cert))
        with contextlib.ExitStack() as ends, socket.create_connection(where) as plain:
            if issuer == "system":
                ends.enter_context(pytest.raises(ssl.SSLCertVerificationError))
            connection._wrap_socket_with_ssl(plain).close()
        thread.join(30)


def test_connections_use_tcp_keepalive_with_any_options_of_kombu() -> None:
    options: dict[str, Any] = {"host": "h", "port": 1, "socket_keepalive": True}
    for connection_options in (options, {**options, "socket_keepalive_options": None}):
        assert PlainConnection(**connection_options).socket_keepalive_options == KEEPALIVE
    # The strictest load balancers drop connections after 15 s.
    assert KEEPALIVE[socket.TCP_KEEPIDLE] < 15
    assert KEEPALIVE[socket.TCP_USER_TIMEOUT] <= 30_000


def test_options_of_tcp_are_in_force(redis_url: str, settings_factory: SettingsFactory) -> None:
    with contextlib.closing(connect(settings_factory(redis_url=redis_url))) as client:
        client.ping()
        connection: Any = client.connection_pool.get_connection()
        for option, value in KEEPALIVE.items():
            assert connection._sock.getsockopt(socket.IPPROTO_TCP, option) == value
        client.connection_pool.release(connection)


class Forgetful(Forwarder):
    """A load balancer that silently drops open connections: data sent on them is lost."""

    def forget(self) -> None:
        """Drop the open connections; new ones pass."""
        self.forgotten |= set(self.passing)

    def pass_on(self, source: socket.socket, sink: socket.socket, data: bytes) -> None:
        """Forward data unless the connection is dropped."""
        if source not in self.forgotten:
            sink.sendall(data)


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check every connection as if it had been idle for long."""
    monkeypatch.setattr(store_client, "HEALTH_CHECK_INTERVAL", 0.01)
    monkeypatch.setattr(connection_module, "HEALTH_TIMEOUT", 0.2)


@pytest.mark.usefixtures("idle")
def test_connection_that_a_balancer_has_forgotten_is_replaced_at_once(
    redis_server: RedisServer, settings_factory: SettingsFactory
) -> None:
    with (
        Forgetful(redis_server.port) as balancer,
        contextlib.closing(connect(settings_factory(redis_url=balancer.url), retries=0)) as client,
    ):
        client.set("dsf:test", "1")
        balancer.forget()
        time.sleep(0.02)
        assert client.get("dsf:test") == "1"
        assert client.ping()


@pytest.mark.usefixtures("idle")
def test_subscription_that_a_balancer_has_forgotten_is_an_error(
    redis_server: RedisServer, settings_factory: SettingsFactory
) -> None:
    with (
        Forgetful(redis_server.port) as balancer,
        contextlib.closing(connect(settings_factory(redis_url=balancer.url), retries=0)) as client,
    ):
        subscription: Any = client.pubsub()  # type: ignore[no-untyped-call]
        subscription.subscribe("dsf:test")
        assert subscription.get_message(timeout=10)["type"] == "subscribe"
        broker.check_subscription(subscription)
        balancer.forget()

        def listened() -> bool:
            try:
                subscription.get_message(timeout=0.05)
                broker.check_subscription(subscription)
            except redis.ConnectionError:
                return True
            return False

        wait_for(listened, 10, "the dead subscription")
        subscription.close()
