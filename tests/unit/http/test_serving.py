"""The exporter's listening socket."""

from __future__ import annotations

import socket

import pytest

from dsf.errors import SettingsError
from dsf.http.serving import listen


def test_answers_are_not_held_back() -> None:
    # asyncio sets TCP_NODELAY on connections whose socket names its protocol, and on no others.
    with listen("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP


def test_a_port_in_use_is_said() -> None:
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(SettingsError, match=f"cannot listen on 127.0.0.1:{port}"):
            listen("127.0.0.1", port)
