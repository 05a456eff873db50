"""Notes which tests could not run because the control plane is not there yet; scripts/test runs them when it is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

#: In the reason of every such skip: it names the command that helps.
_HELP = "scripts/controlplane"


class Later:
    """A plugin of pytest that appends ids of tests to a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """With several test processes: called in the one that has the others report to it."""
        if report.skipped and isinstance(report.longrepr, tuple) and _HELP in report.longrepr[2]:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(f"{report.nodeid}\n")


def pytest_configure(config: pytest.Config) -> None:
    """Only in a run of scripts/test, and once in it."""
    path = os.environ.get("DSF_TEST_LATER")
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Later(Path(path)))
