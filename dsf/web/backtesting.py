"""Backtests that users start on the page: one at a time, as `dsf backtest` in a process of its own at low priority.

It asks source and scoring API as the page's machine or pod reaches them; in a pod without Secrets, which only managed
clusters have. What came of it is kept for the tab, also why nothing did.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

import redis
import yaml
from pydantic import ValidationError

import dsf.log
from dsf.api.types import CLUSTER_API_VERSION, CLUSTER_KIND
from dsf.backtest.kept import KeptRun, keep, new_id
from dsf.backtest.run import moments
from dsf.backtest.summary import BacktestList
from dsf.errors import BacktestError, DsfError
from dsf.process import threads
from dsf.text import cleaned
from dsf.web.objects import HubObjects
from dsf.web.reading import Reading

log = dsf.log.get(__name__)

#: Most moments of a run that is started here: a day with one each five minutes has 289.
MOST: Final = 1000
#: Seconds after which a run ends with what it has, and for its end.
LIMIT: Final = 600.0
_END: Final = 30.0


class BacktestRunner:
    """Runs one backtest at a time. Thread-safe."""

    def __init__(self, client: redis.Redis, reading: Reading, objects: HubObjects, *, by_name: bool) -> None:
        """`by_name`: a hub on a folder, from which the command reads what was delivered to the cluster."""
        self._redis = client
        self._reading = reading
        self._objects = objects
        self._by_name = by_name
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._is_stopped = False

    def start(self, scorer: str, cluster: str, since: int, every: int, by: str, note_it: Callable[[], None]) -> str:
        """Start one and return its id; `note_it` is called before. `since` and `every` are seconds.

        Raises BacktestError for too many moments, for a scorer that cannot be read, and while another one runs;
        redis.RedisError.
        """
        if (number := len(moments(since, every, time.time()))) > MOST:
            raise BacktestError(
                f"{number} moments are more than {MOST}: ask for a shorter time, or less often; `dsf backtest` has no "
                "such limit"
            )
        manifest = b"" if self._by_name else self._manifest(scorer, cluster)
        with self._lock:
            if self._is_stopped or (self._thread is not None and self._thread.is_alive()):
                raise BacktestError("another backtest runs on this page: try again when it has ended")
            now = time.time()
            run = KeptRun(id=new_id(now), at=now, by=by, way="page", clusters=[cluster], is_running=True)
            keep(self._redis, [scorer], run)
            note_it()
            command = [sys.executable, "-P", "-m", "dsf.cli", "backtest", scorer, "--cluster", cluster]
            command += ["--since", f"{since}s", "--every", f"{every}s", "-o", "json"]
            command += [] if self._by_name else ["-f", "/dev/stdin"]
            self._thread = threads.background(lambda: self._run(scorer, run, command, manifest), "dsf-backtest")
        return run.id

    def stop(self) -> None:
        """End the one that runs; what it has is kept."""
        with self._lock:
            self._is_stopped = True
            thread, process = self._thread, self._process
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGINT)
        if thread is not None:
            thread.join(3.0)
        if process is not None and process.poll() is None:
            process.kill()

    def _manifest(self, scorer: str, cluster: str) -> bytes:
        """The DynamicScorer and the cluster's labels, for `dsf backtest -f`."""
        found = self._objects.scorer(scorer, self._reading.record(scorer).namespace)
        if found is None:
            raise BacktestError(
                f"the DynamicScorer {scorer!r} cannot be read from here: run `dsf backtest` where it can, with --keep"
            )
        labels = self._reading.model.cluster(cluster).labels
        known = {
            "apiVersion": CLUSTER_API_VERSION,
            "kind": CLUSTER_KIND,
            "metadata": {"name": cluster, "labels": labels},
        }
        manifest = found.model_dump(mode="json", by_alias=True, exclude_none=True)
        return yaml.safe_dump_all([manifest, known]).encode()

    def _run(self, scorer: str, run: KeptRun, command: list[str], manifest: bytes) -> None:
        try:
            found, problem = self._asked(command, manifest)
        except OSError as error:
            found, problem = BacktestList(backtests=[]), f"the backtest cannot be started: {error.strerror}"
        ended = run.model_copy(update={"is_running": False, "backtests": found.backtests, "problem": problem})
        try:
            keep(self._redis, [scorer], ended)
        except (redis.RedisError, DsfError) as error:
            log.warning("a backtest cannot be kept", scorer=scorer, error=str(error))

    def _asked(self, command: list[str], manifest: bytes) -> tuple[BacktestList, str]:
        """What the command says, and why that is not all."""
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            self._process = process
            # Viewers go first.
            os.setpriority(os.PRIO_PROCESS, process.pid, 10)
            is_over = False
            try:
                output, said = process.communicate(manifest, timeout=LIMIT)
            except subprocess.TimeoutExpired:
                is_over = True
                process.send_signal(signal.SIGINT)
                try:
                    output, said = process.communicate(timeout=_END)
                except subprocess.TimeoutExpired:
                    process.kill()
                    output, said = process.communicate()
        text = cleaned(said.decode(errors="replace"), 500)
        try:
            found = BacktestList.model_validate_json(output)
        except ValidationError:
            return BacktestList(backtests=[]), text or f"`dsf backtest` ended with exit code {process.returncode}"
        if is_over:
            return found, f"ended after {LIMIT:g} s, with the moments until then"
        return found, text if process.returncode not in (0, 1) else ""
