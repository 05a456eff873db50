"""A Celery worker with an agent's configuration and three tasks that only say what they were called with."""

from __future__ import annotations

import json
import time
from typing import Any

import redis
from celery import Celery, signals

from dsf.celery import configuration
from dsf.settings import settings

SEEN = "test:seen"
REVOKED = "test:revoked"
#: Seconds that fetch takes for the scorer of this name.
SLOW_SCORER, SLOW = "slow", 3.0

app = Celery("agent-under-test")
app.conf.update(configuration(settings()))
client = redis.Redis.from_url(settings().resolved_redis_url())


def _say(task: Any, scorer: str, run_id: str) -> None:
    request = task.request
    seen = {
        "task": task.name,
        "args": [scorer, run_id],
        "shown": request.argsrepr,
        "expires": request.expires,
        "queue": request.delivery_info["routing_key"],
        "root": request.root_id,
    }
    client.rpush(SEEN, json.dumps(seen))


@app.task(name="dsf.fetch", bind=True)
def fetch(self: Any, scorer: str, run_id: str) -> str:
    """The first step; its return value must not reach the next one."""
    _say(self, scorer, run_id)
    if scorer == SLOW_SCORER:
        time.sleep(SLOW)
    return "not for score"


@app.task(name="dsf.score", bind=True)
def score(self: Any, scorer: str, run_id: str) -> None:
    """The second step."""
    _say(self, scorer, run_id)


@app.task(name="dsf.publish", bind=True)
def publish(self: Any, scorer: str, run_id: str) -> None:
    """The last step."""
    _say(self, scorer, run_id)


@app.task(name="test.by_hand", bind=True)
def by_hand(self: Any, run_id: str, expires: float) -> None:
    """What fetch does when it was called by hand: it sends the rest of the chain itself."""
    from dsf.ticks import chain_signatures

    steps = chain_signatures(settings().cluster, "hand", run_id, expires)
    steps.pop().apply_async(chain=steps)


@signals.task_revoked.connect
def _revoked(request: Any, expired: bool, **_: Any) -> None:
    client.rpush(REVOKED, json.dumps([request.task, expired, request.argsrepr]))
