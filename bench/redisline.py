"""A connection to Redis that never blocks, for thousands of connections in one thread (`bench.player`)."""

from __future__ import annotations

import socket

#: Seconds to connect to a server on this machine.
_CONNECT = 5.0


class Refusal(bytes):
    """An error response of Redis."""


def command(*parts: bytes | str) -> bytes:
    """Return an encoded command."""
    texts = [part.encode() if isinstance(part, str) else part for part in parts]
    return b"*%d\r\n" % len(texts) + b"".join(b"$%d\r\n%b\r\n" % (len(text), text) for text in texts)


class Connection:
    """A connection. Methods raise OSError when it is broken."""

    def __init__(self, host: str, port: int, password: str) -> None:
        self.socket = socket.create_connection((host, port), _CONNECT)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self._got = b""
        self._is_let_in = not password
        if password:
            # The next command need not wait for the response.
            self.send(command("AUTH", password))

    def send(self, data: bytes) -> None:
        """Send data, which must fit into the system's buffers."""
        self.socket.sendall(data)

    def read_responses(self) -> list[object]:
        """Return the complete responses so far: integers, texts, None, and lists of them."""
        try:
            received = self.socket.recv(1 << 20)
        except BlockingIOError:
            return []
        if not received:
            raise ConnectionResetError("Redis has closed a connection")
        self._got += received
        responses: list[object] = []
        position = 0
        while (parsed := _parse_response(self._got, position)) is not None:
            position, value = parsed
            if isinstance(value, Refusal) and value.startswith(b"LOADING"):
                # Redis has just started, and loads its data.
                raise ConnectionResetError("Redis is starting")
            responses.append(value)
        self._got = self._got[position:]
        if responses and not self._is_let_in:
            if responses.pop(0) != b"OK":
                raise SystemExit("Redis refuses the password")
            self._is_let_in = True
        return responses


def _parse_response(data: bytes, position: int) -> tuple[int, object] | None:
    """Return the end of the response that begins here, and its value; None while it is incomplete."""
    end = data.find(b"\r\n", position)
    if end < 0:
        return None
    kind, text, position = data[position : position + 1], data[position + 1 : end], end + 2
    if kind in b"+-":
        return position, text if kind == b"+" else Refusal(text)
    number = int(text)
    if kind == b":":
        return position, number
    if number < 0:
        return position, None
    if kind == b"$":
        return (
            None if len(data) < position + number + 2 else (position + number + 2, data[position : position + number])
        )
    values = []
    for _ in range(number):
        parsed = _parse_response(data, position)
        if parsed is None:
            return None
        position, value = parsed
        values.append(value)
    return position, values
