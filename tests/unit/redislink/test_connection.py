"""A server that hangs up before TLS has begun."""

from __future__ import annotations

import gc
import select
import socket
import ssl
import struct
import warnings

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from dsf.redislink.connection import TlsConnection


def test_a_connection_that_is_reset_before_tls_leaves_no_socket_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        class Reset(TlsConnection):
            def _wrap_socket_with_ssl(self, sock: socket.socket) -> ssl.SSLSocket:
                # As a server does that is killed while connections wait for it.
                accepted, _ = server.accept()
                accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                accepted.close()
                assert select.select([sock], [], [], 10)[0]
                return super()._wrap_socket_with_ssl(sock)

        connection = Reset(host="127.0.0.1", port=server.getsockname()[1], retry=Retry(NoBackoff(), 0))
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            with pytest.raises(redis.ConnectionError, match="cannot be reached"):
                connection.connect()
            gc.collect()
    assert [str(one.message) for one in seen] == []
