"""The table of CPU seconds by folder."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from tests.support import cputime, forked
from tests.support.child import run_program
from tests.support.cputime import CpuTime, get_folder

ROOT = Path(__file__).resolve().parents[3]
TESTS = """
import subprocess, sys, time

def test_process():
    code = "import time\\nend = time.process_time() + 0.3\\nwhile time.process_time() < end: pass"
    subprocess.run([sys.executable, "-c", code], check=True)
"""


@pytest.mark.parametrize("processes", [0, 1])
def test_table_includes_the_processes_of_a_test(processes: int, tmp_path: Path) -> None:
    folder = tmp_path / "tests" / "unit" / "some"
    folder.mkdir(parents=True)
    (folder / "test_one.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    process = run_program(
        [
            *(sys.executable, "-m", "pytest", "-p", "xdist.plugin", "-p", "tests.support.cputime"),
            *("--rootdir", str(tmp_path), "-c", str(tmp_path / "pytest.ini"), "-n", str(processes), str(tmp_path)),
        ],
        cwd=ROOT,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "DSF_TEST_CPU": "1"},
    )
    assert process.returncode == 0, process.stdout + process.stderr
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in process.stdout.splitlines() if "|" in line
    ]
    rows = {row[0]: row[1:] for row in cells}
    tests, seconds = rows["tests/unit/some"]
    assert tests == "1"
    assert 0.3 <= float(seconds) < 30
    assert float(rows["loading of all tests in each test process"][1]) > 0


def test_measurement_excludes_its_own_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A measurement reads all processes of the machine, which takes as long as a short test."""

    def slow_measurement() -> float:
        end = time.process_time() + 0.2
        while time.process_time() < end:
            pass
        return time.process_time()

    monkeypatch.setattr(cputime, "cpu_seconds", slow_measurement)
    item: Any = SimpleNamespace(user_properties=[])
    measurement = CpuTime(SimpleNamespace())  # type: ignore[arg-type]
    for _ in range(2):
        list(measurement.pytest_runtest_teardown(item))
    (_, first_seconds), (_, second_seconds) = item.user_properties
    assert first_seconds > second_seconds
    assert second_seconds < 0.1


def test_folder_of_a_test() -> None:
    assert get_folder("tests/unit/hub/test_plan.py::test_a[b/c]") == "tests/unit/hub"
    assert get_folder("tests/unit/test_log.py::test_a") == "tests/unit/test_log.py"
    assert (
        get_folder("packages/dsf-scorer/tests/unit/scorer/x/test_a.py::test_a")
        == "packages/dsf-scorer/tests/unit/scorer"
    )


def test_forked_process_counts_for_the_process_that_asked_for_it() -> None:
    forked.dsf(["version"], {})
    server = psutil.Process(forked._server("dsf.cli", {}).pid)
    seconds_before, times = cputime.cpu_seconds(), server.cpu_times()
    forked.dsf(["crds"], {})
    child_seconds = server.cpu_times().children_user - times.children_user
    assert cputime.cpu_seconds() - seconds_before >= child_seconds > 0
