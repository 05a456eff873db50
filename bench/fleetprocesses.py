"""The processes of `bench.fleet` by name: starts, kills and restarts them, and measures their costs."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from bench.common import ROOT


@dataclass
class _Running:
    """A process. The supervisor of Redis owns it, so that there is no `popen` for it."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    process: psutil.Process
    popen: subprocess.Popen[bytes] | None = None
    began: float = field(default_factory=time.monotonic)


class Processes:
    """Processes that end with `close`. Threads may read while another one kills and starts."""

    def __init__(self, folder: Path) -> None:
        """Prepare without processes; `folder` is for their logs."""
        self._folder = folder
        self._running: dict[str, list[_Running]] = {}
        # CPU of ended processes.
        self._spent: dict[str, float] = defaultdict(float)

    def start(self, name: str, module: str, environment: Mapping[str, str], *arguments: str) -> None:
        """Start a further process with this name."""
        self._start(name, (sys.executable, "-m", module, *arguments), environment)

    def _start(self, name: str, command: tuple[str, ...], environment: Mapping[str, str]) -> None:
        with (self._folder / f"{name}.log").open("ab") as output:
            popen = subprocess.Popen(command, env=dict(environment), cwd=ROOT, stdout=output, stderr=output)
        self._add(name, _Running(command, environment, psutil.Process(popen.pid), popen))

    def adopt(self, name: str, pid: int) -> None:
        """Count a process that somebody else started under this name from now on."""
        self._add(name, _Running((), {}, psutil.Process(pid)))

    def _add(self, name: str, running: _Running) -> None:
        # A new list each time, because other threads may iterate over the old one.
        self._running[name] = [*self._running.get(name, ()), running]

    def _remove(self, name: str, running: _Running) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            self._spent[name] += _seconds(running.process)
        self._running[name] = [other for other in self._running[name] if other is not running]

    def kill(self, name: str) -> Callable[[], None]:
        """Kill the oldest process of this name with SIGKILL, and return a function that starts it again."""
        return self._end(name, self._running[name][0])

    def _end(self, name: str, running: _Running) -> Callable[[], None]:
        self._remove(name, running)
        assert running.popen is not None
        running.popen.kill()
        running.popen.wait()
        return lambda: self._start(name, running.command, running.environment)

    def release(self, name: str) -> psutil.Process:
        """Stop counting an adopted process, except for its CPU so far, and return it."""
        running = self._running[name][0]
        self._remove(name, running)
        return running.process

    def stop(self, name: str) -> None:
        """Send SIGTERM to all processes of this name, and wait until they have ended."""
        for running in self._running[name]:
            if running.popen is not None:
                running.popen.terminate()
        for running in self._running[name]:
            if running.popen is not None:
                running.popen.wait(60)
            self._remove(name, running)

    def revive(self) -> list[str]:
        """Restart processes that ended by themselves, and return their names and exit codes."""
        endings = []
        for name, all_of_it in list(self._running.items()):
            for running in all_of_it:
                if running.popen is not None and running.popen.poll() is not None:
                    endings.append(f"{name} ended with {running.popen.returncode}")
                    self._end(name, running)()
        return endings

    def of(self, name: str) -> Sequence[psutil.Process]:
        """Return the running processes of this name."""
        return [running.process for running in self._running.get(name, ())]

    def cpu(self) -> dict[str, float]:
        """Return the CPU seconds by name, including ended processes."""
        return {
            name: self._spent[name] + sum(_seconds(running.process) for running in instances)
            for name, instances in sorted(self._running.items())
        }

    def memory(self) -> dict[str, int]:
        """Return the resident bytes by name."""
        return {name: rss for name, (rss, _) in self.resident().items()}

    def resident(self) -> dict[str, tuple[int, float]]:
        """Return by name the resident bytes, and the seconds since the youngest process of the name was started."""
        now, resident_by_name = time.monotonic(), {}
        for name, instances in sorted(self._running.items()):
            with contextlib.suppress(psutil.NoSuchProcess):
                if instances:
                    rss = sum(running.process.memory_info().rss for running in instances)
                    resident_by_name[name] = rss, now - max(running.began for running in instances)
        return resident_by_name

    def close(self) -> None:
        """End all processes that were started here, the newest first."""
        ending = [
            instance.popen
            for instances in self._running.values()
            for instance in instances
            if instance.popen is not None
        ]
        for popen in reversed(ending):
            popen.terminate()
        for popen in ending:
            popen.wait(60)
        self._running.clear()


def _seconds(process: psutil.Process) -> float:
    """Return the CPU seconds of a process and of its ended children."""
    return sum(process.cpu_times()[:4])
