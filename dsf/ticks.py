"""The tick: the message that starts a cycle, in the format that a Celery worker expects on its queue.

A tick is a call of the task `dsf.fetch` with the arguments (scorer, run id), its queue and its own `expires`. Beat
pushes the message in the script that also opens the run, so it is built here and not by `apply_async`.
"""

from __future__ import annotations

import functools
import re
import uuid
from datetime import UTC, datetime

import redis

from dsf import keys, wire
from dsf.api.pauses import LATEST
from dsf.errors import QueueFullError, UnknownScorerError
from dsf.messages import FETCH_TASK, new_run_id
from dsf.settings import settings
from dsf.store.client import hub_time, lua

#: Seconds after `expires` within which a result still counts. A stage that began just before `expires` may take its
#: timeout (30 s by default); the rest is for retries, a slow connection and ingest.
RUN_SLACK = 60.0

_FIELD = re.compile(r"<(\w+)>")


def iso(at: float) -> str:
    """Unix seconds as Celery's `expires`: ISO 8601 in UTC with milliseconds, LATEST (`dsf.api.pauses`) at most."""
    return datetime.fromtimestamp(min(at, LATEST), UTC).isoformat(timespec="milliseconds")


def run_deadline(expires_at: float) -> float:
    """Deadline for the result of a run that expires then (unix seconds)."""
    return expires_at + RUN_SLACK


class TickFactory:
    """Builds ticks by filling in a message template, in about 10 us each."""

    def __init__(self) -> None:
        arguments = ("<scorer>", "<run>")
        template = wire.call(
            FETCH_TASK,
            arguments,
            "<queue>",
            argsrepr=repr(arguments),
            task_id="<id>",
            expires="<expires>",
            origin="dsf-beat",
            delivery_tag="<id>",
        )
        # Alternating text and field names: [text, name, text, name, ..., text].
        self._parts = _FIELD.split(template.decode())

    def message(self, cluster: str, scorer: str, run_id: str, expires_at: float) -> str:
        """The message for LPUSH onto `dsf.keys.spoke_queue(cluster)`; `expires_at` in unix seconds.

        Raises ValueError for an invalid name: data in Redis is not trusted.
        """
        if not (keys.is_name(cluster) and keys.is_name(scorer)):
            raise ValueError(f"not the names of a cluster and a scorer: {cluster!r}, {scorer!r}")
        fields = {
            "queue": keys.spoke_queue(cluster),
            "scorer": scorer,
            "run": run_id,
            "expires": iso(expires_at),
            "id": str(uuid.uuid4()),
        }
        parts = self._parts.copy()
        parts[1::2] = [fields[name] for name in parts[1::2]]
        return "".join(parts)


@functools.cache
def _factory() -> TickFactory:
    return TickFactory()


def send_now(client: redis.Redis, cluster: str, scorer: str, interval: float, *, queue_limit: int | None = None) -> str:
    """Send a tick now, as `dsf rescore` does, and return its run id.

    The run is opened and counted as scheduled together with the push. It expires after `interval` seconds. Pauses and
    the fleet-wide rate limit do not apply to a user's request; the schedule does not change. `queue_limit` is by
    default this process's `DSF_QUEUE_LIMIT`. Raises UnknownScorerError when the scorer does not run on the cluster,
    QueueFullError when the cluster's queue already holds `queue_limit` messages, and redis.RedisError.
    """
    limit = settings().queue_limit if queue_limit is None else queue_limit
    now = hub_time(client)
    run_id = new_run_id(now)
    queue = keys.spoke_queue(cluster)
    answer = client.register_script(lua("rescore"))(
        keys=[keys.ENTRIES, keys.OPEN_RUNS, keys.pair_key(cluster, scorer), queue],
        args=[
            keys.pair(cluster, scorer),
            keys.run_member(cluster, scorer, run_id),
            repr(run_deadline(now + interval)),
            _factory().message(cluster, scorer, run_id, now + interval),
            limit,
        ],
    )
    if answer == "unknown":
        raise UnknownScorerError(
            f"scorer {scorer!r} does not run on cluster {cluster!r}; `dsf schedule list` shows what runs where"
        )
    if answer == "full":
        raise QueueFullError(
            f"{limit} messages wait in {queue}: the agent of cluster {cluster!r} takes none; is it running?"
        )
    return run_id
