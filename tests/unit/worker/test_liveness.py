"""An unwritable liveness file fails the probe but not the worker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsf.process import threads
from dsf.process.threads import SupervisedThread
from dsf.worker import liveness
from tests.support.wait import wait_for


class Timer:
    """A timer that calls its repeated function once, immediately."""

    timer: Timer

    def __init__(self) -> None:
        self.timer = self

    def call_repeatedly(self, _: float, call: Callable[[], Any]) -> Timer:
        call()
        return self

    def cancel(self) -> None:
        pass


@pytest.mark.parametrize("folder", ["gone", "a file"])
def test_untouchable_file_stops_no_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    (tmp_path / "a file").touch()
    monkeypatch.setattr(liveness, "find_liveness_file", lambda: tmp_path / folder / "alive")
    worker = Timer()
    step = liveness.Liveness(worker)
    step.start(worker)
    waited: list[int] = []

    def connect(callback: Callable[[], Any]) -> str:
        callback()
        return "connected"

    assert liveness._touch_while_connecting(connect)(callback=lambda: waited.append(1)) == "connected"
    assert waited == [1]
    step.stop(worker)
    # The file is written as soon as that is possible.
    monkeypatch.setattr(liveness, "find_liveness_file", lambda: tmp_path / "alive")
    liveness.keep_alive()
    assert (tmp_path / "alive").exists()


def test_liveness_file_names_failing_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "alive"
    monkeypatch.setattr(liveness, "find_liveness_file", lambda: file)
    broken = SupervisedThread(lambda: 1 / 0, "run-sweeper")
    broken.start()
    wait_for(threads.describe_failing_threads, 60, "it to be noticed")
    liveness.keep_alive()
    assert "run-sweeper" in file.read_text()
    broken.join(60)
    liveness.keep_alive()
    assert file.read_text() == ""
