"""Ticks: their messages, the reasons for skipped ticks, and the check that beat sends ticks.

The message is a call of the task `dsf.cycle` with the arguments (scorer, run id, deadline), in Celery's format. The
deadline is an argument instead of Celery's `expires`, because an agent would compare `expires` with its own clock, and
the deadline is by the hub's clock. This module builds the message instead of `apply_async`, because one script pushes
the message and opens the run.

If the newest ticks of a pair were skipped, the hash `dsf.keys.SKIPS` has a text that `lua/dispatch.lua` writes and the
next sent tick removes:

    <consecutive ticks not sent> <unix seconds of the first> <unix seconds of the newest> <reason of the newest>
"""

from __future__ import annotations

import json
import math
import re
import uuid
from dataclasses import dataclass
from typing import Any, Final

import redis

from dsf import keys
from dsf.api.meta import LATEST
from dsf.errors import QueueFullError, UnknownScorerError
from dsf.messages import CYCLE_TASK, make_run_id
from dsf.process.hubclock import read_hub_time
from dsf.store.client import Condition, run_atomically_if

#: Seconds after `expires` until the deadline for the result. A stage that began just before `expires` may take its
#: timeout (30 s by default). The rest is for retries, a slow connection and ingest.
RUN_SLACK = 60.0


def compute_run_deadline(expires_at: float) -> float:
    """Return the deadline (unix seconds) for the result of a run that expires at `expires_at`."""
    return expires_at + RUN_SLACK


def make_tick_message(cluster: str, scorer: str, run_id: str, expires_at: float) -> str:
    """Return the message for LPUSH to `dsf.keys.spoke_queue(cluster)`, as `apply_async` would push it.

    Fields that nothing reads are omitted. `expires_at` is in unix seconds. Raises ValueError for an invalid name,
    because data in Redis is not trusted.
    """
    if not (keys.is_name(cluster) and keys.is_name(scorer)):
        raise ValueError(f"not the names of a cluster and a scorer: {cluster!r}, {scorer!r}")
    deadline = round(min(expires_at, LATEST), 3)
    no_callbacks = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
    ident = str(uuid.uuid4())
    message = {
        "body": _json([[scorer, run_id, deadline], {}, no_callbacks]),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {
            "lang": "py",
            "task": CYCLE_TASK,
            "id": ident,
            "expires": None,
            "retries": 0,
            "root_id": ident,
            "parent_id": None,
            "argsrepr": f"('{scorer}', '{run_id}', {deadline:.3f})",
            "kwargsrepr": "{}",
            "origin": "dsf-beat",
            "ignore_result": True,
        },
        "properties": {
            "correlation_id": ident,
            "delivery_mode": 2,
            "delivery_info": {"exchange": "", "routing_key": keys.spoke_queue(cluster)},
            "priority": 0,
            # Celery's default, base64, would only protect bytes that JSON cannot contain.
            "body_encoding": None,
            "delivery_tag": ident,
        },
    }
    return _json(message)


# Created once, because `json.dumps` would create an encoder per tick.
_json: Final = json.JSONEncoder(separators=(",", ":")).encode


def send_now(client: redis.Redis, cluster: str, scorer: str, interval: float, *, queue_limit: int) -> str:
    """Send a tick now, as `dsf rescore` does, and return its run id.

    The run is opened and counted as scheduled together with the push, and expires after `interval` seconds. Pauses and
    the fleet-wide rate limit do not apply to a user's request; the schedule does not change. Raises UnknownScorerError
    when the scorer does not run on the cluster, QueueFullError when the cluster's queue already holds `queue_limit`
    messages, and redis.RedisError.
    """
    now = read_hub_time(client)
    run_id = make_run_id(now)
    queue = keys.spoke_queue(cluster)
    member = keys.run_member(cluster, scorer, run_id)
    is_scheduled = Condition("=", 1, ("HEXISTS", keys.ENTRIES, keys.pair(cluster, scorer)))
    # A retry after a lost connection has no effect.
    is_new = Condition("=", "", ("ZSCORE", keys.OPEN_RUNS, member))
    has_space = Condition("<", queue_limit, ("LLEN", queue))
    unmet_condition = run_atomically_if(
        client,
        [is_scheduled, is_new, has_space],
        ("ZADD", keys.OPEN_RUNS, repr(compute_run_deadline(now + interval)), member),
        ("HINCRBY", keys.pair_key(cluster, scorer), "n:scheduled", 1),
        ("LPUSH", queue, make_tick_message(cluster, scorer, run_id, now + interval)),
    )
    if unmet_condition is is_scheduled:
        raise UnknownScorerError(
            f"scorer {scorer!r} does not run on cluster {cluster!r}; `dsf schedule list` shows what runs where"
        )
    if unmet_condition is has_space:
        raise QueueFullError(
            f"{queue_limit} messages wait in {queue}: the agent of cluster {cluster!r} consumes none; is it running?"
        )
    return run_id


#: Seconds for which a pair may be due without a tick before beat counts as down. A working beat takes seconds, a
#: standby takes over after 10 s, and a pod restarts in about 30 s.
MAX_LATENESS: Final = 45.0


def find_ticks_problem(client: redis.Redis, now: float) -> str:
    """Return why beat sends no ticks at `now` (unix seconds); empty if beat works or no pair is due.

    Raises redis.RedisError.
    """
    earliest_pairs: Any = client.zrange(keys.DUE, 0, 0, withscores=True)
    lateness = now - float(earliest_pairs[0][1]) if earliest_pairs else -math.inf
    if lateness <= MAX_LATENESS:
        return ""
    pair = earliest_pairs[0][0]
    return f"no ticks are sent: {pair} has been due for {lateness:.0f} s; beat does not run, or hangs: see its log"


#: Scripts without effect, which Redis refuses as it refuses writes: those of the hub, and those of agents, which need
#: free memory.
_HUB_WRITE: Final = "#!lua flags=allow-oom\nreturn 1"
_AGENT_WRITE: Final = "#!lua\nreturn 1"


def find_writes_problem(client: redis.Redis) -> str:
    """Return why Redis rejects the writes of the hub, or an empty string. Raises redis.RedisError.

    The check detects the problem long before a tick is late.
    """
    try:
        client.register_script(_HUB_WRITE)()
    except redis.exceptions.NoPermissionError:
        # A read-only user may not run scripts, so only late ticks can reveal the problem.
        return ""
    except redis.ConnectionError as error:
        # `dsf.redislink` raises this error for a connection to a replica.
        if not isinstance(error.__cause__, redis.ReadOnlyError):
            raise
        return f"no ticks are sent: {error}; make it the primary again, or give the primary's address"
    except redis.ResponseError as error:
        reason = str(error).rstrip(".")
        return f"no ticks are sent: Redis rejects writes ({reason}); check its disk, its replicas and its log"
    return ""


def find_memory_problem(client: redis.Redis) -> str:
    """Return a sentence if Redis is full and therefore rejects the writes of agents; otherwise an empty string.

    Raises redis.RedisError.
    """
    try:
        client.register_script(_AGENT_WRITE)()
    except redis.exceptions.OutOfMemoryError:
        return "results of agents wait: Redis is full; raise its maxmemory (the chart's redis.maxMemory)"
    except redis.ResponseError:
        # `find_writes_problem` reports problems other than memory.
        return ""
    return ""


# Reasons for which a due tick is skipped.
QUEUE_FULL: Final = "queue_full"
RATE_LIMIT: Final = "rate_limit"
PAUSED: Final = "paused"
RESULTS_BEHIND: Final = "results_behind"
INACTIVE: Final = "inactive"
EXPIRED: Final = "expired"
#: Reason -> sentence with the reason and the remedy.
_SENTENCES: Final = {
    QUEUE_FULL: "the queue of {cluster} is full: its agent does not run or is overloaded; check that it runs "
    "and reaches Redis",
    RATE_LIMIT: "the rate limit of this scorer, {rate}, applies to all clusters together and is used up by other "
    "clusters; raise the limit or the interval",
    PAUSED: "it is paused: dsf schedule list says by whom, dsf schedule resume ends it",
    RESULTS_BEHIND: "results of {cluster} wait in its mailbox and are not ingested; check that the service results "
    "runs and keeps up",
    # The scoring API fails health checks, or its configuration is unusable.
    INACTIVE: "it could not run: the conditions of its DynamicScorer, or its cluster's page, say why",
    # The slot passed before its tick could be sent.
    EXPIRED: "beat or Redis was down when it was due; check the lag of the schedule",
}
REASONS: Final = tuple(_SENTENCES)

_TEXT_PATTERN: Final = re.compile(r"(\d+) (\d+) (\d+) (.+)")

#: Consecutive skips that are reported even if the score is still valid. Fewer are normal with a rate limit.
SKIPS_THRESHOLD: Final = 3


@dataclass(frozen=True)
class Skips:
    """Consecutive skipped ticks of a pair."""

    cluster: str
    #: Reason of the newest skipped tick.
    reason: str
    #: Number of skipped ticks.
    ticks: int
    #: Times of the first and the newest skipped tick, in unix seconds.
    first_at: float
    newest_at: float = 0.0

    @classmethod
    def parse(cls, cluster: str, text: str | None) -> Skips | None:
        """Parse the stored text of a pair. Return None if its newest tick was sent, or if it never had a tick."""
        match = _TEXT_PATTERN.fullmatch(text) if text else None
        if match is None or match[4] not in REASONS:
            return None
        return cls(cluster, match[4], int(match[1]), float(match[2]), float(match[3]))

    def explain(self, rate_limit: str | None, problem: str = "") -> str:
        """Return a sentence with the reason and the remedy.

        `rate_limit` is the rate limit of the scorer, such as `10/s`. `problem` is why the pair cannot run.
        """
        if self.reason == INACTIVE and problem:
            return problem
        return _SENTENCES[self.reason].format(cluster=self.cluster, rate=rate_limit or "which was removed since")
