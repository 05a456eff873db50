"""A person who reads a page and types its commands into one shell, from the first to the last."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.integration.docs import pages

#: Commands for a second terminal, which run until its shell ends.
_STAYS = re.compile(r"\bport-forward\b")


@dataclass(frozen=True)
class Typed:
    """A typed command with its exit code, output and duration."""

    line: int
    text: str
    code: int
    output: str
    seconds: float

    def __str__(self) -> str:
        return f"line {self.line}: {self.text}\n-> {self.code} after {self.seconds:.0f} s\n{self.output[-1500:]}"


class Reader:
    """Types into a shell that keeps its variables; `replaced` has patterns of texts that differ from the page's."""

    def __init__(
        self, folder: Path, environment: Mapping[str, str], *, before: Sequence[str], replaced: Mapping[str, str]
    ) -> None:
        self.typed: list[Typed] = []
        self._replaced = replaced
        self._shell = subprocess.Popen(
            [*before, "bash", "--norc", "--noprofile"],
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def type(self, command: pages.Command) -> Typed:
        """Type it and wait for its end."""
        text = command.text
        for pattern, replacement in self._replaced.items():
            text = re.sub(pattern, replacement, text)
        if _STAYS.search(text):
            text = f"{{ {text} & }} 2>/dev/null >/dev/null"
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        started = time.monotonic()
        # With pipefail: of `kubectl ... | base64 -d` the first one counts too. Without standard input a command cannot
        # read later commands.
        mark = f"typed-{command.line}-{len(self.typed)}"
        self._shell.stdin.write(f"set -o pipefail; {{ {text}\n}} </dev/null; echo {shlex.quote(mark)} $?\n")
        self._shell.stdin.flush()
        output = ""
        for line in self._shell.stdout:
            before, marker, code = line.partition(f"{mark} ")
            output += before
            if marker:
                result = Typed(command.line, text, int(code), output, time.monotonic() - started)
                self.typed.append(result)
                return result
        raise AssertionError(f"the shell ended at line {command.line}: {output}")

    def close(self) -> None:
        """End the shell, and everything that still runs in it."""
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._shell.pid, signal.SIGTERM)  # the shell has its own session
        self._shell.wait(30)
        with contextlib.suppress(BrokenPipeError):
            self._shell.stdin.close()
        self._shell.stdout.close()
