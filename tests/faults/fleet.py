"""A running stack with a scripted scoring API and source, and helpers to read what its users see."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import yaml

from dsf import keys
from dsf.store.history import HistoryEntry
from dsf.store.pairs import OUTCOMES, Pairs, PairState
from dsf.store.schedule import ScheduleStore
from dsf.store.ticks import send_now
from tests.support.httpserver import Handler, ScriptedServer, answer, matrix
from tests.support.stack import Stack
from tests.support.wait import PATIENCE, wait_for

GROUP = "dynamic-scoring.open-cluster-management.io/v1alpha1"
SERIES = {"metric": {"__name__": "up", "node": "n1"}, "values": [[1700000000, "1"], [1700000060, "2"]]}
#: Seconds by which bounded durations may be exceeded, because a busy machine may not run a process for a while.
STALL = PATIENCE
#: Interval in seconds of a scorer that the schedule runs once, at its start. Later cycles are requested by the test.
BY_HAND = 3600
#: Seconds that a requested cycle has. A cycle with a short interval fails on a busy machine.
_PATIENT = 60.0
_Value = TypeVar("_Value")


def scores(*values: float, **labels: str) -> Handler:
    """Return a good response of a scoring API: nodes n1, n2, ... with these scores."""
    results = [
        {"metric": {"node": f"n{number}", **labels}, "score": value} for number, value in enumerate(values, start=1)
    ]
    return answer({"results": results})


class Fleet(Stack):
    """The stack, its servers, and helpers for requests and reads. Pairs are (cluster, scorer)."""

    def __init__(self, folder: Path, clusters: Sequence[str] = ("c1",), **options: Any) -> None:
        super().__init__(folder, clusters, **options)
        self.api = ScriptedServer(answer("no such path", 404))
        self.api.script(answer("ok"), path="/healthz")
        self.source = ScriptedServer(matrix(SERIES))
        self._servers = contextlib.ExitStack()
        #: (scorer, cluster) -> its books after the first good cycle.
        self._first_books: dict[tuple[str, str], dict[str, int]] = {}

    def start(self) -> None:
        """Start everything, with the clusters accepted."""
        self._servers.enter_context(self.api)
        self._servers.enter_context(self.source)
        self.config()
        for cluster in self.clusters:
            spec = {"hubAcceptsClient": True}
            self.write(f"cluster-{cluster}", "cluster.open-cluster-management.io/v1", "ManagedCluster", cluster, spec)
        super().start()

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._servers.close()

    # --- manifests -----------------------------------------------------------------------------------------------

    def write(self, file: str, version: str, kind: str, name: str, spec: Any, **metadata: Any) -> None:
        """Apply a manifest. Replaced as a whole, as editors do it."""
        manifest = {"apiVersion": version, "kind": kind, "metadata": {"name": name, **metadata}, "spec": spec}
        draft = self.manifests / f".{file}.new"
        draft.write_text(yaml.safe_dump(manifest), encoding="utf-8")
        draft.rename(self.manifests / f"{file}.yaml")

    def config(self, *masks: tuple[str, str]) -> None:
        """Apply the DynamicScoringConfig with these masks (cluster, score)."""
        spec = {"masks": [{"clusterName": cluster, "scoreName": score} for cluster, score in masks]}
        self.write("config", GROUP, "DynamicScoringConfig", "dynamic-scoring-config", spec)

    def scorer(
        self,
        name: str,
        response_handler: Handler | None = None,
        *,
        interval: int = 1,
        query: str = "",
        source: str = "",
        kind: str = "Prometheus",
        execution: Mapping[str, Any] | None = None,
        annotations: Mapping[str, str] | None = None,
        **spec: Any,
    ) -> None:
        """Apply a DynamicScorer, and optionally set the handler of the scoring API for it.

        With `query` its source is of this `kind` at the URL `source`, by default the scripted one; else it has none.
        Its score is `<name>-score`, its path at the scripted servers `/<name>`.
        """
        if response_handler is not None:
            self.api.script(response_handler, path=f"/{name}")
        source_spec: dict[str, Any] = {"type": "None"}
        if query:
            path = {} if source else {"path": f"/{name}"}
            params = {"query": query, "range": 60, "step": 5}
            source_spec = {"type": kind, "host": source or self.source.url, "params": params, **path}
        body = {
            "description": "a test's",
            "configURL": f"{self.api.url}/config",
            "configSyncMode": "None",
            "scoreDimensionFormat": "${node}",
            "source": source_spec,
            "scoring": {"path": f"/{name}", "params": {"name": f"{name}-score", "interval": interval}},
            "execution": dict(execution or {}),
            **spec,
        }
        self.write(f"scorer-{name}", GROUP, "DynamicScorer", name, body, annotations=dict(annotations or {}))

    # --- results -------------------------------------------------------------------------------------------------

    def read(self, file: str) -> Any:
        """Return an object that the hub wrote, or None."""
        try:
            return yaml.load((self.out / file).read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
        except FileNotFoundError:
            return None

    def status(self, scorer: str) -> dict[str, Any]:
        """Status of a DynamicScorer."""
        return ((self.read(f"dynamicscorers/{scorer}.yaml") or {}).get("status") or {}) | {}

    def condition(self, scorer: str, kind: str) -> tuple[str, str, str]:
        """(status, reason, message) of a condition."""
        for condition in self.status(scorer).get("conditions") or []:
            if condition["type"] == kind:
                return condition["status"], condition["reason"], condition.get("message", "")
        return "", "", ""

    def failures(self, scorer: str, cluster: str = "c1") -> list[dict[str, Any]]:
        """Return the failures in the status of a DynamicScorer, on one cluster."""
        return [failure for failure in self.status(scorer).get("failures") or [] if failure["cluster"] == cluster]

    def object(self, scorer: str, cluster: str = "c1") -> dict[str, Any] | None:
        """Return the AddOnPlacementScore, or None."""
        score_object = self.read(f"clusters/{cluster}/addonplacementscores/{scorer}-score.yaml")
        return score_object if isinstance(score_object, dict) else None

    def items(self, scorer: str, cluster: str = "c1") -> dict[str, int] | None:
        """Return the values that Placement reads (item name -> value), or None without an object."""
        score_object = self.object(scorer, cluster)
        return (
            None
            if score_object is None
            else {item["name"]: item["value"] for item in score_object["status"].get("scores") or []}
        )

    def state(self, scorer: str, cluster: str = "c1") -> PairState:
        """Return the books and the state of a pair."""
        return Pairs(self.redis).read_state(cluster, scorer)

    def history(self, scorer: str, cluster: str = "c1") -> list[HistoryEntry]:
        """Return the newest cycles of a pair, newest first."""
        return Pairs(self.redis).read_history(cluster, scorer)

    def open_runs(self) -> list[str]:
        """Runs that have not ended, as `<cluster>/<scorer>/<run id>`."""
        return [str(member) for member in self.redis.zrange(keys.OPEN_RUNS, 0, -1)]

    @property
    def schedule(self) -> ScheduleStore:
        """The schedule, as beat sees it."""
        return ScheduleStore(self.redis)

    # --- waiting and checking ------------------------------------------------------------------------------------

    def until(self, condition: Callable[[], _Value], message: str = "", timeout: float = 20.0) -> _Value:
        """Wait until `condition` is true. AssertionErrors in it count as not yet."""
        return wait_for(condition, timeout, message, interval=0.1)

    def wait_success(self, scorer: str, cluster: str = "c1", *, cycles: int = 1, timeout: float = 20.0) -> float:
        """Wait until so many more cycles have ended well; the seconds that took."""
        started, before = time.monotonic(), self.state(scorer, cluster).count("ok")
        self.until(
            lambda: self.state(scorer, cluster).count("ok") >= before + cycles,
            f"{cycles} more good cycles of {scorer} on {cluster}; the books were {self.books(scorer, cluster)}",
            timeout,
        )
        return time.monotonic() - started

    def books(self, scorer: str, cluster: str = "c1") -> dict[str, int]:
        """Outcome -> number, with `scheduled` and `open`."""
        state = self.state(scorer, cluster)
        return {outcome: state.count(outcome) for outcome in ("scheduled", *OUTCOMES)} | {"open": state.open}

    def check_books(self, scorer: str, cluster: str = "c1") -> None:
        """Check that the books balance: exactly the runs without an end are open, and no run ended twice."""
        pair = keys.pair(cluster, scorer)
        # Both in one transaction: beat and the results worker go on.
        with self.redis.pipeline(transaction=True) as pipe:
            pipe.hgetall(keys.pair_key(cluster, scorer))
            pipe.zrange(keys.OPEN_RUNS, 0, -1)
            fields, members = pipe.execute()
        state = PairState(cluster, scorer, fields)
        waiting = [member for member in members if member.rpartition("/")[0] == pair]
        assert state.open == len(waiting), f"{pair}: {self.books(scorer, cluster)}, open: {waiting}"
        runs = [entry.run for entry in self.history(scorer, cluster)]
        assert len(runs) == len(set(runs)), f"{pair} has a run twice: {runs}"

    def score_now(self, scorer: str, cluster: str = "c1") -> HistoryEntry:
        """Request a cycle with enough time, and wait for its end.

        If it coincides with a scheduled cycle, which excludes it, request another one.
        """
        while True:
            run = send_now(self.redis, cluster, scorer, _PATIENT, queue_limit=100)

            def finished_entries(run: str = run) -> list[HistoryEntry]:
                return [entry for entry in self.history(scorer, cluster) if entry.run == run]

            entry = self.until(finished_entries, f"the end of run {run} of {scorer} on {cluster}")[0]
            if entry.reason != "overlap":
                return entry

    def first_score(self, scorer: str, cluster: str = "c1") -> None:
        """Wait for the first successful cycle of a scorer; request one if the scheduled one fails."""

        def has_scored() -> bool:
            state = self.state(scorer, cluster)
            if state.scheduled and not state.open and not state.count("ok"):
                send_now(self.redis, cluster, scorer, _PATIENT, queue_limit=100)
            return state.count("ok") > 0

        self.until(has_scored, f"the first score of {scorer} on {cluster}")
        self._first_books[scorer, cluster] = self.books(scorer, cluster)

    def failed_since(self, scorer: str, cluster: str = "c1") -> dict[str, int]:
        """How many cycles failed or were lost since `first_score`."""
        books, first = self.books(scorer, cluster), self._first_books[scorer, cluster]
        return {outcome: books[outcome] - first[outcome] for outcome in ("error", "lost")}

    @contextlib.contextmanager
    def expect_unaffected(self, scorer: str, cluster: str = "c1") -> Iterator[None]:
        """Check that no cycle of this pair fails inside the block, and that it continues to score.

        Its interval is BY_HAND, so cycles are requested one after another, and once more at the end.
        """
        before = self.state(scorer, cluster)
        over = threading.Event()

        def ask() -> list[HistoryEntry]:
            entries = []
            while not over.wait(1):
                entries.append(self.score_now(scorer, cluster))
            return [*entries, self.score_now(scorer, cluster)]

        with ThreadPoolExecutor(1) as thread:
            asking = thread.submit(ask)
            try:
                yield
            finally:
                over.set()
            entries = asking.result()
        assert [entry for entry in entries if entry.outcome != "ok"] == []
        after = self.state(scorer, cluster)
        for outcome in ("error", "lost"):
            assert after.count(outcome) == before.count(outcome), self.history(scorer, cluster)[:5]
        assert after.count("ok") > before.count("ok")

    def check_failure(
        self,
        scorer: str,
        stage: str,
        reason: str,
        *expected_texts: str,
        cluster: str = "c1",
        timeout: float = 20.0,
        counted_by_agent: bool = True,
    ) -> str:
        """Return the reason stands in the status, `dsf status`, the history and /metrics; returns the message."""

        def failure() -> dict[str, Any] | None:
            failures = self.failures(scorer, cluster)
            if not failures or (failures[0]["stage"], failures[0]["reason"]) != (stage, reason):
                return None
            # A cycle without time on a busy machine fails for that reason, and the next one as it should.
            status, _, message = self.condition(scorer, "Scoring")
            assert status == "False"
            assert reason in message
            return failures[0]

        def expectation() -> str:
            return f"{stage} {reason} in the status of {scorer}; there is {self.failures(scorer, cluster)}"

        first_failure = self.until(failure, expectation(), timeout) or {}
        for expected_text in expected_texts:
            assert expected_text in first_failure["message"], first_failure["message"]

        self.until(
            lambda: self._status_shows_failure(scorer, cluster, stage, reason),
            f"{stage} {reason} in `dsf status {scorer}`",
        )
        cycles = self.page(self.web, f"/api/v1/history/{cluster}/{scorer}").json()["cycles"]
        assert (stage, reason) in {(cycle["stage"], cycle["reason"]) for cycle in cycles}

        labels = {"ds_score_name": f"{scorer}-score", "stage": stage, "reason": reason}
        assert self.metric(self.web, "dynamic_scoring_failures_total", **labels)
        if counted_by_agent:
            assert self.metric(f"agent {cluster}", "dynamic_scoring_failures_total", **labels)
        return str(first_failure["message"])

    def _status_shows_failure(self, scorer: str, cluster: str, stage: str, reason: str) -> bool:
        """Whether `dsf status` shows this failure."""
        process = self.dsf("status", scorer, "-o", "json")
        assert process.returncode == 1, process.stdout + process.stderr
        reasons = json.loads(process.stdout)["scorers"][0]["reasons"]
        return (cluster, stage, reason) in {(entry["cluster"], entry["stage"], entry["reason"]) for entry in reasons}

    def check_cleared(self, scorer: str, cluster: str = "c1", timeout: float = 20.0) -> None:
        """Check that no failure is reported any more and that a score exists."""
        self.until(lambda: not self.failures(scorer, cluster), f"no failure in the status of {scorer}", timeout)
        self.until(lambda: self.condition(scorer, "Scoring")[0] == "True", f"{scorer} to be Scoring", timeout)

        def web_state() -> tuple[object, object]:
            row = self.page(self.web, f"/api/v1/scorers?scorer={scorer}").json()["scorers"][0]
            return row["reasons"], row["states"]["failing"]

        self.until(lambda: web_state() == ([], 0), f"the exporter to show no failure of {scorer}", timeout)
        self.check_books(scorer, cluster)
