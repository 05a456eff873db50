"""`dsf` as a process of its own, forked from one in which its modules are loaded: a fraction of the CPU of a fresh one.

For tests that run dozens of commands and look at all that each one prints. Exit codes, descriptors, environment and
what is printed at the very end are those of a process; how the interpreter starts is for other tests.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import CompletedProcess, TimeoutExpired

# A process without threads makes the forks; it ends with this one.
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.support.loaded"])


def dsf(arguments: Sequence[str], environment: Mapping[str, str], timeout: float = 90) -> CompletedProcess[str]:
    """Run a command with this environment and no other. Raises TimeoutExpired after `timeout` seconds."""
    with tempfile.TemporaryDirectory() as folder:
        streams = [Path(folder, name) for name in ("out", "err")]
        process = _context.Process(target=_begin, args=(tuple(arguments), dict(environment), *streams))
        process.start()
        process.join(timeout)
        code = process.exitcode
        if code is None:
            process.kill()
            process.join()
        process.close()
        if code is None:
            raise TimeoutExpired(["dsf", *arguments], timeout)
        return CompletedProcess(["dsf", *arguments], code, *(stream.read_text() for stream in streams))


def _begin(arguments: tuple[str, ...], environment: dict[str, str], out: Path, err: Path) -> None:
    for number, path in ((1, out), (2, err)):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["dsf", *arguments]

    from dsf.cli.script import run

    try:
        run()
    finally:
        # What multiprocessing leaves out.
        atexit._run_exitfuncs()
