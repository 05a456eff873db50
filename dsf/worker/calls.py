"""The router for task calls, and the checks of users' calls of `dsf.cycle`: `celery call`, Flower, Python programs.

A user's call is pushed into the queue of a cluster without opening a run. Redis has no expiry for a message, so the
call gets a deadline, after which the agent drops it, and a call for an unregistered cluster is refused.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NoReturn

import kombu
import redis
from celery import Celery
from celery.backends.base import DisabledBackend
from celery.utils.time import maybe_iso8601, maybe_make_aware
from kombu.exceptions import OperationalError

from dsf import keys
from dsf.errors import RoutingError, ScheduleError, UnknownClusterError
from dsf.messages import CYCLE_TASK, STAGE_TASKS
from dsf.settings import Settings

#: Seconds until a call of a scorer without a schedule on its cluster expires.
DEFAULT_SECONDS: Final = 60.0


def route(name: str, args: Any, kwargs: Any, options: dict[str, Any], task: Any = None, **_: Any) -> None:
    """Reject calls of stages, and calls of a cycle without the queue of a cluster.

    Returns None, so that Celery uses the queue of the call. Raises RoutingError in the caller's process.
    """
    del args, kwargs, task
    if name in STAGE_TASKS:
        raise RoutingError(f"{name} runs within {CYCLE_TASK}: call that with queue='spoke.<cluster>'")
    if name == CYCLE_TASK and "queue" not in options:
        raise RoutingError(f"{name} needs the queue of a cluster: queue='spoke.<cluster>', or --queue of `celery call`")


def prepare_call(
    config: Settings, name: str, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None, options: dict[str, Any]
) -> tuple[Sequence[Any] | None, Mapping[str, Any] | None]:
    """Return the arguments of a call. A call of a cycle gets a deadline; calls of other tasks stay as they are.

    `options` are those of Celery's `send_task`. Raises RoutingError for a queue that is no cluster's and for a later
    start, UnknownClusterError for a cluster that is not registered, and kombu's OperationalError while Redis cannot be
    used.
    """
    queue = options.get("queue")
    if name != CYCLE_TASK or not queue:
        # The router refuses calls that cannot be sent.
        return args, kwargs
    for option in {"countdown", "eta"}.intersection(name for name, value in options.items() if value):
        raise RoutingError(f"{CYCLE_TASK} takes no {option}: an agent starts it at once; send it when it shall run")
    arguments = dict(zip(("scorer", "run_id", "deadline"), args or (), strict=False)) | dict(kwargs or {})
    deadline = _compute_deadline(config, _parse_cluster(queue), arguments.get("scorer"), options.get("expires"))
    if arguments.get("deadline") is not None:
        return args, kwargs
    # Drop a positional deadline of None, because the deadline is a keyword argument.
    return tuple(args or ())[:2], {**(kwargs or {}), "deadline": round(deadline, 3)}


def _compute_deadline(config: Settings, cluster: str, scorer: object, expires: object) -> float:
    """Return when a call expires, in unix seconds by the hub's clock: after the interval in force, or `expires`."""
    # Import these modules here, because processes that send no call do not need them.
    from dsf.process.hubclock import read_hub_time
    from dsf.store.client import connect
    from dsf.store.registry import Registry
    from dsf.store.schedule import ScheduleStore

    with _translate_redis_errors(), contextlib.closing(connect(config, name="dsf-call")) as client:
        now, seconds = read_hub_time(client), DEFAULT_SECONDS
        # Users of Redis without the right to read the registry may send calls, too.
        with contextlib.suppress(redis.exceptions.NoPermissionError):
            try:
                Registry(client).read_cluster(cluster)
            except UnknownClusterError as error:
                raise UnknownClusterError(f"{error}; the queue of a cluster is spoke.<cluster>") from None
            seconds = ScheduleStore(client).read_interval(cluster, str(scorer)) or seconds
    expires_at = maybe_iso8601(expires) if isinstance(expires, str | datetime) else None
    if expires_at is not None:
        # Celery reads a time without a zone as UTC.
        expires = maybe_make_aware(expires_at).timestamp() - time.time()
    if isinstance(expires, int | float):
        seconds = min(seconds, float(expires))
    return now + seconds


def register_cycle(app: Celery) -> None:
    """Register `dsf.cycle` for its callers, so that `app.tasks["dsf.cycle"].apply_async(...)` works."""

    def cycle(scorer: str, run_id: str | None = None, deadline: float | None = None) -> NoReturn:
        """Score `scorer` now on the cluster of the queue. Raises RoutingError outside of an agent."""
        raise RoutingError(f"{CYCLE_TASK} runs in an agent: call it by apply_async(..., queue='spoke.<cluster>')")

    # Do not share the task, because it would also be registered in the applications of other projects.
    app.task(name=CYCLE_TASK, shared=False)(cycle)


class NoResults(DisabledBackend):
    """Refuses to return results of tasks, because an agent could write the results of other clusters' tasks."""

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise RoutingError(
            "there is no result backend: `dsf rescore SCORER --cluster CLUSTER --wait` waits for a new score, `dsf "
            "history SCORER --cluster CLUSTER` has the outcome of each cycle, and Flower the task of this id"
        )

    wait_for = wait_for_pending = get_task_meta = get_many = _refuse
    get_state = get_status = get_result = get_traceback = _refuse


def refuse_periodic_task() -> NoReturn:
    """Raise ScheduleError with the command that changes the schedule."""
    raise ScheduleError(
        "periodic tasks cannot be added: the schedule has one entry for each DynamicScorer and cluster; `dsf schedule "
        "set SCORER --interval TIME` changes how often a scorer runs"
    )


def _parse_cluster(queue: object) -> str:
    name = queue.name if isinstance(queue, kombu.Queue) else str(queue)
    cluster = keys.cluster_of_queue(name)
    if cluster is None or not keys.is_name(cluster):
        raise RoutingError(f"{name!r} is not the queue of a cluster; give queue='spoke.<cluster>'")
    return cluster


@contextlib.contextmanager
def _translate_redis_errors() -> Iterator[None]:
    """Raise kombu's OperationalError, which Celery's callers expect, for each error of Redis."""
    try:
        yield
    except redis.RedisError as error:
        raise OperationalError(str(error)) from error
