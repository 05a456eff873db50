"""Real processes: they are started, watched, started again, and ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from dsf.errors import ToolError
from dsf.up import supervisor as module
from dsf.up.supervisor import Program, Supervisor, run_supervisor
from tests.support.child import run_program
from tests.support.wait import wait_for


def python(name: str, code: str, *, last: bool = False) -> Program:
    return Program(name, (sys.executable, "-c", code), last=last)


SLEEP = "import time; time.sleep(600)"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
)


@pytest.fixture
def messages() -> list[str]:
    return []


@pytest.fixture
def supervisor(tmp_path: Path, messages: list[str]) -> Iterator[Supervisor]:
    new_supervisor = Supervisor(tmp_path, messages.append)
    yield new_supervisor
    new_supervisor.stop_all()


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_dead_program_is_restarted_and_reported(supervisor: Supervisor, messages: list[str]) -> None:
    supervisor.start(python("the agent", SLEEP))
    first = supervisor.pid("the agent")
    os.kill(first, signal.SIGKILL)

    def check_and_find_pid() -> bool:
        supervisor.check()
        return supervisor.pid("the agent") != first

    wait_for(check_and_find_pid, 10)
    assert messages == ["the agent ended (signal SIGKILL); starting it again"]
    assert supervisor.failures() == {}


def test_repeatedly_failing_program_is_not_restarted_again(
    supervisor: Supervisor, messages: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RESTART_LIMIT", 3)
    supervisor.start(python("hub", "print('DSF_REDIS_URL is wrong'); raise SystemExit(2)"))

    def given_up() -> dict[str, str]:
        supervisor.check()
        return supervisor.failures()

    wait_for(given_up, 20)
    assert "hub ended 3 times in a row, the last time exit code 2; it is not started again" in messages[-1]
    assert "DSF_REDIS_URL is wrong" in messages[-1]
    assert messages[:-1] == ["hub ended (exit code 2); starting it again: DSF_REDIS_URL is wrong"] * 2


def test_slowly_failing_program_is_not_restarted_again(
    supervisor: Supervisor, messages: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a busy machine, where five starts take longer than the window."""
    monkeypatch.setattr(module, "RESTART_LIMIT", 3)
    # Each runs for less, whatever its start takes; all three for more.
    monkeypatch.setattr(module, "RESTART_WINDOW", 2.5)
    supervisor.start(python("Flower", "import time; time.sleep(0.9); raise SystemExit('port 5555 is in use')"))

    def given_up() -> dict[str, str]:
        supervisor.check()
        return supervisor.failures()

    wait_for(given_up, 20)
    assert "port 5555 is in use" in messages[0]


def test_program_that_ran_for_a_while_is_restarted_without_limit(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RESTART_LIMIT", 2)
    monkeypatch.setattr(module, "RESTART_WINDOW", 0.0)
    supervisor.start(python("agent", "pass"))
    pids: set[int] = set()

    def started_often() -> bool:
        supervisor.check()
        pids.add(supervisor.pid("agent"))
        return len(pids) > 3

    wait_for(started_often, 20)
    assert supervisor.failures() == {}


def test_supervisor_waits_until_a_program_is_ready(supervisor: Supervisor, tmp_path: Path) -> None:
    code = f"import pathlib, time; pathlib.Path({str(tmp_path / 'up')!r}).touch(); time.sleep(600)"
    looked: list[bool] = []

    def ready() -> bool:  # the first poll returns False, as the time of the program's start must not decide the test
        return bool(looked) and (tmp_path / "up").exists()

    supervisor.start(Program("slow", (sys.executable, "-c", code), ready=ready))
    supervisor.wait_ready(20, meanwhile=lambda: looked.append(True))
    assert (tmp_path / "up").exists()
    assert looked


def test_readiness_error_quotes_the_log(supervisor: Supervisor) -> None:
    code = "print('no such option: --prot'); raise SystemExit(2)"
    supervisor.start(Program("Flower", (sys.executable, "-c", code), ready=lambda: False))
    with pytest.raises(ToolError, match=r"(?s)Flower ended at its start \(exit code 2\).*no such option: --prot"):
        supervisor.wait_ready(20)


def test_silent_program_fails_to_become_ready(supervisor: Supervisor) -> None:
    supervisor.start(Program("Prometheus", (sys.executable, "-c", SLEEP), ready=lambda: False))
    with pytest.raises(ToolError, match=r"Prometheus does not answer after 0\.2 s; its log .* is empty"):
        supervisor.wait_ready(0.2)


def test_missing_program_is_reported(supervisor: Supervisor, tmp_path: Path) -> None:
    with pytest.raises(ToolError, match=r"cannot start exporter: .*nowhere is not an executable file"):
        supervisor.start(Program("exporter", (str(tmp_path / "nowhere"),)))


def test_programs_are_stopped_in_reverse_order(
    supervisor: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STOP_GRACE", 60.0)
    order = tmp_path / "order"
    code = (
        "import signal, sys, time\n"
        "def end(*_):\n"
        "    time.sleep({0})\n"
        f"    print('{{1}}', file=open({str(order)!r}, 'a'), flush=True)\n"
        "    sys.exit()\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "print('up', flush=True)\n"
        "time.sleep(600)\n"
    )
    supervisor.start(python("Redis", code.format(0, "Redis"), last=True))
    supervisor.start(python("agent", code.format(0.3, "agent")))
    wait_for(lambda: "up" in supervisor.tail("Redis") and "up" in supervisor.tail("agent"))
    pids = [supervisor.pid("Redis"), supervisor.pid("agent")]
    supervisor.stop_all()
    assert order.read_text().split() == ["agent", "Redis"]
    assert all(is_gone(pid) for pid in pids)


def test_stubborn_program_is_killed_with_its_children(supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STOP_GRACE", 0.2)
    code = (
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    supervisor.start(python("stubborn", code))
    wait_for(lambda: supervisor.tail("stubborn").strip())
    grandchild = int(supervisor.tail("stubborn"))
    child = supervisor.pid("stubborn")
    supervisor.stop("stubborn")
    assert "stubborn" not in supervisor
    wait_for(lambda: is_gone(child) and is_gone(grandchild))


def test_long_log_is_rotated(supervisor: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOG_LIMIT", 100)
    supervisor.start(python("talker", "import time\nwhile True: print('x' * 50, flush=True); time.sleep(0.01)"))
    log = tmp_path / "logs" / "talker.log"

    def moved() -> bool:
        supervisor.check()
        return log.with_suffix(".log.1").exists()

    wait_for(moved, 10)
    # The process continues with its output in the log.
    wait_for(lambda: log.stat().st_size > 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_end_the_block_and_the_children(tmp_path: Path, number: signal.Signals) -> None:
    pids: list[int] = []

    def run() -> None:
        with run_supervisor(tmp_path, lambda _: None) as supervisor:
            supervisor.start(python("child", SLEEP))
            pids.append(supervisor.pid("child"))
            os.kill(os.getpid(), number)
            pytest.fail("the signal did not end the block")

    # Tests may run under nohup, which ignores the signal.
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        with pytest.raises(KeyboardInterrupt):
            run()
    finally:
        signal.signal(signal.SIGHUP, before)
    assert all(is_gone(pid) for pid in pids)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("poll", [Supervisor.check, lambda supervisor: supervisor.wait_ready(10, "child")])
def test_signal_during_object_deletion_ends_the_block(tmp_path: Path, poll: Callable[[Supervisor], None]) -> None:
    class Deleted:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)

    def run() -> None:
        with run_supervisor(tmp_path, lambda _: None) as supervisor:
            supervisor.start(python("child", SLEEP))
            Deleted()
            poll(supervisor)
            pytest.fail("the signal did not end the block")

    with pytest.raises(KeyboardInterrupt):
        run()


def test_ignored_hangup_does_not_end_the_block(tmp_path: Path) -> None:
    """As under nohup, at logout."""
    code = (
        "import os, signal\n"
        "from pathlib import Path\n"
        "from dsf.up.supervisor import run_supervisor\n"
        f"with run_supervisor(Path({str(tmp_path)!r}), print):\n"
        "    os.kill(os.getpid(), signal.SIGHUP)\n"
        "    print('goes on', signal.getsignal(signal.SIGHUP).name)\n"
    )
    command = ["sh", "-c", 'trap "" HUP; exec "$0" -c "$1"', sys.executable, code]
    process = run_program(command)
    assert process.stdout == "goes on SIG_IGN\n", process.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends children with their parent")
def test_children_end_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from dsf.up.supervisor import Program, Supervisor\n"
        f"made = Supervisor(Path({str(tmp_path)!r}), print)\n"
        f"made.start(Program('child', (sys.executable, '-c', {SLEEP!r})))\n"
        "print(made.pid('child'), flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert not is_gone(child)
        parent.kill()
    wait_for(lambda: is_gone(child), 10)
