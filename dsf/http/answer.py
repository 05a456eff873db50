"""Strict, bounded parser of one HTTP answer.

http.client parses a chunk's size with `int()`, which accepts minus signs: `-1` then means an unlimited chunk. It
counts neither trailers nor interim answers, of which it knows only 100. Here every byte that arrives is counted,
including headers and chunk lines, and each violation of RFC 9112 has its own error message.
"""

from __future__ import annotations

import http.client
import io
import re
import socket
from email import errors
from typing import Any, Final

from dsf.http.deadline import Exchange

#: Bytes of status line and headers, those of interim answers (100 Continue) included.
_MAX_HEAD: Final = 256 * 1024
#: Bytes of the line that begins a chunk, and lines of trailers.
_MAX_LINE: Final = 4096
_MAX_TRAILERS: Final = 100
#: Bytes beyond those of the answer: chunk lines and trailers.
_FRAMING: Final = 1024 * 1024
_CHUNK: Final = re.compile(rb"([0-9A-Fa-f]{1,16})[ \t]*(?:;[^\r\n]*)?\r?\n")
_HEADER: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t\x20-\x7e\xa0-\xff]*)\r?\n")
#: Content types that the email parser treats specially.
_PARTS: Final = re.compile(rb"(?i):[ \t]*(multipart|message)/")
_WITHOUT_BODY: Final = (http.client.NO_CONTENT, http.client.NOT_MODIFIED)
_DIGITS: Final = re.compile(r"[0-9]{1,18}")
#: Defects that the email parser reports because it does not see the body.
_BENIGN: Final = (errors.StartBoundaryNotFoundDefect, errors.MultipartInvariantViolationDefect)


class NotHttpError(http.client.HTTPException):
    """The answer violates the rules of HTTP; the message says how, without quoting it."""


class TooMuchError(http.client.HTTPException):
    """The answer exceeds its limit of bytes."""


class Answer(http.client.HTTPResponse):
    """The response of http.client, within the bounds of an exchange."""

    def __init__(self, sock: socket.socket, *args: Any, exchange: Exchange, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self._wire = _Metered(self.fp.detach(), exchange)
        self._max_body = exchange.max_bytes
        self.fp = io.BufferedReader(self._wire)
        #: Bytes left in the current chunk.
        self._left = 0

    def begin(self) -> None:
        """Read status and headers. Raises HTTPException."""
        status = http.client.CONTINUE
        # What comes before the answer, such as early hints; after 101 it is not HTTP any more.
        while http.client.CONTINUE <= status < http.client.OK and status != http.client.SWITCHING_PROTOCOLS:
            version, status, reason = self._read_status()  # type: ignore[attr-defined]
            headers = read_headers(self.fp)
        if not version.startswith("HTTP/1."):
            raise http.client.UnknownProtocol(version)
        self.version = 10 if version == "HTTP/1.0" else 11
        self.code = self.status = status
        self.reason = reason.strip()
        self.headers = self.msg = headers
        unread = "" if headers.is_multipart() else headers.get_payload()
        if unread or any(not isinstance(defect, _BENIGN) for defect in headers.defects):
            raise NotHttpError("a line of its headers cannot be read")
        codings = ", ".join(headers.get_all("transfer-encoding", [])).lower()
        if codings not in ("", "identity", "chunked"):
            raise NotHttpError("its Transfer-Encoding is not the one that is understood, chunked")
        lengths = {length.strip() for line in headers.get_all("content-length", []) for length in line.split(",")}
        if len(lengths) > 1 or any(_DIGITS.fullmatch(length) is None for length in lengths):
            raise NotHttpError("its Content-Length is not one number")
        is_head = self._method == "HEAD"  # type: ignore[attr-defined]
        has_none = is_head or status in _WITHOUT_BODY or status < http.client.OK
        self.chunked = codings == "chunked" and not has_none
        self.chunk_left = None
        self.length = 0 if has_none else None if self.chunked or not lengths else int(lengths.pop())
        closes: bool = self._check_close()  # type: ignore[attr-defined]
        self.will_close = closes or (self.length is None and not self.chunked)
        self._wire.left += self._max_body * 2 + _FRAMING - _MAX_HEAD

    def read(self, amt: int | None = None) -> bytes:
        """`amt` bytes of the body, fewer only at its end. Raises HTTPException."""
        if amt is None or not self.chunked or self.fp is None:
            return super().read(amt)
        pieces: list[bytes] = []
        while amt > 0 and (self._left or self._next_chunk()):
            piece = self.fp.read(min(amt, self._left))
            if not piece:
                raise http.client.IncompleteRead(b"")
            pieces.append(piece)
            amt -= len(piece)
            self._left -= len(piece)
            if not self._left and self._line() not in (b"\r\n", b"\n"):
                raise NotHttpError("a chunk of its body is longer than was said")
        return b"".join(pieces)

    def _next_chunk(self) -> bool:
        """Whether there is another chunk. Closes the answer after the last."""
        found = _CHUNK.fullmatch(self._line())
        if found is None:
            raise NotHttpError("a chunk of its body has no size")
        self._left = int(found[1], 16)
        if self._left > self._max_body:
            raise TooMuchError
        if self._left:
            return True
        for _ in range(_MAX_TRAILERS):
            if self._line() in (b"\r\n", b"\n"):
                self.close()
                return False
        raise NotHttpError(f"more than {_MAX_TRAILERS} trailers follow its body")

    def _line(self) -> bytes:
        line: bytes = self.fp.readline(_MAX_LINE + 1)
        if len(line) > _MAX_LINE:
            raise NotHttpError(f"a line between its chunks has more than {_MAX_LINE} bytes")
        if not line.endswith(b"\n"):
            raise http.client.IncompleteRead(line)
        return line


def read_headers(file: io.BufferedIOBase) -> http.client.HTTPMessage:
    """As `http.client.parse_headers`, whose email parser takes a tenth of a millisecond per line.

    That parser still reads headers that are not plain. Raises HTTPException for lines too long or too many, and where
    the connection ends before the blank line, which `http.client` takes for that line.
    """
    lines: list[bytes] = http.client._read_headers(file)  # type: ignore[attr-defined]
    if lines[-1] not in (b"\r\n", b"\n"):
        raise http.client.IncompleteRead(b"")
    plain = [found for line in lines if (found := _HEADER.fullmatch(line))]
    head = b"".join(lines)
    if len(plain) != len(lines) - 1 or _PARTS.search(head):
        return http.client.parse_headers(io.BytesIO(head))
    message = http.client.HTTPMessage()
    for found in plain:
        message.set_raw(found[1].decode(), found[2].decode("iso-8859-1"))
    message.set_payload("")
    return message


class _Metered(io.RawIOBase):
    """The socket's bytes, counted. `left` is how many may follow."""

    def __init__(self, raw: io.RawIOBase, exchange: Exchange) -> None:
        self._raw = raw
        self._exchange = exchange
        self.left = _MAX_HEAD

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        # A sender that never pauses keeps the thread here, and the deadline must end that too.
        self._exchange.check()
        count = self._raw.readinto(buffer)
        self._exchange.is_answered |= bool(count)
        self.left -= count or 0
        if self.left < 0:
            raise TooMuchError
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()
