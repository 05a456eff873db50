"""Finds interruptions of the path from a due pair to a written score. No other module decides this.

Each stage is monitored by its data in Redis: beat by overdue pairs, the results worker by its heartbeats, and agents by
runs without a result. Page, command line, JSON API, readiness probes and alerts report the first problem.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import redis

from dsf import keys
from dsf.fleet.snapshot import Rows
from dsf.fleet.verdict import Verdict
from dsf.messages import is_run_id, run_time
from dsf.store.client import parse_number
from dsf.store.heartbeats import HEARTBEAT_SECONDS, list_stalled_stages
from dsf.store.pairs import Pairs
from dsf.store.server import read_problems
from dsf.store.ticks import RUN_SLACK, find_memory_problem, find_ticks_problem, find_writes_problem
from dsf.store.writes import TURN_AT_FIELD

#: Seconds after the latest end of a cycle from which a missing result is late.
LATE_RESULT_SECONDS: Final = 10.0
#: Seconds without a pass after which the score writer is late. It makes several passes per second, and after a failure
#: another hub takes over within 15 s.
LATE_WRITER_SECONDS: Final = 60.0
#: Maximum number of checked runs. The oldest runs suffice for a diagnosis.
_MAX_CHECKED_RUNS: Final = 1000


class Interruption(NamedTuple):
    """A reason why scores do not arrive or are not written."""

    #: A member of `STAGES`, or a kind of problem of `dsf.store.server`.
    stage: str
    message: str


class _Path(NamedTuple):
    """The data from which the stages are checked."""

    client: redis.Redis
    rows: Rows
    #: Unix seconds.
    now: float


def _describe_redis_problem(path: _Path) -> str:
    """Return the reason why Redis rejects writes of the hub or of agents; empty if it accepts them."""
    return find_writes_problem(path.client) or find_memory_problem(path.client)


def _describe_ticks_problem(path: _Path) -> str:
    """Return the reason why beat sends no due ticks; empty if it does, or if Redis rejects writes."""
    problem = find_ticks_problem(path.client, path.now)
    return problem if problem and not find_writes_problem(path.client) else ""


def _find_stalled_stages(path: _Path) -> set[str]:
    """Return the stalled stages of the service `results`; empty if no run waits for its result."""
    oldest_members: Any = path.client.zrange(keys.OPEN_RUNS, 0, 0)
    run = str(oldest_members[0]).rpartition("/")[2] if oldest_members else ""
    if not is_run_id(run) or run_time(run) > path.now - HEARTBEAT_SECONDS[keys.RESULTS_STAGE]:
        return set()
    return set(list_stalled_stages(path.client))


def _describe_results_problem(path: _Path) -> str:
    """Return the reason why mailboxes are not read; empty if the service `results` reads them."""
    if keys.RESULTS_STAGE not in _find_stalled_stages(path):
        return ""
    seconds = HEARTBEAT_SECONDS[keys.RESULTS_STAGE]
    return (
        f"no results are taken in: the service results has not read the mailboxes for {seconds} s; check that it "
        "runs and reaches Redis, and its log"
    )


def _describe_books_problem(path: _Path) -> str:
    """Return the reason why lost runs are not counted; empty if the service `results` counts them or reads nothing."""
    if keys.SWEEP_STAGE not in _find_stalled_stages(path) or _describe_results_problem(path):
        return ""
    seconds = HEARTBEAT_SECONDS[keys.SWEEP_STAGE]
    return f"lost cycles are not reported: the service results has not looked for them for {seconds} s; see its log"


def _describe_agents_problem(path: _Path) -> str:
    """Return a sentence about agents that take no ticks or send no results; empty if all agents work.

    The text is also empty if another stage explains missing results: mailboxes are not read, or Redis rejects writes.
    """
    # Runs are sorted by their deadline, which is RUN_SLACK after the latest end of the cycle.
    overdue_members: Any = path.client.zrange(
        keys.OPEN_RUNS,
        "-inf",
        path.now + RUN_SLACK - LATE_RESULT_SECONDS,
        byscore=True,
        offset=0,
        num=_MAX_CHECKED_RUNS,
    )
    silent_clusters: dict[str, str] = {}
    for member in map(str, overdue_members):
        pair, _, run = member.rpartition("/")
        cluster, scorer = keys.split_pair(pair)
        row = path.rows.get(scorer, {}).get(cluster)
        # Skip failing pairs, which report their own reason. Below, skip runs before the last success: their missing
        # result is a single lost cycle.
        if row is None or not is_run_id(run) or row.find_state(path.now) not in (Verdict.OK, Verdict.EMPTY):
            continue
        if (row.last_success or 0.0) < run_time(run):
            silent_clusters.setdefault(cluster, scorer)
    if not silent_clusters or _describe_results_problem(path) or _describe_redis_problem(path):
        return ""
    cluster, scorer = next(iter(silent_clusters.items()))
    with path.client.pipeline(transaction=False) as pipe:
        pipe.exists(*keys.mail_slots(cluster))
        pipe.llen(keys.spoke_queue(cluster))
        mail, queue = pipe.execute()
    suffix = f" (and of {len(silent_clusters) - 1} more)" if len(silent_clusters) > 1 else ""
    cause = "its agent took the tick and sends no result: see its log"
    if mail:
        cause = "results wait in its mailbox and are not taken in: see the log of the service results"
    elif queue:
        cause = f"its agent takes no ticks, {queue} in its queue; check that it runs and reaches Redis"
    return (
        f"no results of {cluster} arrive{suffix}: the last cycle of {scorer} had to end "
        f"{LATE_RESULT_SECONDS:.0f} s ago; {cause}"
    )


def _describe_objects_problem(path: _Path) -> str:
    """Return the reason why AddOnPlacementScores are not written; empty if the elected hub controller writes all."""
    turn_at: Any = path.client.hget(keys.WRITE_STATS, TURN_AT_FIELD)
    idle_seconds = path.now - parse_number("counter", TURN_AT_FIELD, turn_at)
    if turn_at is not None and idle_seconds > LATE_WRITER_SECONDS and path.rows:
        return (
            f"scores are not written: the score writer has done nothing for {idle_seconds:.0f} s; check that a hub "
            "controller is elected and runs, and its log"
        )
    causes = {pair: cause for pair, cause in Pairs(path.client).read_unwritten().items() if not cause.is_upstream_score}
    if not causes:
        return ""
    pair, cause = next(iter(causes.items()))
    return f"{len(causes)} scores are not written as AddOnPlacementScores; {pair}: {cause.reason}: {cause.message}"


#: Stage -> function that describes its problem, in the order of the path: an earlier problem explains later problems.
STAGES: Final[Mapping[str, Callable[[_Path], str]]] = {
    "redis": _describe_redis_problem,
    "ticks": _describe_ticks_problem,
    "results": _describe_results_problem,
    "books": _describe_books_problem,
    "agents": _describe_agents_problem,
    "objects": _describe_objects_problem,
}
#: Stages of the hub's processes that decide about readiness. Redis is omitted, because it can be read while it rejects
#: writes.
HUB_STAGES: Final = ("ticks", "results", "books")


def find_path_problems(client: redis.Redis, rows: Rows, now: float) -> list[Interruption]:
    """Return the interruptions of the path at `now` (unix seconds), worst first.

    Other problems of Redis and of the hub's machines, which users must solve, follow. Raises redis.RedisError.
    """
    path = _Path(client, rows, now)
    interruptions = [Interruption(stage, message) for stage, describe in STAGES.items() if (message := describe(path))]
    return interruptions + [Interruption(kind, message) for kind, message in read_problems(client).items()]


def find_hub_problems(client: redis.Redis, now: float) -> Iterator[str]:
    """Yield the reasons why the hub's own stages have stalled, for readiness probes. Raises redis.RedisError."""
    path = _Path(client, {}, now)
    return (message for stage in HUB_STAGES if (message := STAGES[stage](path)))
