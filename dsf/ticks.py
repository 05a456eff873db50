"""The tick: the message that starts a cycle, exactly as a Celery worker expects it on its queue.

A tick is the task `dsf.fetch` with the rest of the chain in it, `dsf.score` and `dsf.publish`. Each of the three has
the arguments (scorer, run id), its queue and its own `expires`: Celery does not hand `expires` on along a chain. Beat
pushes the message within the script that also opens the run, so it is made here and not by `apply_async`.
"""

from __future__ import annotations

import functools
import json
import re
import time
import uuid
from datetime import UTC, datetime
from typing import Any

import redis
from celery import Celery, Signature
from kombu import Connection, Exchange, Queue
from kombu.transport import virtual

from dsf import keys
from dsf.errors import QueueFullError, UnknownScorerError
from dsf.messages import FETCH_TASK, PUBLISH_TASK, SCORE_TASK, new_run_id
from dsf.settings import settings
from dsf.store.client import lua
from dsf.store.entries import LATEST

#: Seconds after `expires` within which a result still counts. A stage that began just before `expires` may take its
#: time-out (30 s by default); the same again is for its retries, for sending over a slow line and for ingest.
RUN_SLACK = 60.0

_FIELD = re.compile(r"<(\w+)>")


def iso(at: float) -> str:
    """Unix seconds as Celery's `expires`: ISO 8601 in UTC with milliseconds, LATEST (`dsf.store.entries`) at most."""
    return datetime.fromtimestamp(min(at, LATEST), UTC).isoformat(timespec="milliseconds")


def run_deadline(expires_at: float) -> float:
    """Until when a result of a run that expires then is waited for (unix seconds)."""
    return expires_at + RUN_SLACK


def chain_signatures(cluster: str, scorer: str, run_id: str, expires: float | str) -> list[Signature[Any]]:
    """The rest of a chain after fetch, last step first, as Celery keeps it in a message: [publish, score].

    `expires` is in unix seconds or already ISO 8601. To go on after a fetch that came without a chain:
    `steps.pop().apply_async(chain=steps)`.
    """
    options = {
        "queue": keys.spoke_queue(cluster),
        "expires": expires if isinstance(expires, str) else iso(expires),
        # JSON turns the arguments into a list; shown as they are for fetch, one search finds all three in Flower.
        "argsrepr": repr((scorer, run_id)),
    }
    return [
        Signature(task, args=(scorer, run_id), immutable=True, options=dict(options))
        for task in (PUBLISH_TASK, SCORE_TASK)
    ]


class TickFactory:
    """Makes ticks. Celery and kombu make one message with placeholders; each tick fills them in, in about 10 us."""

    def __init__(self, app: Celery | None = None) -> None:
        """`app` is the application whose task protocol is used; a plain one by default."""
        template = _template(app or Celery("dsf-ticks", set_as_current=False))
        # Text and field names in turn: [text, name, text, name, ..., text].
        self._parts = _FIELD.split(template)

    def message(self, cluster: str, scorer: str, run_id: str, expires_at: float) -> str:
        """The message for LPUSH onto `dsf.keys.spoke_queue(cluster)`; `expires_at` in unix seconds.

        Raises ValueError for a name that is none: what stands in Redis is not trusted to be.
        """
        if not (keys.is_name(cluster) and keys.is_name(scorer)):
            raise ValueError(f"not the names of a cluster and a scorer: {cluster!r}, {scorer!r}")
        fields = {
            "queue": keys.spoke_queue(cluster),
            "scorer": scorer,
            "run": run_id,
            "expires": iso(expires_at),
            "id": str(uuid.uuid4()),
            "tag": str(uuid.uuid4()),
        }
        parts = self._parts.copy()
        parts[1::2] = [fields[name] for name in parts[1::2]]
        return "".join(parts)


def _template(app: Celery) -> str:
    """One message as the Redis transport would push it, with `<name>` where a tick differs from the next."""
    pushed: list[dict[str, Any]] = []

    class Recorder(virtual.Channel):
        def _put(self, queue: str, message: dict[str, Any], **_: Any) -> None:
            pushed.append(message)

    class RecordingTransport(virtual.Transport):
        Channel = Recorder

    arguments = ("<scorer>", "<run>")
    chain = chain_signatures("", arguments[0], arguments[1], "<expires>")
    for step in chain:
        step.options["queue"] = "<queue>"
    message = app.amqp.as_task_v2(
        "<id>",
        FETCH_TASK,
        args=arguments,
        expires="<expires>",  # type: ignore[arg-type]  # a text is taken as it is, as for a retried task
        chain=chain,
        origin="dsf-beat",
        ignore_result=True,
    )
    # no_declare: as in the application's own queues, nothing is asked of the server.
    queue = Queue("<queue>", Exchange("<queue>", no_declare=True), routing_key="<queue>", no_declare=True)
    # Base64, the default, would only protect bytes that JSON does not have, and make the body a third longer.
    with Connection(transport=RecordingTransport, transport_options={"body_encoding": None}) as connection:
        producer = app.amqp.Producer(connection, auto_declare=False)
        app.amqp.send_task_message(producer, FETCH_TASK, message, queue=queue, serializer="json", retry=False)
    recorded = pushed[0]
    recorded["properties"]["delivery_tag"] = "<tag>"
    recorded["body"] = json.dumps(json.loads(recorded["body"]), separators=(",", ":"))
    return json.dumps(recorded, separators=(",", ":"))


@functools.cache
def _factory() -> TickFactory:
    return TickFactory()


def send_now(client: redis.Redis, cluster: str, scorer: str, interval: float, *, queue_limit: int | None = None) -> str:
    """Send a tick now, as `dsf rescore` does, and return its run id.

    The run is opened and counted as scheduled together with the push. It expires after `interval` seconds. Pauses and
    the fleet-wide rate limit do not hold back what a person asks for; the schedule itself does not move.
    `queue_limit` is this process's `DSF_QUEUE_LIMIT` by default.
    Raises UnknownScorerError when the scorer does not run on the cluster, QueueFullError when the cluster's queue holds
    `queue_limit` messages already, and redis.RedisError.
    """
    limit = settings().queue_limit if queue_limit is None else queue_limit
    now = time.time()
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
