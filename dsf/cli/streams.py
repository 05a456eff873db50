"""Standard output and standard error of the command line, whatever they are: full, closed, or of a small alphabet."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from dsf.errors import OutputError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_STANDARD: Final = 3


class _Closed(io.RawIOBase):
    """Stands for a closed standard output: writing to it is an error."""

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))


class _Output(io.TextIOWrapper):
    """Standard output that replaces characters beyond its alphabet and raises OutputError if it cannot be written."""

    has_failed = False

    def write(self, text: str, /) -> int:
        with self._reported():
            return super().write(text)

    def flush(self) -> None:
        with self._reported():
            super().flush()

    @contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            # The reader has enough, which is no error.
            raise
        except OSError as error:
            self.has_failed = True
            raise OutputError(f"cannot write to standard output: {error.strerror or error}") from None


@contextmanager
def prepared() -> Iterator[None]:
    """Run a command with these streams. Raises OutputError if the end of its output cannot be written.

    A standard output that is replaced by a text in memory, as by `contextlib.redirect_stdout`, stays as it is.
    """
    if isinstance(sys.stdout, io.StringIO):
        yield
        return
    _occupy_standard_descriptors()
    if sys.stderr is None:
        # The text that is written there is not read.
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (as long as the process)
    # Referred to until the end: an object that is freed closes the buffer that both write to.
    original = sys.stdout
    if original is None:
        output = _Output(io.BufferedWriter(_Closed()), encoding="utf-8")
    else:
        is_line_buffered = bool(original.line_buffering)
        output = _Output(original.buffer, encoding=original.encoding, errors="replace", line_buffering=is_line_buffered)
    sys.stdout = output
    try:
        yield
    finally:
        is_written = sys.stdout is output and not output.has_failed
        # After an error, or a broken pipe, the end of the process would write the rest and report the error again.
        sys.stdout = None
        if is_written:
            output.flush()
            if original is not None:
                output.detach()
                sys.stdout = original


def _occupy_standard_descriptors() -> None:
    """Open the closed ones: a connection to Redis that became descriptor 1 would get what C code prints."""
    descriptor = os.open(os.devnull, os.O_RDWR)
    while descriptor < _STANDARD:
        descriptor = os.dup(descriptor)
    os.close(descriptor)
