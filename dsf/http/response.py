"""An answer as a request reads it, in the place of urllib3's response."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Mapping
from typing import Any, cast

import urllib3.exceptions

from dsf.http.answer import Answer


class Response:
    """Its body is still to be read. Leaving the context closes the connection, unless all of it was read.

    urllib3's response copies the headers, and asks at each read whether to decode; that of requests looks for cookies
    and an encoding. Each costs as much as to read the headers.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._is_broken = False
        self.status_code = self.status = answer.status
        self.headers = cast("Mapping[str, str]", _Headers(answer.headers))
        self.version_string = f"HTTP/{answer.version / 10:.1f}"
        # urllib3's pool sets them when it hands this out.
        self.retries: Any = None
        self._connection: Any = None
        self._pool: Any = None

    @property
    def length_remaining(self) -> int | None:
        """Bytes of the body that are still to come; None when the server did not say."""
        return self._answer.length

    def read(self, size: int) -> bytes:
        """So many bytes of the body as they came, fewer only at its end. Raises urllib3's HTTPError and OSError."""
        try:
            piece = self._answer.read(size)
            if not piece and self._answer.length:
                raise http.client.IncompleteRead(piece, self._answer.length)
        except BaseException as error:
            self._is_broken = True
            if isinstance(error, ssl.SSLError):
                raise urllib3.exceptions.SSLError(error) from error
            if isinstance(error, http.client.HTTPException):
                raise urllib3.exceptions.ProtocolError("Connection broken", error) from error
            raise
        return piece

    def __enter__(self) -> Response:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_broken or self.status < http.client.OK or not self._answer.isclosed():
            # Or it was an interim answer, and the real one would be taken for that of the next request.
            self._answer.close()
            self._connection.close()
        self._pool._put_conn(self._connection)


class _Headers:
    """The one method of a mapping that is needed. Several headers of a name are one, as RFC 9110, 5.3, has it."""

    def __init__(self, message: http.client.HTTPMessage) -> None:
        self._message = message

    def get(self, name: str, default: str | None = None) -> str | None:
        values = self._message.get_all(name)
        return default if values is None else ", ".join(values)
