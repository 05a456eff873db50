"""Standard output of commands that run inside another program."""

from __future__ import annotations

import contextlib
import io
import sys

from dsf.cli import streams


def test_output_redirected_into_memory_is_not_changed() -> None:
    memory = io.StringIO()
    with contextlib.redirect_stdout(memory), streams.prepare_streams():
        print("text", file=sys.stdout)
    assert memory.getvalue() == "text\n"
