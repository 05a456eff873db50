"""A forked command behaves like a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tests.support import forked
from tests.support.child import run_program
from tests.support.wait import wait_for

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("arguments", "settings"),
    [
        (("version",), {}),
        (("status", "--unknown"), {}),
        (("schedule", "list"), {"DSF_LOG_LEVEL": "wrong"}),
        (("history", "x", "-c", "c1"), {"DSF_REDIS_URL": "redis://127.0.0.1:1/0"}),
    ],
)
def test_forked_command_behaves_like_a_process(
    arguments: tuple[str, ...], settings: dict[str, str], tmp_path: Path
) -> None:
    foreign_variables = {name: value for name, value in os.environ.items() if not name.startswith("DSF_")}
    environment = foreign_variables | {"COLUMNS": "100", "XDG_STATE_HOME": str(tmp_path)} | settings
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(run_program, [sys.executable, "-m", "dsf.cli", *arguments], env=environment)
        process = forked.dsf(arguments, environment)
        fresh = running.result()
    assert (process.returncode, process.stdout, process.stderr) == (fresh.returncode, fresh.stdout, fresh.stderr)
    assert fresh.stdout + fresh.stderr


#: A process with the web service, on free ports.
WEB = {"DSF_LISTEN_PORT": "0", "DSF_PROBE_PORT": "0", "DSF_TARGET": "web"}


def test_long_output_is_complete_and_no_environment_is_inherited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DSF_LOG_LEVEL", "wrong")
    process = forked.dsf(["crds"], {"PYTHONUTF8": "1", "XDG_STATE_HOME": str(tmp_path)})
    assert (process.returncode, process.stderr) == (0, "")
    assert process.stdout.startswith("---\napiVersion:")
    assert len(process.stdout) > 65_536


def test_forked_process_has_its_own_session_arguments_and_environment(tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "DSF_REDIS_URL": "redis://127.0.0.1:1/0", **WEB}
    process = forked.Forked("dsf.hub", tmp_path / "log", environment, inherit=False)
    try:
        wait_for(lambda: "page listens" in process.tail(), 30, "the page to listen")
        assert os.getsid(process.pid) == process.pid != os.getsid(0)
        assert process.is_running
        process.signal(signal.SIGTERM)
        assert process.wait() == 0, process.tail()
        assert not process.is_running
    finally:
        process.kill()


def test_killed_process_reports_its_signal(tmp_path: Path) -> None:
    process = forked.Forked("dsf.hub", tmp_path / "log", WEB)
    process.kill()
    assert process.wait() == -signal.SIGKILL


def test_processes_end_with_the_one_that_has_started_them(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from tests.support.forked import Forked\n"
        f"made = Forked('dsf.hub', Path({str(tmp_path / 'log')!r}), {WEB!r})\n"
        "print(made.pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        wait_for(lambda: "page listens" in (tmp_path / "log").read_text(), 30, "the page to listen")
        parent.kill()
    wait_for(lambda: not psutil.pid_exists(pid), 10, "what it started to end")


def test_test_processes_of_a_run_share_a_server() -> None:
    code = (
        "import psutil; from tests.support import forked; forked.dsf(['version'], {})\n"
        "print(psutil.Process(forked.list_own_servers()[0]).ppid())"
    )
    forked.dsf(["version"], {})
    run = {"PYTEST_XDIST_TESTRUNUID": forked._get_run()}
    process = run_program([sys.executable, "-c", code], cwd=ROOT, env=os.environ | run, check=True)
    assert int(process.stdout) in {psutil.Process(pid).ppid() for pid in forked.list_own_servers()}
