"""Failing threads are restarted, and readiness reports them meanwhile."""

from __future__ import annotations

import ast
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import dsf
from dsf.process import threads
from dsf.process.threads import SupervisedThread
from tests.support.wait import wait_for


@pytest.mark.parametrize("error", [OverflowError("timeout value is too large"), SystemExit(1)])
def test_work_that_fails_starts_again_until_it_returns(error: BaseException) -> None:
    went_on, stop = threading.Event(), threading.Event()
    errors = [error]

    def work() -> None:
        if errors:
            raise errors.pop()
        went_on.set()
        stop.wait()

    thread = SupervisedThread(work, "t")
    thread.start()
    assert went_on.wait(60)
    assert threads.describe_failing_threads() == ""
    stop.set()
    thread.join(60)
    assert not thread.is_alive()


def test_work_that_fails_again_and_again_is_reported_until_it_ends_or_recovers(monkeypatch: pytest.MonkeyPatch) -> None:
    is_mended, stop = threading.Event(), threading.Event()

    def work() -> None:
        if not is_mended.is_set():
            raise RuntimeError("broken")
        stop.wait()

    mended, broken = SupervisedThread(work, "mended"), SupervisedThread(lambda: 1 / 0, "broken")
    mended.start()
    broken.start()
    wait_for(lambda: "broken, mended" in threads.describe_failing_threads(), 60, "readiness to say it")
    broken.join(60)
    assert threads.describe_failing_threads() == "threads fail again and again: mended; the log says why"
    monkeypatch.setattr(threads, "_RECOVERY_SECONDS", 0.0)
    is_mended.set()
    wait_for(lambda: threads.describe_failing_threads() == "", 60, "recovery")
    stop.set()
    mended.join(60)


def test_thread_can_be_joined_before_its_start_and_by_itself() -> None:
    SupervisedThread(lambda: None, "never").join()
    joined = threading.Event()

    def work() -> None:
        thread.join()
        joined.set()

    thread = SupervisedThread(work, "itself")
    thread.start()
    assert joined.wait(60)


_STARTS = ("Thread", "Timer", "start_new_thread")


def _starts_thread(file: Path, place: str) -> Iterator[str]:
    text = file.read_text(encoding="utf-8")
    # Parsing all modules takes a second.
    for node in ast.walk(ast.parse(text)) if any(name in text for name in _STARTS) else ():
        called = node.func if isinstance(node, ast.Call) else None
        name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
        if name in _STARTS:
            yield f"{file.relative_to(place)}:{node.lineno}"  # type: ignore[attr-defined]


def test_no_other_module_starts_a_thread() -> None:
    starts = [
        start for place in dsf.__path__ for file in Path(place).rglob("*.py") for start in _starts_thread(file, place)
    ]
    # The independent scorer library serves a scorer beside its test cases.
    assert {start.partition(":")[0] for start in starts} == {"process/threads.py", "conformance/inprocess.py"}
