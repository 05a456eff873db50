"""A forked command is what a process is."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support import forked, forkserver
from tests.support.child import ran
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
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DSF_")}
    environment = kept | {"COLUMNS": "100", "XDG_STATE_HOME": str(tmp_path)} | settings
    fresh = ran([sys.executable, "-m", "dsf.cli", *arguments], env=environment)
    made = forked.dsf(arguments, environment)
    assert (made.returncode, made.stdout, made.stderr) == (fresh.returncode, fresh.stdout, fresh.stderr)
    assert fresh.stdout + fresh.stderr


#: A process with the web service, on free ports.
WEB = {"DSF_LISTEN_PORT": "0", "DSF_PROBE_PORT": "0", "DSF_TARGET": "web"}


def test_much_is_whole_and_nothing_is_inherited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSF_LOG_LEVEL", "wrong")
    done = forked.dsf(["crds"], {"PYTHONUTF8": "1", "XDG_STATE_HOME": str(tmp_path)})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("---\napiVersion:")
    assert len(done.stdout) > 65_536


def _loaded(*modules: str) -> set[str]:
    """What a process has loaded that imports these."""
    told = ran(
        [sys.executable, "-c", f"import sys\nimport {', '.join(modules)}\nprint(*sys.modules)"], cwd=ROOT, check=True
    )
    return set(told.stdout.split())


def test_modules_sensitive_to_load_order_are_not_preloaded() -> None:
    # Others load nothing of ours.
    modules = set(itertools.chain.from_iterable(forkserver.LOADED.values()))
    told = _loaded(*(name for name in modules if name.startswith(("dsf.", "celery."))))
    assert {"redis", "pydantic"} <= told
    assert "dsf.celery" not in told
    assert {"rich", "structlog"}.isdisjoint(_loaded(*forkserver.LOADED["dsf.cli"]))


def test_forked_process_has_its_own_session_arguments_and_environment(tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "DSF_REDIS_URL": "redis://127.0.0.1:1/0", **WEB}
    made = forked.Forked("dsf.hub", tmp_path / "log", environment, inherit=False)
    try:
        wait_for(lambda: "page listens" in made.tail(), 30, "the page to listen")
        assert os.getsid(made.pid) == made.pid != os.getsid(0)
        assert made.is_running
        made.signal(signal.SIGTERM)
        assert made.wait() == 0, made.tail()
        assert not made.is_running
    finally:
        made.kill()


def test_killed_process_reports_its_signal(tmp_path: Path) -> None:
    made = forked.Forked("dsf.hub", tmp_path / "log", WEB)
    made.kill()
    assert made.wait() == -signal.SIGKILL


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
