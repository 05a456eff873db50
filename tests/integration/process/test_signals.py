"""Signals while a process starts, as process 1 of a container, and SIGHUP to a worker that `-m` has started."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.child import Child
from tests.support.redisserver import RedisServer
from tests.support.wait import PATIENCE, wait_for

#: Python reads it at its start: the first import of pydantic says so, and waits.
_SLOW = """
import sys, time, pathlib

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name in ("pydantic", "celery"):
            pathlib.Path({file!r}).touch()
            # A signal that arrives just before the system call does not end it.
            for _ in range(6000):
                time.sleep(0.1)

sys.meta_path.insert(0, Slow())
"""


_UNSHARE = (shutil.which("unshare") or "", "--pid", "--fork")


def _has_namespaces() -> bool:
    return bool(_UNSHARE[0]) and subprocess.run([*_UNSHARE, "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not _has_namespaces(), reason="this user may not make namespaces of processes")
@pytest.mark.parametrize(
    "module_and_arguments", ["dsf.hub", "dsf.agent", "dsf.cli hub", "dsf.cli agent", "dsf.worker beat"]
)
def test_process_1_ends_by_sigterm_while_it_imports(module_and_arguments: str, tmp_path: Path) -> None:
    imports = tmp_path / "imports"
    (tmp_path / "sitecustomize.py").write_text(_SLOW.format(file=str(imports)))
    command = (*_UNSHARE, sys.executable, "-m", *module_and_arguments.split())
    outer = Child(command, tmp_path / "log", {"PYTHONPATH": f"{tmp_path}{os.pathsep}{Path.cwd()}"})
    try:
        wait_for(imports.exists, 60, "the process to import")
        [process] = psutil.Process(outer.pid).children()
        process.send_signal(signal.SIGTERM)
        assert outer.wait(PATIENCE) == 128 + signal.SIGTERM
    finally:
        outer.kill()


@pytest.mark.parametrize(
    "command",
    [
        pytest.param("-P -m dsf.hub", id="hub"),
        # Each is two starts of a worker.
        pytest.param("-m celery -A dsf.celery worker", id="celery-module", marks=pytest.mark.whole),
        pytest.param("-m dsf.worker -A dsf.celery worker", id="our-module"),
    ],
)
def test_worker_restarts_by_sighup_with_its_own_command(
    command: str, redis_server: RedisServer, tmp_path: Path
) -> None:
    values = {"target": "results", "redis_url": redis_server.url, "backend": "dir", "manifests": tmp_path}
    values |= {"signing_secret": "0" * 64, "probe_port": 0}
    environment = {f"DSF_{name.upper()}": str(value) for name, value in values.items()}
    log = tmp_path / "log"
    process = Child((sys.executable, *command.split()), log, environment)
    try:
        wait_for(lambda: " ready." in log.read_text(), 60, "the worker to be ready")
        process.signal(signal.SIGHUP)
        wait_for(lambda: log.read_text().count(" ready.") == 2, 60, "the worker to be ready again")
        process.signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0, process.tail()
    finally:
        process.kill()
