"""One HTTP answer within the bounds of its exchange.

http.client and urllib3 have no limit for a whole answer, nor a deadline: here every byte that arrives is counted, those
of headers, chunk lines and trailers included, and each read gets the time that is left. Headers that contradict
themselves are refused: they would make half a body a whole one.
"""

from __future__ import annotations

import http.client
import io
import re
import socket
from email import errors
from typing import Any, Final

from dsf.http.deadline import current

#: Bytes of status line and headers, those of interim answers (100 Continue) included.
_MAX_HEAD: Final = 256 * 1024
#: Bytes beyond those of the body: chunk lines and trailers.
_FRAMING: Final = 1024 * 1024
_WITHOUT_BODY: Final = (http.client.NO_CONTENT, http.client.NOT_MODIFIED)
_DIGITS: Final = re.compile(r"[0-9]{1,18}")
#: Defects that the email parser reports because it does not see the body.
_BENIGN: Final = (errors.StartBoundaryNotFoundDefect, errors.MultipartInvariantViolationDefect)


class NotHttpError(http.client.HTTPException):
    """The answer violates the rules of HTTP; the message says how, without quoting it."""


class TooMuchError(http.client.HTTPException):
    """The answer exceeds its limit of bytes."""


class Answer(http.client.HTTPResponse):
    """The response of http.client, within the bounds of this thread's exchange."""

    def __init__(self, sock: socket.socket, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self._wire = _Metered(self.fp.detach(), sock)
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
        if self.status in _WITHOUT_BODY:
            self.chunked = False
            del self.headers["Transfer-Encoding"]
        self._wire.left += current().max_bytes * 2 + _FRAMING - _MAX_HEAD


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

    def __init__(self, raw: io.RawIOBase, connection: socket.socket) -> None:
        self._raw = raw
        self._connection = connection
        self._exchange = current()
        self.left = _MAX_HEAD
        self.is_over = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._connection.settimeout(self._exchange.remaining())
        count = self._raw.readinto(buffer)
        if not count:
            # An exchange that is ended by another thread looks like this, too.
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
