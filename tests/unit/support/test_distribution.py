"""tests.support.distribution: all tests of a file run in one process, and files start in a certain order."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.support.child import run_program
from tests.support.distribution import Spread, get_group

ROOT = Path(__file__).resolve().parents[3]
#: A file of eight tests. Each adds the name of its pytest-xdist worker to a file beside it.
TEST_FILE = """
import os, pathlib, pytest

@pytest.mark.parametrize("number", range(8))
def test_worker_is_recorded(number):
    with open(pathlib.Path(__file__).with_suffix(".workers"), "a") as file:
        file.write(os.environ["PYTEST_XDIST_WORKER"] + "\\n")
"""


def test_files_are_not_split(tmp_path: Path) -> None:
    # All files of the second folder run in one process, because they use the same ports.
    names_by_folder = {"one": ["a", "b"], "demo/tests/integration/demo": ["c", "d"]}
    for folder, names in names_by_folder.items():
        (tmp_path / folder).mkdir(parents=True)
        for name in names:
            (tmp_path / folder / f"test_{name}.py").write_text(TEST_FILE)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    plugins = ("-p", "xdist.plugin", "-p", "tests.support.distribution")
    options = (
        "-q",
        *plugins,
        "--rootdir",
        str(tmp_path),
        "-c",
        str(tmp_path / "pytest.ini"),
        "-n2",
        "--dist=loadgroup",
    )
    process = run_program(
        [sys.executable, "-m", "pytest", *options, str(tmp_path)],
        cwd=ROOT,
        # Other plugins are not needed, and loading them in each worker takes longer than these tests.
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )
    assert process.returncode == 0, process.stdout + process.stderr
    workers_by_file = {file.stem: set(file.read_text().split()) for file in tmp_path.rglob("*.workers")}
    assert {len(workers) for workers in workers_by_file.values()} == {1}
    assert workers_by_file["test_c"] == workers_by_file["test_d"]
    assert set.union(*workers_by_file.values()) == {"gw0", "gw1"}


def test_fleet_files_are_spread_over_the_other_files_and_each_starts_once() -> None:
    fleet_files = [f"tests/faults/test_{name}.py" for name in "abc"]
    other_files = [f"tests/unit/test_{number:02}.py" for number in range(12)]
    queue = Spread()
    for file in fleet_files + other_files:
        queue[file] = {}
    started_files = [queue.popitem(last=False)[0] for _ in range(15)]
    # Every eighth file is one with a fleet. The third of them is the last file of all, because the others have run out.
    assert [started_files.index(file) for file in fleet_files] == [0, 8, 14]
    assert [file for file in started_files if file not in fleet_files] == other_files
    assert not queue


def test_files_that_use_the_shared_api_server_are_one_group() -> None:
    # In more than one group, several test processes would each start an API server.
    api_server_files = [
        "tests/integration/api/test_crds.py",
        "tests/integration/hub/kube/test_gitops.py",
        "packages/dsf-optimizer/tests/integration/optimizer/mcp/test_access.py",
    ]
    groups = {get_group(f"{file}::test_one[a::b]") for file in api_server_files}
    assert len(groups) == 1
    other_file = "tests/integration/agent/test_small.py"
    assert get_group(f"{other_file}::test_one") == other_file
    queue = Spread()
    for name in [other_file, *groups]:
        queue[name] = {}
    # The group starts before the file, although it was added later.
    assert [queue.popitem(last=False)[0] for _ in range(2)] == [*groups, other_file]


def test_groups_of_files_start_first_and_unit_tests_last() -> None:
    queue = Spread()
    for name in ("tests/unit/test_log.py", "tests/integration/store/test_ticks.py", "deploy/tests/unit/"):
        queue[name] = {}
    started_names = [queue.popitem(last=False)[0] for _ in range(3)]
    assert started_names == ["deploy/tests/unit/", "tests/integration/store/test_ticks.py", "tests/unit/test_log.py"]
