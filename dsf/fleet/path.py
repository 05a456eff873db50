"""Where the path from a due pair to a written score is interrupted: the only place that decides it.

Each stage is watched from outside, by what it leaves in Redis: beat by the pairs that stay due, the results worker by
its marks, agents by runs without a result. Page, command line, JSON API, readiness and alerts show the first problem.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import redis

from dsf import keys
from dsf.fleet.snapshot import Rows
from dsf.fleet.verdict import Verdict
from dsf.messages import is_run_id, run_time
from dsf.store.client import number
from dsf.store.heartbeats import SECONDS, standing
from dsf.store.pairs import Pairs
from dsf.store.server import read_problems
from dsf.store.ticks import RUN_SLACK, ticks_problem, writes_problem
from dsf.store.writes import TURN_AT

#: Seconds after the end of its cycle within which a run's result is in the books.
LATE_RESULT: Final = 10.0
#: Seconds without a turn of the score writer: it has several in a second, and another hub takes over within 15 s.
LATE_WRITER: Final = 60.0
# Number of oldest runs to check, which suffice for a diagnosis.
_MOST: Final = 1000


class Interruption(NamedTuple):
    """Why scores do not arrive, or are not written."""

    #: redis, ticks, results, books, agents or objects; or a kind of `dsf.store.server`.
    stage: str
    message: str


class _Path(NamedTuple):
    client: redis.Redis
    rows: Rows
    #: Unix seconds.
    now: float


def _redis(path: _Path) -> str:
    """Redis takes writes."""
    return writes_problem(path.client)


def _ticks(path: _Path) -> str:
    """Beat sends what is due. It cannot while Redis takes no writes."""
    problem = ticks_problem(path.client, path.now)
    return problem if problem and not _redis(path) else ""


def _standing(path: _Path) -> set[str]:
    """Return the stages of the service results that stand still although a run waits for its result."""
    oldest: Any = path.client.zrange(keys.OPEN_RUNS, 0, 0)
    run = str(oldest[0]).rpartition("/")[2] if oldest else ""
    if not is_run_id(run) or run_time(run) > path.now - SECONDS[keys.RESULTS_STAGE]:
        return set()
    return set(standing(path.client))


def _results(path: _Path) -> str:
    """Return the service results empties the mailboxes."""
    if keys.RESULTS_STAGE not in _standing(path):
        return ""
    seconds = SECONDS[keys.RESULTS_STAGE]
    return (
        f"no results are taken in: the service results has not read the mailboxes for {seconds} s; check that it "
        "runs and reaches Redis, and its log"
    )


def _books(path: _Path) -> str:
    """Return the service results closes the books of lost runs."""
    if keys.SWEEP_STAGE not in _standing(path) or _results(path):
        return ""
    seconds = SECONDS[keys.SWEEP_STAGE]
    return f"lost cycles are not reported: the service results has not looked for them for {seconds} s; see its log"


def _agents(path: _Path) -> str:
    """Return the agents take the ticks, and send results."""
    # The runs whose cycle had to end by then.
    overdue_members: Any = path.client.zrange(
        keys.OPEN_RUNS, "-inf", path.now + RUN_SLACK - LATE_RESULT, byscore=True, offset=0, num=_MOST
    )
    silent: dict[str, str] = {}
    for member in map(str, overdue_members):
        pair, _, run = member.rpartition("/")
        cluster, scorer = keys.split_pair(pair)
        row = path.rows.get(scorer, {}).get(cluster)
        # A failing pair reports its own reason, and a newer success makes the missing result one lost cycle.
        if row is None or not is_run_id(run) or row.state(path.now) not in (Verdict.OK, Verdict.EMPTY):
            continue
        if (row.last_success or 0.0) < run_time(run):
            silent.setdefault(cluster, scorer)
    if not silent or _results(path):
        return ""
    cluster, scorer = next(iter(silent.items()))
    with path.client.pipeline(transaction=False) as pipe:
        pipe.exists(*keys.mail_slots(cluster))
        pipe.llen(keys.spoke_queue(cluster))
        mail, queue = pipe.execute()
    suffix = f" (and of {len(silent) - 1} more)" if len(silent) > 1 else ""
    why = "its agent took the tick and sends no result: see its log"
    if mail:
        why = "results wait in its mailbox and are not taken in: see the log of the service results"
    elif queue:
        why = f"its agent takes no ticks, {queue} in its queue; check that it runs and reaches Redis"
    return (
        f"no results of {cluster} arrive{suffix}: the last cycle of {scorer} had to end {LATE_RESULT:.0f} s ago; {why}"
    )


def _objects(path: _Path) -> str:
    """Return the elected hub controller writes AddOnPlacementScores."""
    turn_at: Any = path.client.hget(keys.WRITE_STATS, TURN_AT)
    late = path.now - number("counter", TURN_AT, turn_at)
    if turn_at is not None and late > LATE_WRITER and path.rows:
        return (
            f"scores are not written: the score writer has done nothing for {late:.0f} s; check that a hub controller "
            "is elected and runs, and its log"
        )
    causes = {pair: cause for pair, cause in Pairs(path.client).unwritten().items() if not cause.is_upstreams}
    if not causes:
        return ""
    pair, cause = next(iter(causes.items()))
    return f"{len(causes)} scores are not written as AddOnPlacementScores; {pair}: {cause.reason}: {cause.message}"


#: Stage -> what watches it, in the order of the path: an earlier interruption explains the later ones.
STAGES: Final[Mapping[str, Callable[[_Path], str]]] = {
    "redis": _redis,
    "ticks": _ticks,
    "results": _results,
    "books": _books,
    "agents": _agents,
    "objects": _objects,
}
#: Stages that run on the hub. Without that of Redis: what it has can be read while it takes no writes.
HUB_STAGES: Final = ("ticks", "results", "books")


def path_problems(client: redis.Redis, rows: Rows, now: float) -> list[Interruption]:
    """Return where the path is interrupted at `now` (unix seconds), worst first, and then what else people must change
    in Redis or in a machine of the hub. Raises redis.RedisError."""
    path = _Path(client, rows, now)
    interrupted = [Interruption(stage, message) for stage, watch in STAGES.items() if (message := watch(path))]
    return interrupted + [Interruption(kind, message) for kind, message in read_problems(client).items()]


def hub_problems(client: redis.Redis, now: float) -> Iterator[str]:
    """Yield why the hub's own stages stand still, for readiness. Raises redis.RedisError."""
    path = _Path(client, {}, now)
    return (message for stage in HUB_STAGES if (message := STAGES[stage](path)))
