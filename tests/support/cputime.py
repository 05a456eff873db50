"""CPU seconds of the tests by folder, printed at the end of a run: `DSF_TEST_CPU=1 make test`.

Includes the processes that a test starts, even if they keep running. Work of a shared server counts for the current
test.
"""

from __future__ import annotations

import collections
import contextlib
import os
import time
from collections.abc import Iterator
from typing import Final

import psutil
import pytest

from tests.support import forked

_VARIABLE: Final = "DSF_TEST_CPU"
#: Name of the measurement in a test's report.
_PROPERTY: Final = "cpu seconds"
_LOADING: Final = "loading of all tests in each test process"


def pytest_configure(config: pytest.Config) -> None:
    """Start the measurement if the variable is set."""
    if os.environ.get(_VARIABLE):
        config.pluginmanager.register(CpuTime(config), "cputime")


class CpuTime:
    """The measurement. Each test process measures, and the process that prints the summary collects the results."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._measured = 0.0
        self._own_seconds = 0.0
        self._seconds: collections.Counter[str] = collections.Counter()
        self._tests: collections.Counter[str] = collections.Counter()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self) -> None:
        """Report the time for the imports of this process."""
        self._measured = self._measure()
        output = getattr(self._config, "workeroutput", None)
        if output is None:
            self._seconds[_LOADING] = self._measured
        else:
            output[_PROPERTY] = self._measured

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Iterator[None]:
        """Report the seconds since the previous test."""
        yield
        measured = self._measure()
        item.user_properties.append((_PROPERTY, measured - self._measured))
        self._measured = measured

    def _measure(self) -> float:
        """Return the CPU seconds so far, without those of the measurements themselves."""
        started = time.thread_time()
        seconds = cpu_seconds()
        self._own_seconds += time.thread_time() - started
        return seconds - self._own_seconds

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the seconds of a test."""
        if report.when == "teardown" and not hasattr(self._config, "workerinput"):
            folder = get_folder(report.nodeid)
            self._tests[folder] += 1
            self._seconds[folder] += float(str(dict(report.user_properties).get(_PROPERTY, 0)))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        """Add the time of a test process before its first test."""
        self._seconds[_LOADING] += getattr(node, "workeroutput", {}).get(_PROPERTY, 0)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table, as Markdown."""
        terminalreporter.section("CPU seconds")
        terminalreporter.write_line("| folder | tests | CPU seconds |\n|---|---|---|")
        for folder, seconds in self._seconds.most_common():
            terminalreporter.write_line(f"| {folder} | {self._tests[folder] or ''} | {seconds:.1f} |")
        terminalreporter.write_line(f"| all | {self._tests.total()} | {self._seconds.total():.1f} |")


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of its descendants, including ended ones.

    A server that forks processes for all test processes counts where it started, and each forked process where it was
    asked for.
    """
    process = psutil.Process()
    servers = {server.pid for server in forked.started_servers}
    elsewhere = set(servers)
    processes = [process]
    # Parents come before their children.
    for child in process.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if child.ppid() in elsewhere:
                elsewhere.add(child.pid)
            else:
                processes.append(child)
    for pid in forked.list_own_servers():
        with contextlib.suppress(psutil.NoSuchProcess):
            processes += [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    seconds = 0.0
    for each in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = each.cpu_times()
            seconds += times.user + times.system
            if each.pid not in servers:
                seconds += times.children_user + times.children_system
    return seconds


def get_folder(nodeid: str) -> str:
    """Return the folder or file below `unit` or `integration`, such as `tests/unit/hub` or `tests/unit/test_log.py`."""
    parts = nodeid.partition("::")[0].split("/")
    return "/".join(parts[: parts.index("tests") + 3])
