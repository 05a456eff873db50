"""Supervisor of child processes: starts, restarts and ends them.

Each child has a session of its own, so that Ctrl-C in the terminal reaches only the supervisor, which then ends the
children in order. On Linux the kernel ends them too when the supervisor itself is killed. Use it from one thread: the
kernel ties this to the thread that started the child.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from dsf.errors import ToolError
from dsf.process.children import tie_to_parent

#: A program that died this often in a row is not started again. RESTART_WINDOW seconds of running reset the count,
#: because a program that fails at its start may take long on a slow machine.
RESTART_LIMIT = 5
RESTART_WINDOW = 60.0
#: Seconds between SIGTERM and SIGKILL. A Celery worker first finishes its tasks, which wait for HTTP.
STOP_GRACE = 8.0
#: Bytes of a log; a larger one is moved to `<name>.log.1`.
LOG_LIMIT = 10 * 1024 * 1024
_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Program:
    """A program to run. `command[0]` is a path."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] | None = None
    #: Returns True if the program serves now, and must not block for long. A program without this function is ready as
    #: soon as it runs.
    ready: Callable[[], bool] | None = None
    #: True if the program must end after all others, because they need it to shut down.
    last: bool = False
    #: Returns the meaning of the end of its log, and a remedy; empty if it is unknown.
    explain: Callable[[str], str] = lambda _: ""


@dataclass
class _Child:
    program: Program
    log: Path
    process: subprocess.Popen[bytes]
    started: float = field(default_factory=time.monotonic)
    #: Number of consecutive deaths, each within RESTART_WINDOW of the start.
    deaths: int = 0
    #: Monotonic time at which it is started again; None while it runs.
    restart_at: float | None = None
    given_up: str = ""


class Supervisor:
    """The child processes of one run. Their logs are in `folder`; `say` gets messages for the user."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self.logs = folder / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._say = say
        self._children: dict[str, _Child] = {}
        self._interrupted = False

    def __contains__(self, name: str) -> bool:
        return name in self._children

    def start(self, program: Program) -> None:
        """Start a program; its log starts empty. Raises ToolError when it cannot be started."""
        log = self.logs / (re.sub(r"[^a-z0-9.]+", "-", program.name.lower()) + ".log")
        log.write_bytes(b"")
        self._children[program.name] = _Child(program, log, self._spawn(program, log))

    def pid(self, name: str) -> int:
        """Process id of a child."""
        return self._children[name].process.pid

    def interrupt(self) -> NoReturn:
        """Handle a signal: raise KeyboardInterrupt now and, if that is lost, at the next check.

        Python only prints an exception that is raised while an object is being deleted.
        """
        self._interrupted = True
        raise KeyboardInterrupt

    def _raise_if_interrupted(self) -> None:
        if self._interrupted:
            raise KeyboardInterrupt

    def wait_ready(self, timeout: float, *names: str, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Wait until these programs (default: all started ones) serve, and call `meanwhile` in between.

        Raises ToolError with the end of the log if one dies or takes longer than `timeout` seconds.
        """
        waiting = list(names or self._children)
        deadline = time.monotonic() + timeout
        while waiting:
            self._raise_if_interrupted()
            for name in list(waiting):
                child = self._children[name]
                if child.process.poll() is not None:
                    raise ToolError(
                        f"{name} ended at its start ({_describe_exit(child.process)}); {self._log_hint(child)}"
                    )
                if child.program.ready is None or child.program.ready():
                    waiting.remove(name)
            if waiting and time.monotonic() > deadline:
                child = self._children[waiting[0]]
                raise ToolError(f"{waiting[0]} does not answer after {timeout:g} s; {self._log_hint(child)}")
            if waiting:
                meanwhile()
                time.sleep(_POLL_SECONDS)

    def check(self) -> None:
        """Restart dead programs, with growing delays, and give up those that keep dying. Call it often.

        Raises ToolError if a program does not exist any more.
        """
        self._raise_if_interrupted()
        for name, child in self._children.items():
            _shorten(child.log)
            if child.given_up or child.process.poll() is None:
                continue
            now = time.monotonic()
            if child.restart_at is None:
                self._plan_restart(name, child, now)
            elif now >= child.restart_at:
                child.restart_at = None
                child.started = now
                child.process = self._spawn(child.program, child.log)

    def _plan_restart(self, name: str, child: _Child, now: float) -> None:
        child.deaths = 1 if now - child.started > RESTART_WINDOW else child.deaths + 1
        if child.deaths >= RESTART_LIMIT:
            child.given_up = f"ended {child.deaths} times in a row, the last time {_describe_exit(child.process)}"
            self._say(f"{name} {child.given_up}; it is not started again; {self._log_hint(child)}")
            return
        child.restart_at = now + child.deaths - 1
        cause = _read_tail(child.log, 1).strip()
        self._say(
            f"{name} ended ({_describe_exit(child.process)}); starting it again" + (f": {cause}" if cause else "")
        )

    def failures(self) -> dict[str, str]:
        """Return the programs that were given up, with the reason and the end of their logs."""
        return {
            name: f"{child.given_up}; {self._log_hint(child)}"
            for name, child in self._children.items()
            if child.given_up
        }

    def stop(self, name: str) -> None:
        """End one program and forget it."""
        child = self._children.pop(name, None)
        if child is not None:
            _end([child], STOP_GRACE)

    def stop_all(self) -> None:
        """End all programs in reverse order of starting, those marked `last` at the end.

        Ctrl-C meanwhile kills the rest.
        """
        children = list(reversed(self._children.values()))
        self._children.clear()
        for group in (
            [child for child in children if not child.program.last],
            [child for child in children if child.program.last],
        ):
            try:
                _end(group, STOP_GRACE)
            except KeyboardInterrupt:
                self._say("ending at once")
                _end(group, 0)

    def tail(self, name: str, lines: int = 8) -> str:
        """Return the last lines of a program's log."""
        return _read_tail(self._children[name].log, lines)

    def _log_hint(self, child: _Child) -> str:
        words = _read_tail(child.log, 4)
        if not words:
            return f"its log {child.log} is empty"
        cause = child.program.explain(words)
        return f"{cause}{'; ' if cause else ''}its log {child.log} ends with:\n{words}"

    def _spawn(self, program: Program, log: Path) -> subprocess.Popen[bytes]:
        if not os.access(program.command[0], os.X_OK):
            raise ToolError(f"cannot start {program.name}: {program.command[0]} is not an executable file")
        with log.open("ab") as output:
            try:
                return subprocess.Popen(
                    tie_to_parent(program.command),
                    env=None if program.environment is None else dict(program.environment),
                    cwd=self._folder,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                raise ToolError(f"cannot start {program.name}: {error.strerror}") from None


@contextlib.contextmanager
def run_supervisor(folder: Path, say: Callable[[str], None]) -> Iterator[Supervisor]:
    """Yield a supervisor whose children are ended at the end of the block, also after SIGTERM and SIGHUP.

    Both raise KeyboardInterrupt in the block, as Ctrl-C does. If SIGHUP is ignored, as by nohup, it stays ignored.
    """
    supervisor = Supervisor(folder, say)
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    previous = {number: signal.signal(number, lambda *_: supervisor.interrupt()) for number in numbers}
    try:
        yield supervisor
    finally:
        supervisor.stop_all()
        for number, handler in previous.items():
            signal.signal(number, handler)


def _end(children: list[_Child], grace: float) -> None:
    """Send SIGTERM, then after `grace` seconds SIGKILL, to each child and its descendants."""
    for child in children:
        _send_signal(child, signal.SIGTERM)
    deadline = time.monotonic() + grace
    while time.monotonic() < deadline and any(child.process.poll() is None for child in children):
        time.sleep(_POLL_SECONDS)
    for child in children:
        # Descendants may still run when the child itself has ended.
        _send_signal(child, signal.SIGKILL)
        child.process.wait()


def _send_signal(child: _Child, number: signal.Signals) -> None:
    # The session's process group has the child's pid as long as one of its members runs.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.process.pid, number)


def _shorten(log: Path) -> None:
    # Truncated in place, because the child appends to the open file.
    with contextlib.suppress(OSError):
        if log.stat().st_size > LOG_LIMIT:
            shutil.copyfile(log, log.with_suffix(".log.1"))
            os.truncate(log, 0)


def _describe_exit(process: subprocess.Popen[bytes]) -> str:
    code = process.returncode
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"


def _read_tail(log: Path, lines: int) -> str:
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - 16_384))
            text = stream.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(f"    {line}" for line in text.strip().splitlines()[-lines:])
