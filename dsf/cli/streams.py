"""Prepares standard output and standard error, which may be full or closed, or may not support all characters."""

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

#: Number of standard descriptors: input, output and error.
_STANDARD_DESCRIPTORS: Final = 3


class _ClosedOutput(io.RawIOBase):
    """Stands in for a closed standard output: each write raises OSError."""

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))


class _StandardOutput(io.TextIOWrapper):
    """Replaces characters that the encoding does not support, and raises OutputError if a write fails."""

    has_failed = False

    def write(self, text: str, /) -> int:
        with self._translate_errors():
            return super().write(text)

    def flush(self) -> None:
        with self._translate_errors():
            super().flush()

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            # Not an output error: a reader may close the pipe when it has read enough.
            raise
        except OSError as error:
            self.has_failed = True
            raise OutputError(f"cannot write to standard output: {error.strerror or error}") from None


@contextmanager
def prepare_streams() -> Iterator[None]:
    """Replace the standard streams during the block. Raises OutputError if the end of the output cannot be written.

    Keeps a standard output in memory, such as that of `contextlib.redirect_stdout`.
    """
    if isinstance(sys.stdout, io.StringIO):
        yield
        return
    _occupy_standard_descriptors()
    if sys.stderr is None:
        # Discard error messages, because standard error is closed.
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (as long as the process)
    # Keep a reference until the end, because freeing the original stream would close the buffer that both use.
    original = sys.stdout
    if original is None:
        output = _StandardOutput(io.BufferedWriter(_ClosedOutput()), encoding="utf-8")
    else:
        is_line_buffered = bool(original.line_buffering)
        output = _StandardOutput(
            original.buffer, encoding=original.encoding, errors="replace", line_buffering=is_line_buffered
        )
    sys.stdout = output
    try:
        yield
    finally:
        is_written = sys.stdout is output and not output.has_failed
        # Remove the stream, because Python would flush it at exit, and would report the same error again.
        sys.stdout = None
        if is_written:
            output.flush()
            if original is not None:
                output.detach()
                sys.stdout = original


def _occupy_standard_descriptors() -> None:
    """Open closed standard descriptors.

    A connection to Redis that became descriptor 1 would receive the output of C code.
    """
    descriptor = os.open(os.devnull, os.O_RDWR)
    while descriptor < _STANDARD_DESCRIPTORS:
        descriptor = os.dup(descriptor)
    os.close(descriptor)
