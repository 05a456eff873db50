"""Sends the ticks that users request, and waits for their results."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence

import redis
from pydantic import Field

from dsf import keys
from dsf.errors import QueueFullError, UnknownScorerError
from dsf.fleet.pairviews import make_score_view
from dsf.fleet.views import ScoreView, Time, View
from dsf.process import hubclock
from dsf.settings import Settings
from dsf.store.agents import count_waiting_results
from dsf.store.entries import apply_overrides
from dsf.store.history import HistoryEntry
from dsf.store.pairs import SUCCESSES, Pairs
from dsf.store.registry import Registry
from dsf.store.schedule import ScheduleStore
from dsf.store.ticks import send_now


class RunView(View):
    """A requested run. `run_id` is empty if the tick was not sent, and `outcome` is empty until the run has ended."""

    cluster: str
    run_id: str = ""
    outcome: str = ""
    stage: str = ""
    reason: str = ""
    message: str = ""
    timings: dict[str, float] = Field(default_factory=dict)
    counts: dict[str, int] = Field(default_factory=dict)

    has_score: bool = Field(
        default=False, description="True if the run produced a score, possibly the score for an empty response."
    )


class RescoreReport(View):
    """Outcomes of the requested runs, and the scores of the successful runs."""

    at: Time
    scorer: str
    runs: list[RunView]
    scores: list[ScoreView] = Field(default_factory=list)


def send_ticks(
    client: redis.Redis, settings: Settings, scorer: str, clusters: Sequence[str] | None
) -> Iterator[RunView]:
    """Send one tick to each cluster and yield its run. With None, send a tick to each cluster on which the scorer runs.

    Sends each tick when the iterator reaches its cluster. A cluster whose queue is full, because its agent is down,
    gets no tick, and its run has no run id. Raises UnknownScorerError and UnknownClusterError before any tick is sent,
    and redis.RedisError.
    """
    registry = Registry(client)
    registry.read_scorer(scorer)
    store = ScheduleStore(client)
    entries = {entry.cluster: entry for entry in store.read_entries_of(scorer)}
    target_clusters = list(dict.fromkeys(clusters)) if clusters else list(entries)
    if not target_clusters:
        raise UnknownScorerError(f"scorer {scorer!r} runs on no cluster now; `dsf status {scorer}` may say why")
    for cluster in target_clusters:
        registry.read_cluster(cluster)
        if cluster not in entries:
            raise UnknownScorerError(
                f"scorer {scorer!r} does not run on cluster {cluster!r}: it is masked there, not healthy, or not "
                f"distributed yet; it runs on: {', '.join(entries) or 'none'}"
            )
    overrides = store.read_overrides()
    now = hubclock.now()
    for cluster in target_clusters:
        interval = apply_overrides(entries[cluster], overrides, now).interval
        try:
            run_id = send_now(client, cluster, scorer, interval, queue_limit=settings.queue_limit)
            yield RunView(cluster=cluster, run_id=run_id)
        except QueueFullError as error:
            yield RunView(cluster=cluster, message=str(error))


def make_unfinished_report(scorer: str, runs: Sequence[RunView]) -> RescoreReport:
    """Return the report without waiting for the runs to end."""
    return RescoreReport(at=hubclock.now(), scorer=scorer, runs=list(runs))


def wait_for_end(client: redis.Redis, scorer: str, runs: Sequence[RunView], deadline: float) -> RescoreReport:
    """Wait until each run has ended, at most until `deadline` (time.monotonic()). Raises redis.RedisError."""
    while True:
        runs = read_outcomes(client, scorer, runs)
        if not any(map(is_open, runs)) or time.monotonic() >= deadline:
            return make_report(client, scorer, runs)
        # Poll often, because a cycle takes tens of milliseconds.
        time.sleep(0.1)


def is_open(run: RunView) -> bool:
    """True if a run was sent and has not ended."""
    return bool(run.run_id) and not run.outcome


def read_outcomes(client: redis.Redis, scorer: str, runs: Sequence[RunView]) -> list[RunView]:
    """Return the runs, with the outcomes of those that have ended. Raises redis.RedisError."""
    pairs = Pairs(client)
    return [
        _make_run_view(run.cluster, entry)
        if is_open(run) and (entry := find_cycle(pairs.read_history(run.cluster, scorer), run.run_id)) is not None
        else run
        for run in runs
    ]


def make_report(client: redis.Redis, scorer: str, runs: Sequence[RunView]) -> RescoreReport:
    """Return the outcomes of the runs, and the scores of runs that have one. Raises redis.RedisError.

    The scores of large fleets take a lot of memory; `explain_runs` does not read them.
    """
    explained_runs = explain_runs(client, scorer, runs)
    records = Registry(client).read_scorers()
    now = hubclock.now()
    scored_pairs = [(run.cluster, scorer) for run in explained_runs if run.has_score]
    scores = [make_score_view(pair, records, now) for pair in Pairs(client).read_states(scored_pairs)]
    return RescoreReport(at=now, scorer=scorer, runs=explained_runs, scores=scores)


def explain_runs(client: redis.Redis, scorer: str, runs: Sequence[RunView]) -> list[RunView]:
    """Return the runs, and which of them have a score. Raises redis.RedisError.

    The message of a run without a result names the probable cause.
    """
    explained_runs = [
        run.model_copy(update={"message": _explain_open_run(client, run.cluster, scorer)}) if is_open(run) else run
        for run in runs
    ]
    return _find_scored_runs(client, scorer, explained_runs)


def _make_run_view(cluster: str, entry: HistoryEntry) -> RunView:
    return RunView(cluster=cluster, run_id=entry.run, **entry.model_dump(exclude={"run", "at"}))


def find_cycle(history: Iterable[HistoryEntry], run: str) -> HistoryEntry | None:
    """Return the cycle of a run in the history of its pair; None if it has not ended."""
    return next((entry for entry in history if entry.run == run), None)


def _find_scored_runs(client: redis.Redis, scorer: str, runs: Sequence[RunView]) -> list[RunView]:
    """Return the runs with `has_score` set for those that gave a score."""
    record = Registry(client).read_scorers().get(scorer)
    has_empty_value = record is not None and record.when_empty.behavior == "Value"
    count_name = "results" if record is not None and not record.is_published else "items"
    return [
        run.model_copy(
            update={
                "has_score": run.outcome == "ok"
                or (run.outcome in SUCCESSES and (has_empty_value or run.counts.get(count_name, 0) > 0))
            }
        )
        for run in runs
    ]


def _explain_open_run(client: redis.Redis, cluster: str, scorer: str) -> str:
    """Return the probable cause of a missing result, by the lengths of the cluster's queue and mailbox."""
    waiting_ticks = client.llen(keys.spoke_queue(cluster))
    waiting_results = count_waiting_results(client, [cluster])
    if waiting_ticks:
        return f"not heard of in time; messages waiting in spoke.{cluster}: {waiting_ticks}; does its agent run?"
    if waiting_results:
        return f"not heard of in time; results waiting in its mailbox: {waiting_results}; does the service results run?"
    return (
        "not heard of in time; the agent has taken the tick, so the cycle is slow or the agent has died; "
        f"`dsf history {scorer} --cluster {cluster}` will say how it ended"
    )
