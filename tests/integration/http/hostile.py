"""Responses of malicious or broken servers, each with the expected message."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import select
import socket
import ssl
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from tests.support.tlsca import Certificate

#: Most bytes of a response in these tests.
MAX_BYTES = 2_000_000
#: Seconds between two bytes of a server that drips.
_DROP = 0.02

Bytes = Callable[[], Iterator[bytes]]


@dataclass(frozen=True)
class Hostile:
    """A response: bytes that the server sends before it closes the connection.

    Endless ones end when the client disconnects.
    """

    name: str
    payload: Bytes
    reason: str
    retryable: bool = False
    text: str = ""


OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
GZIP = OK + b"Content-Encoding: gzip\r\n"
_BLOCK = bytes(65536)


def _once(data: bytes) -> Bytes:
    return lambda: iter([data])


def _drip(head: bytes, drops: bytes = b"x") -> Bytes:
    def send() -> Iterator[bytes]:
        yield head
        for drop in itertools.cycle(drops):
            time.sleep(_DROP)
            yield bytes([drop])

    return send


def _for_ever(head: bytes, block: bytes) -> Bytes:
    return lambda: itertools.chain([head], itertools.repeat(block))


def _silent(head: bytes) -> Bytes:
    def send() -> Iterator[bytes]:
        yield head
        while True:
            time.sleep(_DROP)
            yield b""

    return send


def _body(head: bytes, data: bytes) -> Bytes:
    return _once(head + b"Content-Length: %d\r\n\r\n" % len(data) + data)


def _chunks(*sizes: bytes) -> Bytes:
    return _once(CHUNKED + b"".join(size + b"\r\nabc\r\n" for size in sizes))


_ZEROS = gzip.compress(bytes(1 << 24), 9)
_TINY = gzip.compress(b"", 9, mtime=0)
_GOOD = gzip.compress(b'{"results": []}')

#: (timeout, True) and so on, to keep the table narrow.
_LATE = ("timeout", True)
_LARGE = ("too_large", False, str(MAX_BYTES))
_NOT_HTTP = ("bad_answer", False, "not as HTTP wants it")
_SHORT = ("truncated", True, "ends too early")
_GONE = ("connection_failed", True, "the server closed the connection")

TABLE = [
    Hostile("silent", _silent(b""), *_LATE),
    Hostile("status line drips", _drip(b""), *_LATE),
    Hostile("header drips", _drip(OK + b"X: "), *_LATE),
    Hostile("headers drip", _drip(OK, b"X: y\r\n"), *_LATE),
    Hostile("headers never end", _silent(OK), *_LATE),
    Hostile("body drips", _drip(OK + b"Content-Length: 1000000\r\n\r\n"), *_LATE),
    Hostile("body without length drips", _drip(OK + b"\r\n"), *_LATE),
    Hostile("body never comes", _silent(OK + b"Content-Length: 10\r\n\r\n"), *_LATE),
    Hostile("chunk line drips", _drip(CHUNKED, b"0"), *_LATE),
    Hostile("chunk extension drips", _drip(CHUNKED + b"5;"), *_LATE),
    Hostile("chunk drips", _drip(CHUNKED + b"fffff\r\n"), *_LATE),
    Hostile("chunks drip", _drip(CHUNKED, b"1\r\nx\r\n"), *_LATE),
    Hostile("trailer drips", _drip(CHUNKED + b"0\r\nX: "), *_LATE),
    Hostile("gzip drips", _drip(GZIP + b"\r\n" + _GOOD[:10], b"\x00\x00\x00\xff\xff"), *_LATE),
    Hostile("interim responses drip", _drip(b"", b"HTTP/1.1 100 Continue\r\n\r\n"), *_LATE),
    Hostile("chunk of -5", _chunks(b"-5"), *_NOT_HTTP),
    Hostile("chunk of -1, then everything", _for_ever(CHUNKED + b"-1\r\n", _BLOCK), *_LARGE),
    Hostile("chunk of +5", _chunks(b"+5"), *_SHORT),
    Hostile("chunk of 0x3", _chunks(b"0x3"), *_SHORT),
    Hostile("chunk of 1_0", _chunks(b"1_0"), *_SHORT),
    Hostile("chunk of nothing", _chunks(b""), *_NOT_HTTP),
    Hostile("chunk of letters", _chunks(b"xyz"), *_NOT_HTTP),
    Hostile("chunk of arabic digits", _chunks("\u0663".encode()), *_NOT_HTTP),
    Hostile("chunk of 17 digits", _chunks(b"0" * 16 + b"3"), *_SHORT),
    Hostile("chunk of 2**63", _chunks(b"8" + b"0" * 15), *_SHORT),
    Hostile("chunk of 4 GB, sent", _for_ever(CHUNKED + b"ffffffff\r\n", _BLOCK), *_LARGE),
    Hostile("chunks for ever", _for_ever(CHUNKED, b"10000\r\n" + _BLOCK + b"\r\n"), *_LARGE),
    Hostile("chunks of one byte for ever", _for_ever(CHUNKED, b"1\r\nx\r\n" * 4096), *_LARGE),
    Hostile("chunk longer than said", _once(CHUNKED + b"3\r\nabcdef\r\n0\r\n\r\n"), *_SHORT),
    Hostile("chunk line too long", _once(CHUNKED + b"3;" + b"x" * 70_000 + b"\r\nabc\r\n0\r\n\r\n"), *_NOT_HTTP),
    Hostile("chunk shorter than said", _once(CHUNKED + b"20\r\nabc"), *_SHORT),
    Hostile("no last chunk", _chunks(b"3"), *_SHORT),
    Hostile("trailers for ever", _for_ever(CHUNKED + b"0\r\n", b"X: y\r\n" * 1000), *_LARGE),
    Hostile("trailer too long", _for_ever(CHUNKED + b"0\r\nX: ", _BLOCK), *_NOT_HTTP),
    Hostile("Transfer-Encoding gzip", _once(OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"), *_NOT_HTTP),
    Hostile("gzip bomb", _body(GZIP, _ZEROS), *_LARGE),
    Hostile("gzip bomb, chunked", _once(GZIP + b"Transfer-Encoding: chunked\r\n\r\n"
                                        + b"%x\r\n" % len(_ZEROS) + _ZEROS + b"\r\n0\r\n\r\n"), *_LARGE),
    Hostile("gzip members for ever", _for_ever(GZIP + b"\r\n", _TINY * 3000), "bad_answer", text="members"),
    Hostile("gzip of 40,000 members", _body(GZIP, _TINY * 40_000), "bad_answer", text="members"),
    Hostile("gzip bomb of members", _body(GZIP, _ZEROS * 8), *_LARGE),
    Hostile("gzip blocks without content", _for_ever(GZIP + b"\r\n" + _GOOD[:10], b"\x00\x00\x00\xff\xff" * 9999),
            *_LARGE),
    Hostile("gzip cut off", _body(GZIP, _GOOD[:-9]), *_SHORT),
    Hostile("gzip that is none", _body(GZIP, b"not gzip at all"), "bad_answer", text="decompressed"),
    Hostile("gzip with a wrong checksum", _body(GZIP, _GOOD[:-8] + bytes(8)), "bad_answer", text="decompressed"),
    Hostile("deflate bomb", _body(OK + b"Content-Encoding: deflate\r\n", zlib.compress(bytes(1 << 24))), *_LARGE),
    Hostile("deflate cut off", _body(OK + b"Content-Encoding: deflate\r\n", zlib.compress(b"{}" * 99)[:9]), *_SHORT),
    Hostile("br", _body(OK + b"Content-Encoding: br\r\n", b"\x0b\x02\x80{}\x03"), "bad_answer", text="send gzip"),
    Hostile("gzip twice", _body(OK + b"Content-Encoding: gzip, gzip\r\n", gzip.compress(_GOOD)), "bad_answer",
            text="send gzip"),
    Hostile("unknown encoding", _body(OK + b"Content-Encoding: \x00\x1b\r\n", b"{}"), "bad_answer", text="send gzip"),
    Hostile("Content-Length too small for what is said", _once(OK + b"Content-Length: 99\r\n\r\n{}"), *_SHORT),
    Hostile("Content-Length of 1 GB", _for_ever(OK + b"Content-Length: 1073741824\r\n\r\n", _BLOCK), *_LARGE),
    Hostile("Content-Length negative", _once(OK + b"Content-Length: -1\r\n\r\n{}"), *_NOT_HTTP),
    Hostile("Content-Length of letters", _once(OK + b"Content-Length: two\r\n\r\n{}"), *_NOT_HTTP),
    Hostile("Content-Length of 20 digits", _once(OK + b"Content-Length: " + b"9" * 20 + b"\r\n\r\n{}"), *_LARGE),
    Hostile("Content-Length of 5,000 digits", _once(OK + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n"), *_LARGE),
    Hostile("two Content-Lengths", _once(OK + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}x"), *_NOT_HTTP),
    Hostile("a list of Content-Lengths", _once(OK + b"Content-Length: 2, 3\r\n\r\n{}x"), *_NOT_HTTP),
    Hostile("closed before the end of the headers", _once(OK + b"Content-Type: application/json\r\n"), *_SHORT),
    Hostile("closed in a header", _once(OK + b"Content-Le"), *_SHORT),
    Hostile("closed after the status line", _once(OK), *_SHORT),
    Hostile("body for ever", _for_ever(OK + b"\r\n", _BLOCK), *_LARGE),
    Hostile("interim responses for ever", _for_ever(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000), "bad_answer",
            text="interim responses"),
    Hostile("header line too long", _for_ever(OK + b"X: ", _BLOCK), *_NOT_HTTP),
    Hostile("status line too long", _for_ever(b"HTTP/1.1 200 ", b"x" * 65536), *_NOT_HTTP),
    Hostile("headers for ever", _for_ever(OK, b"X: y\r\n" * 1000), *_NOT_HTTP),
    Hostile("header without a colon", _once(OK + b"Authorization Bearer\r\nContent-Length: 2\r\n\r\n{}"), *_NOT_HTTP),
    Hostile("header that goes on from nothing", _once(OK + b" X: y\r\nContent-Length: 2\r\n\r\n{}"), *_NOT_HTTP),
    Hostile("not HTTP", _once(b"SSH-2.0-OpenSSH_9.6\r\n"), *_NOT_HTTP),
    Hostile("HTTP/0.9", _once(b"<html>hello</html>"), *_NOT_HTTP),
    Hostile("HTTP/9", _once(b"HTTP/9.9 200 OK\r\n\r\n"), *_NOT_HTTP),
    Hostile("status of letters", _once(b"HTTP/1.1 OK 200\r\n\r\n"), *_NOT_HTTP),
    Hostile("status of 5,000 digits", _once(b"HTTP/1.1 " + b"2" * 5000 + b"\r\n\r\n"), *_NOT_HTTP),
    Hostile("NUL bytes", _once(bytes(4096)), *_NOT_HTTP),
    Hostile("TLS alert", _once(b"\x15\x03\x01\x00\x02\x02\x46"), *_NOT_HTTP),
    Hostile("closed at once", _once(b""), *_GONE),
    Hostile("redirect", _once(b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\n\r\n"), "redirect"),
    Hostile("redirect with a body for ever", _for_ever(b"HTTP/1.1 301 Moved\r\n\r\n", _BLOCK), "redirect"),
]  # fmt: skip


class RawServer:
    """Responds on every connection with the same bytes, once it has received a whole request head."""

    def __init__(self, payload: Bytes) -> None:
        self._sent = payload
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads: list[threading.Thread] = []
        self._connections: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept)
        #: True once a whole request head has arrived.
        self.asked = False
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection = self._listener.accept()[0]
                self._connections.append(connection)
                self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
                self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError), connection:  # closed meanwhile
            request = b""
            while b"\r\n\r\n" not in request:
                piece = connection.recv(65536)
                if not piece:
                    return
                request += piece
            self.asked = True
            for data in self._sent():
                connection.sendall(data)
                if not data and select.select([connection], [], [], 0)[0] and not connection.recv(65536):
                    # The client has disconnected.
                    return
            connection.shutdown(socket.SHUT_WR)
            # Until the client has disconnected: a reset would drop data that it has not read.
            while connection.recv(65536):
                pass

    def __enter__(self) -> RawServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for connection in [self._listener, *self._connections]:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        self._thread.join()
        for thread in self._threads:
            thread.join()


def tickets(listener: socket.socket, certificate: Certificate, secrets: Path) -> None:
    """Answer one request with an endless series of TLS tickets; the client's OpenSSL reads all before it returns."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    context.keylog_filename = str(secrets)
    context.num_tickets = 0
    with contextlib.suppress(OSError), context.wrap_socket(listener.accept()[0], server_side=True) as connection:
        connection.recv(65536)
        # The kernel of a disconnected client may not report that.
        connection.settimeout(5.0)
        cipher = connection.cipher()
        assert cipher is not None
        assert cipher[:2] == ("TLS_AES_256_GCM_SHA384", "TLSv1.3")
        # Generated here, because Python sends none later. A small one takes the client as long as a large one.
        [secret] = [line.split()[2] for line in secrets.read_text().splitlines() if "SERVER_TRAFFIC_SECRET_0" in line]
        ticket = bytes.fromhex("0400000e 00001c20 00000001 00 0001 78 0000")
        record = ticket * (16380 // len(ticket)) + b"\x16"
        header = b"\x17\x03\x03" + (len(record) + 16).to_bytes(2)
        key, nonce = (
            _expanded(bytes.fromhex(secret), *label_and_length) for label_and_length in ((b"key", 32), (b"iv", 12))
        )
        for number in itertools.count():
            this = int.from_bytes(nonce) ^ number
            sealed = AESGCM(key).encrypt(this.to_bytes(12), record, header)
            socket.socket.sendall(connection, header + sealed)


def _expanded(secret: bytes, label: bytes, length: int) -> bytes:
    """HKDF-Expand-Label of RFC 8446."""
    info = length.to_bytes(2) + bytes([6 + len(label)]) + b"tls13 " + label + b"\0"
    return HKDFExpand(SHA384(), length, info).derive(secret)
