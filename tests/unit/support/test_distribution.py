"""Tests of one file run in one process with any version of pytest and pytest-xdist."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.support.child import run_program
from tests.support.distribution import Spread, get_group

ROOT = Path(__file__).resolve().parents[3]
TESTS = """
import os, pathlib, pytest

@pytest.mark.parametrize("number", range(8))
def test_one(number):
    with open(pathlib.Path(__file__).with_suffix(".workers"), "a") as file:
        file.write(os.environ["PYTEST_XDIST_WORKER"] + "\\n")
"""


def test_files_are_not_split(tmp_path: Path) -> None:
    folders = {"one": ["a", "b"], "demo/tests/integration/demo": ["c", "d"]}
    for folder, names in folders.items():
        (tmp_path / folder).mkdir(parents=True)
        for name in names:
            (tmp_path / folder / f"test_{name}.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    process = run_program(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "xdist.plugin", "-p", "tests.support.distribution"),
            *("--rootdir", str(tmp_path), "-c", str(tmp_path / "pytest.ini"), "-n", "2", "--dist", "loadgroup"),
            str(tmp_path),
        ],
        cwd=ROOT,
        # Loading a worker takes longer than running these tests.
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )
    assert process.returncode == 0, process.stdout + process.stderr
    workers = {file.stem: set(file.read_text().split()) for file in tmp_path.rglob("*.workers")}
    assert {len(worker_ids) for worker_ids in workers.values()} == {1}
    # Two files use the same ports.
    assert workers["test_c"] == workers["test_d"]
    assert set.union(*workers.values()) == {"gw0", "gw1"}


def test_fleets_are_spread_over_the_other_files_and_each_runs_once() -> None:
    fleets = [f"tests/faults/test_{name}.py" for name in "abc"]
    other_files = [f"tests/unit/test_{number:02}.py" for number in range(12)]
    queue = Spread()
    for name in fleets + other_files:
        queue[name] = {}
    order = [queue.popitem(last=False)[0] for _ in range(15)]
    assert [order.index(name) for name in fleets] == [0, 8, 14]
    assert [name for name in order if name not in fleets] == other_files
    assert not queue


def test_files_of_the_api_server_are_one_group() -> None:
    """Otherwise each test process would start a server."""
    asking = [
        "tests/integration/api/test_crds.py",
        "tests/integration/hub/kube/test_gitops.py",
        "packages/dsf-optimizer/tests/integration/optimizer/mcp/test_access.py",
    ]
    groups = {get_group(f"{file}::test_one[a::b]") for file in asking}
    assert len(groups) == 1
    other_file = "tests/integration/agent/test_small.py"
    assert get_group(f"{other_file}::test_one") == other_file
    queue = Spread()
    for name in [other_file, *groups]:
        queue[name] = {}
    assert [queue.popitem(last=False)[0] for _ in range(2)] == [*groups, other_file]


def test_groups_of_one_process_come_first_and_unit_tests_last() -> None:
    queue = Spread()
    for name in ("tests/unit/test_log.py", "tests/integration/store/test_ticks.py", "deploy/tests/unit/"):
        queue[name] = {}
    order = [queue.popitem(last=False)[0] for _ in range(3)]
    assert order == ["deploy/tests/unit/", "tests/integration/store/test_ticks.py", "tests/unit/test_log.py"]
