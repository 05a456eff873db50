"""One HTTP answer, within limits for its bytes as they come and as they are decompressed.

http.client and urllib3 have no limit for a whole answer: here every byte that arrives is counted, those of headers,
chunk lines and trailers included. Headers that contradict themselves are refused: they would make half a body a whole
one. A few compressed bytes can expand a thousandfold, and an answer can consist of many small compressed members, each
of which costs a copy of the rest: so the output of each step is bounded, and the members are counted.
"""

from __future__ import annotations

import http.client
import io
import re
import socket
import zlib
from collections.abc import Iterable, Iterator
from email import errors
from typing import Any, Final

from dsf.http.deadline import Exchange, current

#: Bytes of status line and headers, those of interim answers (100 Continue) included.
_MAX_HEAD: Final = 256 * 1024
_DIGITS: Final = re.compile(r"[0-9]{1,18}")
#: Defects that the email parser reports because it does not see the body.
_BENIGN: Final = (errors.StartBoundaryNotFoundDefect, errors.MultipartInvariantViolationDefect)
#: Supported content codings. Only gzip is requested.
CODINGS: Final = frozenset({"gzip", "x-gzip", "deflate"})
#: gzip or zlib, detected by the first bytes.
_EITHER: Final = 32 + zlib.MAX_WBITS
#: Members of one gzip answer; servers send one.
_MAX_MEMBERS: Final = 64


class NotHttpError(http.client.HTTPException):
    """The answer violates the rules of HTTP; the message says how, without quoting it."""


class TooMuchError(http.client.HTTPException):
    """The answer exceeds its limit of bytes."""


class BoundedResponse(http.client.HTTPResponse):
    """The response of http.client, within the limits of this thread's exchange."""

    def __init__(self, sock: socket.socket, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        exchange = current()
        exchange.answers.append(self)
        exchange.use(sock)
        self._wire = _Metered(self.fp.detach(), exchange)
        self.fp = io.BufferedReader(self._wire)

    def begin(self) -> None:
        """Read status and headers. Raises HTTPException."""
        super().begin()
        # What comes before the answer, such as early hints; after 101 it is not HTTP any more.
        while self.status < http.client.OK and self.status != http.client.SWITCHING_PROTOCOLS:
            self.headers = None  # type: ignore[assignment]
            super().begin()
        if self._wire.is_over:
            # http.client takes the end of the connection for that of the headers.
            raise http.client.IncompleteRead(b"")
        _check(self.headers)
        if self.status < http.client.OK:
            self.will_close = True
        if self.status in (http.client.NO_CONTENT, http.client.NOT_MODIFIED):
            self.chunked = False
            del self.headers["Transfer-Encoding"]
        # Also room for chunk lines and trailers.
        self._wire.left += current().max_bytes * 2 + 1024 * 1024 - _MAX_HEAD


def _check(headers: http.client.HTTPMessage) -> None:
    unread = "" if headers.is_multipart() else headers.get_payload()
    if unread or any(not isinstance(defect, _BENIGN) for defect in headers.defects):
        raise NotHttpError("a line of its headers cannot be read")
    if ", ".join(headers.get_all("Transfer-Encoding", [])).lower() not in ("", "identity", "chunked"):
        raise NotHttpError("its Transfer-Encoding is not the one that is understood, chunked")
    lengths = {length.strip() for line in headers.get_all("Content-Length", []) for length in line.split(",")}
    if len(lengths) > 1 or any(_DIGITS.fullmatch(length) is None for length in lengths):
        raise NotHttpError("its Content-Length is not one number")


class _Metered(io.RawIOBase):
    """The socket's bytes, counted. `left` is how many may follow, `is_over` whether the connection has ended."""

    def __init__(self, raw: io.RawIOBase, exchange: Exchange) -> None:
        self._raw = raw
        self._exchange = exchange
        self.left = _MAX_HEAD
        self.is_over = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        count = self._raw.readinto(buffer)
        if not count:
            # So ends an exchange at its deadline, too.
            self._exchange.remaining()
            self.is_over = True
            return count
        self._exchange.is_answered = True
        self.left -= count
        if self.left < 0:
            raise TooMuchError
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


def inflated(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The decompressed data, at most a MiB at a time; nothing for no pieces. Raises HTTPException.

    Trailing data after the last member are ignored, as gzip does.
    """
    inflater = zlib.decompressobj(_EITHER)
    members = 0
    is_begun = False
    for piece in pieces:
        is_begun = True
        rest = piece
        while rest:
            if inflater.eof:
                members += 1
                if members >= _MAX_MEMBERS:
                    raise NotHttpError(f"it is made of more than {_MAX_MEMBERS} compressed members")
                inflater = zlib.decompressobj(_EITHER)
            try:
                made = inflater.decompress(rest, 1024 * 1024)
            except zlib.error:
                if members:
                    return
                raise NotHttpError("it cannot be decompressed") from None
            rest = inflater.unused_data if inflater.eof else inflater.unconsumed_tail
            if made:
                yield made
    if is_begun and not inflater.eof:
        raise http.client.IncompleteRead(b"")
