"""Runs the backtests and comparisons that users start on the page, one at a time.

A run is a separate process of `dsf backtest` or `dsf compare` at low priority, which ends with the web service. The
process sends its requests to source and scoring API from the machine or pod of the web service. In a pod it has no
Secrets, because only managed clusters have them. The result, or the reason why there is none, is stored in Redis for
the tab.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import redis
from pydantic import ValidationError

import dsf.log
from dsf.api import kubeyaml
from dsf.api.scorer import DynamicScorer
from dsf.api.types import CLUSTER_API_VERSION, CLUSTER_KIND, ConfigSyncMode
from dsf.api.urls import TokenHosts
from dsf.backtest.comparison import ComparisonView
from dsf.backtest.errors import BacktestError
from dsf.backtest.run import list_moments
from dsf.backtest.runstore import KeptRun, make_run_id, store_run
from dsf.backtest.scorers import read_objects, read_summary_from_manifest
from dsf.backtest.summary import BacktestList
from dsf.errors import DsfError
from dsf.hub.admission import find_server_refusal, list_servers
from dsf.process import hubclock, threads
from dsf.process.children import tie_to_parent
from dsf.text import clean
from dsf.web.pages import Sources

log = dsf.log.get(__name__)

#: Maximum moments of a run on the page, on all clusters together. A day with a moment every five minutes has 289 on
#: each cluster.
MAX_MOMENTS: Final = 1000
#: Maximum seconds of a run, and the seconds that an ended run has to write its result.
MAX_RUN_SECONDS: Final = 600.0
_STOP_SECONDS: Final = 30.0


@dataclass(frozen=True)
class RunRequest:
    """A backtest of `scorer`, or its comparison with `other`."""

    scorer: str
    clusters: Sequence[str]
    #: Seconds of the past, and seconds between two moments. 0 compares the current scores.
    since: int = 0
    every: int = 0
    other: str = ""

    @property
    def scorers(self) -> list[str]:
        """The compared scorers, or the tested one."""
        return [self.scorer, self.other] if self.other else [self.scorer]

    def make_command(self, names: Sequence[str]) -> list[str]:
        """Return the command line of the run; `names` are the scorers' names, or files with their manifests."""
        command = [sys.executable, "-P", "-m", "dsf.cli"]
        command += ["compare", *names] if self.other else ["backtest", self.scorer]
        if not self.other and names[0] != self.scorer:
            command += ["-f", names[0]]
        if self.every:
            command += ["--since", f"{self.since}s", "--every", f"{self.every}s"]
        return [*command, *(text for name in self.clusters for text in ("--cluster", name)), "-o", "json"]

    def parse_output(self, output: bytes) -> dict[str, Any]:
        """Return the result of the command, as fields of KeptRun. Raises ValidationError."""
        if self.other:
            return {"comparison": ComparisonView.model_validate_json(output)}
        return {"backtests": BacktestList.model_validate_json(output).backtests}


class BacktestRunner:
    """Runs one backtest or comparison at a time. Thread-safe."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._redis = sources.reading.redis
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._is_stopped = False

    def start(self, request: RunRequest, by: str, record_change: Callable[[], None]) -> str:
        """Start a run and return its id. `record_change` is called before the process starts.

        Raises BacktestError for too many moments, for a scorer that cannot be read, and while another run is active;
        redis.RedisError.
        """
        if request.every:
            number = len(list_moments(request.since, request.every, hubclock.now())) * len(request.clusters)
            if number > MAX_MOMENTS:
                raise BacktestError(
                    f"{number} moments are more than {MAX_MOMENTS}: ask for a shorter time, less often, or on fewer "
                    "clusters; `dsf backtest` and `dsf compare` have no such limit"
                )
        # The command finds scorers by name for current scores, and for a hub with the folder backend, where it reads
        # the summary that was delivered to the cluster.
        uses_names = self._sources.settings.backend == "dir" or not request.every
        manifests = [] if uses_names else [self._dump_manifest(name, request.clusters) for name in request.scorers]
        for manifest in manifests:
            self._check_servers(manifest, request.clusters)
        with self._lock:
            if self._is_stopped or (self._thread is not None and self._thread.is_alive()):
                raise BacktestError("another backtest or comparison runs on this page: try again when it has ended")
            now = hubclock.now()
            run = KeptRun(
                id=make_run_id(now), at=now, by=by, way="page", clusters=list(request.clusters), is_running=True
            )
            run = run.model_copy(update={"scorers": request.scorers if request.other else []})
            store_run(self._redis, request.scorers, run)
            record_change()
            self._thread = threads.run_in_background(lambda: self._run(request, run, manifests), "dsf-backtest")
        return run.id

    def stop(self) -> None:
        """End the active run, and keep its moments so far."""
        with self._lock:
            self._is_stopped = True
            thread, process = self._thread, self._process
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGINT)
        if thread is not None:
            thread.join(_STOP_SECONDS)
        if process is not None and process.poll() is None:
            process.kill()

    def _dump_manifest(self, scorer: str, clusters: Sequence[str]) -> str:
        """Return the manifests of the DynamicScorer, its inputs, and the clusters with their labels, as YAML.

        Raises BacktestError if a DynamicScorer cannot be read, UnknownScorerError.
        """
        namespace = self._sources.reading.registry.read_scorer(scorer).namespace
        scorer_objects: list[DynamicScorer] = []
        names = [scorer]
        # The list grows during the loop by the inputs of each composite.
        for name in names:
            scorer_object = self._sources.read_scorer(name, namespace)
            if scorer_object is None:
                raise BacktestError(
                    f"the DynamicScorer {name!r} cannot be read from here: run `dsf backtest` where it can, with --keep"
                )
            scorer_objects.append(scorer_object)
            input_names = dict.fromkeys(score.scorer for score in scorer_object.spec.source.scores or ())
            names += [input_name for input_name in input_names if input_name not in names]
        labels = self._sources.reading.fleet_queries.labels()
        cluster_manifests = [
            {
                "apiVersion": CLUSTER_API_VERSION,
                "kind": CLUSTER_KIND,
                "metadata": {"name": name, "labels": labels.get(name, {})},
            }
            for name in clusters
        ]
        manifests = [item.model_dump(mode="json", by_alias=True, exclude_none=True) for item in scorer_objects]
        return "---\n".join(map(kubeyaml.dump, [*manifests, *cluster_manifests]))

    def _check_servers(self, manifest: str, clusters: Sequence[str]) -> None:
        """Raise BacktestError if a scorer of another namespace names a server that DSF_SCORER_HOSTS does not have."""
        settings = self._sources.settings
        allowed_hosts = TokenHosts(settings.scorer_hosts)
        if not allowed_hosts:
            return
        with TemporaryDirectory(prefix="dsf-backtest-") as folder:
            file = Path(folder, "scorer.yaml")
            file.write_text(manifest, encoding="utf-8")
            scorers = [item for item in read_objects(file) if isinstance(item, DynamicScorer)]
            for scorer in scorers:
                if scorer.metadata.namespace == settings.namespace:
                    continue
                refusal = find_server_refusal(allowed_hosts, filter(None, [scorer.spec.config_url]))
                if scorer.spec.config_sync_mode is ConfigSyncMode.Full and scorer.status.last_synced_config is None:
                    refusal = refusal or "the hub has not read its /config yet: try again when it has"
                for cluster in () if refusal else clusters:
                    summary = read_summary_from_manifest(file, scorer.metadata.name, cluster)
                    refusal = refusal or find_server_refusal(allowed_hosts, list_servers(summary))
                if refusal:
                    raise BacktestError(f"scorer {scorer.metadata.name!r}: {refusal}")

    def _run(self, request: RunRequest, run: KeptRun, manifests: Sequence[str]) -> None:
        try:
            with TemporaryDirectory(prefix="dsf-backtest-") as folder:
                names = list(request.scorers)
                for number, text in enumerate(manifests):
                    file = Path(folder, f"{names[number]}.yaml")
                    file.write_text(text, encoding="utf-8")
                    names[number] = str(file)
                views, problem = self._run_command(request, request.make_command(names))
        except OSError as error:
            views, problem = {}, f"it cannot be started: {error.strerror}"
        finished_run = run.model_copy(update={"is_running": False, "problem": problem, **views})
        try:
            store_run(self._redis, request.scorers, finished_run)
        except (redis.RedisError, DsfError) as error:
            log.warning("a backtest cannot be kept", scorer=request.scorer, error=str(error))

    def _run_command(self, request: RunRequest, command: list[str]) -> tuple[dict[str, Any], str]:
        """Return the result of the command as fields of KeptRun, and why it is incomplete; empty if it is complete."""
        with subprocess.Popen(
            tie_to_parent(command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            self._process = process
            # Lower the priority of the process, because pages come first.
            os.setpriority(os.PRIO_PROCESS, process.pid, 10)
            has_timed_out = False
            try:
                output, error_output = process.communicate(timeout=MAX_RUN_SECONDS)
            except subprocess.TimeoutExpired:
                has_timed_out = True
                process.send_signal(signal.SIGINT)
                try:
                    output, error_output = process.communicate(timeout=_STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()
                    output, error_output = process.communicate()
        text = clean(error_output.decode(errors="replace"), 500)
        try:
            views = request.parse_output(output)
        except ValidationError:
            return {}, text or f"the command ended with exit code {process.returncode}"
        if has_timed_out:
            return views, f"ended after {MAX_RUN_SECONDS:g} s, with the moments until then"
        return views, text if process.returncode not in (0, 1) else ""
